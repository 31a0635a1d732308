"""Directories for host files, and files that are closed after a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_client.hosts.host_files import HostFile


@pytest.fixture
def bases(tmp_path: Path) -> tuple[Path, ...]:
    found = (tmp_path / "memory", tmp_path / "disk")
    for base in found:
        base.mkdir()
    return found


@pytest.fixture
def opened() -> Iterator[list[HostFile]]:
    found: list[HostFile] = []
    yield found
    for file in found:
        file.close()
