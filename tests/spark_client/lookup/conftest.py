"""A changelog of rates without a server, and a directory for a host's files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_client.lookup.host_images import open_layers
from tests.support.versioned_table import VersionedTable


@pytest.fixture
def source(tmp_path: Path) -> VersionedTable:
    (tmp_path / "changelog").mkdir()
    return VersionedTable(tmp_path / "changelog")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "host").mkdir()
    yield tmp_path / "host"
    open_layers.close()
