"""Host files in directories of a test: made, named and counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_client.hosts.host_files import Copies, HostFile, HostFiles, PartFile


def writer(text: str = "content") -> Callable[[PartFile], object]:
    return lambda part: part.write(text.encode())


def never(part: PartFile) -> None:
    pytest.fail("the file is there already")


def directory(base: Path) -> Path:
    return base / f"flight-shuffle-{os.getuid()}-2"


def names(bases: tuple[Path, ...], suffix: str) -> list[str]:
    found = {path.name for base in bases for path in directory(base).glob(f"*{suffix}")}
    return sorted(found - {"names.lock"})


def within(bases: tuple[Path, ...], limit_bytes: int | None = None) -> Copies:
    return Copies(tuple(map(str, bases)), limit_bytes=limit_bytes)


def make(
    files: HostFiles, key: str, write: Callable[[PartFile], object] | None = None, size_bytes: int = 10
) -> HostFile:
    return files.open_or_make(key, size_bytes, write or writer(), deadline_seconds=20)
