"""What the disposal does in its thread, and when a server has closed it."""

from __future__ import annotations

import errno
import gc
import os
import threading
from concurrent.futures.thread import _global_shutdown_lock
from pathlib import Path

import pytest

from flight_server.memory import MemoryPool
from flight_server.protocol import Kind
from flight_server.records import Database
from flight_server.storage import Disk, SegmentWriter
from flight_server.storage.disposal import Disposal
from flight_server.storage.folder import SEGMENTS_NAME

DEADLINE_SECONDS = 20.0


def spilling(disk: Disk) -> SegmentWriter:
    writer = disk.writer("d", "g", Kind.STREAM)
    assert writer is not None
    return writer


def files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / SEGMENTS_NAME).iterdir())


def test_a_segment_that_is_collected_while_its_thread_submits_to_an_executor_is_deleted(
    tmp_path: Path,
) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    writer = spilling(disk)

    def collected() -> None:
        cycle: list[object] = [writer.append([b"x"])]
        cycle.append(cycle)
        del cycle
        with _global_shutdown_lock:  # as ``ThreadPoolExecutor.submit`` does
            gc.collect()

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive(), "the finalizer waits for a lock that its own thread holds"
    disk.close()
    assert files(tmp_path) == []
    assert disk.pool.used_bytes == 0


def test_a_segment_that_is_collected_after_the_close_is_deleted(tmp_path: Path) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    slices = spilling(disk).append([b"x"])
    disk.close()
    assert len(files(tmp_path)) == 1
    del slices
    assert files(tmp_path) == []


def test_the_thread_ends_with_the_last_reference_also_when_it_was_not_closed(tmp_path: Path) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    (thread,) = (each for each in threading.enumerate() if each.name == "flight-server-disposal")
    slices = spilling(disk).append([b"x"])
    assert disk.records is not None
    disk.records.close()
    del disk
    assert thread.is_alive(), "the segment has a use for it"
    del slices
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert files(tmp_path) == []


async def test_work_that_fails_is_logged_and_the_next_is_done(tmp_path: Path) -> None:
    disposal = Disposal()
    path = tmp_path / "file"
    path.write_bytes(b"")
    disposal.dispose(-1, None, MemoryPool(None).empty())
    disposal.dispose(os.open(path, os.O_RDONLY), path, MemoryPool(None).empty())
    await disposal.wait_idle()
    assert not path.exists()
    disposal.close()


class KeepingDisk:
    """Refuses to unlink, while ``refuses``, and counts the calls."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.refuses = True
        self.calls = 0
        unlink = Path.unlink

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            self.calls += 1
            if self.refuses:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            unlink(path, missing_ok)

        patch.setattr(Path, "unlink", unlinked)


async def test_a_file_that_the_disk_keeps_is_counted_and_tried_again_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    slices, others = spilling(disk).append([b"x"]), spilling(disk).append([b"x"])
    used_bytes = disk.pool.used_bytes
    uncounted = tmp_path / SEGMENTS_NAME / "uncounted"
    uncounted.write_bytes(bytes(100))
    keeping = KeepingDisk(monkeypatch)
    del slices, others
    disk.delete(uncounted)
    for _ in range(3):
        await disk.disposal.wait_idle()
        assert len(files(tmp_path)) == 3
        assert disk.pool.used_bytes == used_bytes + 100
        disk.disposal.try_again()
    keeping.refuses = False
    disk.disposal.try_again()
    await disk.disposal.wait_idle()
    assert files(tmp_path) == []
    assert disk.pool.used_bytes == 0
    calls = keeping.calls
    disk.disposal.try_again()
    await disk.disposal.wait_idle()
    assert keeping.calls == calls, "there is nothing to be tried"
    disk.close()


async def test_a_file_that_is_gone_by_itself_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    slices = spilling(disk).append([b"x"])
    keeping = KeepingDisk(monkeypatch)
    (path,) = files(tmp_path)
    del slices
    await disk.disposal.wait_idle()
    keeping.refuses = False
    path.unlink()
    disk.disposal.try_again()
    await disk.disposal.wait_idle()
    assert disk.pool.used_bytes == 0
    disk.close()


async def test_no_file_is_deleted_while_a_failed_commit_of_the_records_may_count_after_a_crash(
    tmp_path: Path,
) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    slices = spilling(disk).append([b"x"])
    used_bytes = disk.pool.used_bytes
    assert isinstance(disk.records, Database)
    disk.records.in_doubt = True  # which its writer, which waits for a change, does not see
    del slices
    for _ in range(3):
        await disk.disposal.wait_idle()
        assert len(files(tmp_path)) == 1
        assert disk.pool.used_bytes == used_bytes
        disk.disposal.try_again()
    disk.records.in_doubt = False
    disk.disposal.try_again()
    await disk.disposal.wait_idle()
    assert files(tmp_path) == []
    assert disk.pool.used_bytes == 0
    disk.close()
