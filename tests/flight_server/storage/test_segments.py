"""Segments on a real file system, whose calls fail when the test says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flight_server.memory.pool import MemoryPool
from flight_server.records import DiskTrouble
from flight_server.storage.segments import Segment, SegmentWriter
from tests.support.segment_files import HEADER_BYTES, dispose_now, segment_writer

SEGMENT_BYTES = HEADER_BYTES + 100


@pytest.fixture
def disk() -> MemoryPool:
    return MemoryPool(HEADER_BYTES + 1000, "disk")


@pytest.fixture
def writer(tmp_path: Path, disk: MemoryPool) -> SegmentWriter:
    return segment_writer(tmp_path / "segments", disk, SEGMENT_BYTES)


def failing(number: int) -> Callable[..., Any]:
    def fail(*arguments: object, **options: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "segments").iterdir())


def test_more_messages_than_one_call_takes_are_written(tmp_path: Path) -> None:
    messages = [bytes([number % 256]) for number in range(900)] * 1
    many = segment_writer(tmp_path / "segments").append(messages * 3)
    assert b"".join(slice_.read() for slice_ in many) == b"".join(messages * 3)


def test_a_short_write_is_continued_where_it_stopped(
    writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev

    def three_bytes(fd: int, views: list[memoryview], offset: int) -> int:
        return pwritev(fd, [b"".join(views)[:3]], offset)

    monkeypatch.setattr(os, "pwritev", three_bytes)
    slices = writer.append([b"0123", b"", b"45678", b"9"])
    assert [slice_.read() for slice_ in slices] == [b"0123", b"", b"45678", b"9"]


def test_a_segment_goes_with_its_last_slice(writer: SegmentWriter, disk: MemoryPool, tmp_path: Path) -> None:
    first = writer.append([b"x" * 100])  # fills a segment
    second = writer.append([b"y" * 40, b"z" * 40])
    assert len(files(tmp_path)) == 2
    assert disk.used_bytes == 2 * HEADER_BYTES + 180
    del first
    assert len(files(tmp_path)) == 1
    assert disk.used_bytes == HEADER_BYTES + 80
    del second[0]
    assert disk.used_bytes == HEADER_BYTES + 80, "a segment is the unit in which space comes back"
    second.clear()
    assert disk.used_bytes == 0
    assert files(tmp_path) == []
    assert writer.append([b"again"])[0].read() == b"again"


def test_the_disk_limit_is_trouble_that_writes_nothing(
    writer: SegmentWriter, disk: MemoryPool, tmp_path: Path
) -> None:
    held = disk.reserve(990)
    with pytest.raises(DiskTrouble, match="disk limit") as caught:
        writer.append([b"x" * 11])
    assert caught.value.full
    assert files(tmp_path) == []
    assert disk.used_bytes == 990
    assert writer.append([b"x" * 10])
    del held


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False), (errno.EROFS, False)]
)
def test_a_write_that_fails_half_way_leaves_what_was_there_and_nothing_else(
    writer: SegmentWriter,
    disk: MemoryPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    number: int,
    full: bool,
) -> None:
    (before,) = writer.append([b"before"])
    pwritev = os.pwritev

    def half_and_then_nothing(fd: int, views: list[memoryview], offset: int) -> int:
        if offset > HEADER_BYTES + 6:
            raise OSError(number, os.strerror(number))
        return pwritev(fd, [b"half"], offset)

    monkeypatch.setattr(os, "pwritev", half_and_then_nothing)
    with pytest.raises(DiskTrouble) as caught:
        writer.append([b"half and more"])
    assert caught.value.full is full
    monkeypatch.undo()
    assert disk.used_bytes == HEADER_BYTES + 6
    assert [path.stat().st_size for path in files(tmp_path)] == [HEADER_BYTES + 6]
    (after,) = writer.append([b"after"])
    assert (before.read(), after.read()) == (b"before", b"after")


@pytest.mark.parametrize("function", ["open", "pwritev"])
def test_a_segment_that_cannot_be_made_is_trouble_and_the_next_try_is_a_new_one(
    writer: SegmentWriter, disk: MemoryPool, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setattr(os, function, failing(errno.ENOSPC))
    with pytest.raises(DiskTrouble):
        writer.append([b"x"])
    monkeypatch.undo()
    assert disk.used_bytes == 0
    assert writer.append([b"x"])[0].read() == b"x"


def test_a_failed_sync_makes_the_segment_suspect_for_ever(
    writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slice_,) = writer.append([b"x"])
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(DiskTrouble):
        slice_.segment.sync()
    monkeypatch.undo()
    assert slice_.segment.suspect
    (other,) = writer.append([b"y"])
    (third,) = writer.append([b"z"])
    other.segment.sync()
    assert third.segment is other.segment is not slice_.segment
    assert not other.segment.suspect


def test_a_file_that_is_there_is_opened_as_it_is_and_kept(tmp_path: Path, disk: MemoryPool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    segment = Segment.existing(path, disk, dispose_now)
    assert segment.read(3, 4) == b"3456"
    assert disk.used_bytes == 10
    del segment
    assert path.exists()
    assert disk.used_bytes == 0
