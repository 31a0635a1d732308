"""What a log says after any end of its writer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.kinds.changelog.runs import Damaged, LogEntry, LogFile, read_log
from flight_server.memory import MemoryPool
from flight_server.records import DiskTrouble

ENTRIES = [LogEntry({"n": 1}, b"CLE1 is no entry"), LogEntry({"n": 2}, b""), LogEntry({"n": 3}, b"x" * 100)]
BYTES = [b"".join(entry.encode()) for entry in ENTRIES]


def reading(data: bytes) -> tuple[list[LogEntry], int, bool]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log-000001"
        path.write_bytes(data)
        return read_log(path)


def test_entries_are_read_in_the_order_of_their_appends(tmp_path: Path) -> None:
    path, pool = tmp_path / "log-000001", MemoryPool(None)
    log = LogFile(path, pool.reserve(0))
    log.append(ENTRIES[:2])
    log = LogFile(path, pool.reserve(0), log.size_bytes)
    log.append(ENTRIES[2:])
    assert read_log(path) == (ENTRIES, log.size_bytes, False)
    assert log.room.size_bytes == log.size_bytes == path.stat().st_size
    log.delete()
    log.delete()
    assert not path.exists()


@given(st.integers(0, len(b"".join(BYTES))))
def test_a_log_that_is_cut_has_the_whole_entries_before_the_cut(length: int) -> None:
    whole = sum(sum(map(len, BYTES[: n + 1])) <= length for n in range(3))
    size_bytes = sum(map(len, BYTES[:whole]))
    assert reading(b"".join(BYTES)[:length]) == (ENTRIES[:whole], size_bytes, length > size_bytes)


@given(st.integers(0, len(b"".join(BYTES)) - 1), st.integers(1, 255))
def test_a_changed_byte_is_damage_unless_the_last_entry_seems_to_go_beyond_the_file(
    place: int, change: int
) -> None:
    data = bytearray(b"".join(BYTES))
    data[place] ^= change
    last = len(data) - len(BYTES[2])
    try:
        found = reading(bytes(data))
    except Damaged:
        return
    assert place >= last
    assert found == (ENTRIES[:2], last, True)


def test_an_append_without_room_changes_nothing(tmp_path: Path) -> None:
    pool = MemoryPool(len(BYTES[0]) + 10)
    log = LogFile(tmp_path / "log-000001", pool.reserve(0))
    log.append(ENTRIES[:1])
    with pytest.raises(DiskTrouble):
        log.append(ENTRIES[1:2])
    assert read_log(log.path) == (ENTRIES[:1], log.size_bytes, False)
    assert pool.used_bytes == log.size_bytes


def test_an_append_that_the_disk_refuses_leaves_no_entry_and_gives_its_room_back(tmp_path: Path) -> None:
    pool = MemoryPool(None)
    log = LogFile(tmp_path / "gone" / "log-000001", pool.reserve(0))
    with pytest.raises(DiskTrouble):
        log.append(ENTRIES)
    assert (pool.used_bytes, log.size_bytes, log.suspect) == (0, 0, False)
    log.path.parent.mkdir()
    log.append(ENTRIES)
    assert read_log(log.path)[0] == ENTRIES
