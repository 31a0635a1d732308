"""What the disposal does in its thread, when a server has closed it, and when the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from concurrent.futures.thread import _global_shutdown_lock
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flight_server.memory import MemoryPool
from flight_server.protocol import CreateRequest
from flight_server.storage import Disk, Disposal
from flight_server.storage.durable_files import DurableFiles
from flight_server.storage.quarantine import DAMAGE_NAME, Quarantined
from tests.support.sealing import SCHEMA, create, durable_node, manifests, publish, seal

DEADLINE_SECONDS = 20.0


async def test_files_are_forgotten_and_damage_noted_also_when_it_is_closed(tmp_path: Path) -> None:
    async with durable_node(tmp_path) as node:
        dataset = create(node)
        publish(node, dataset, 0, [b"x"])
        await node.durability.persist(dataset, [0], lambda: seal(dataset, 0))
        files, disposal = dataset.files, node.catalogue.disk.disposal
        assert files is not None
        disposal.close()
        disposal.damaged(
            files, Quarantined.now("d", dataset.generation, files.directory, "a bit has flipped")
        )
        assert (files.directory / DAMAGE_NAME).is_file()
        files.leaving = "dropped"
        node.catalogue.forget(dataset)
        await disposal.settled()
        assert manifests(tmp_path) == []
        assert disposal.quarantine == []


async def test_a_seal_that_is_cut_off_when_it_is_closed_leaves_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, closed = asyncio.Event(), threading.Event()
    loop, commit = asyncio.get_running_loop(), DurableFiles.commit

    def committing(*arguments: object) -> None:
        commit(*arguments)  # type: ignore[arg-type]  # as given
        loop.call_soon_threadsafe(written.set)
        closed.wait()

    monkeypatch.setattr(DurableFiles, "commit", committing)
    async with durable_node(tmp_path) as node:
        dataset = create(node)
        publish(node, dataset, 0, [b"x"])
        sealing = asyncio.ensure_future(node.durability.persist(dataset, [0], lambda: seal(dataset, 0)))
        await written.wait()
        assert manifests(tmp_path)
        sealing.cancel()
        node.catalogue.disk.disposal.close()
        closed.set()
        await asyncio.wait([sealing])
        assert sealing.cancelled()
        assert manifests(tmp_path) == []


def test_a_segment_that_is_collected_while_its_thread_submits_to_an_executor_is_deleted(
    tmp_path: Path,
) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    writer = disk.writer("d", "g")
    assert writer is not None

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
    assert not list(tmp_path.rglob("segment-*"))
    assert disk.pool.used_bytes == 0


def test_the_thread_ends_with_the_last_reference_also_when_it_was_not_closed(tmp_path: Path) -> None:
    disk = Disk(MemoryPool(None), tmp_path)
    (thread,) = (each for each in threading.enumerate() if each.name == "flight-server-disposal")
    slices = disk.writer("d", "g").append([b"x"])  # type: ignore[union-attr]  # it has a directory
    disk.records.close()  # type: ignore[union-attr]
    del disk
    assert thread.is_alive(), "the segment has a use for it"
    del slices
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert not list(tmp_path.rglob("segment-*"))


async def test_work_that_fails_is_logged_and_the_next_is_done(tmp_path: Path) -> None:
    disposal = Disposal()
    path = tmp_path / "segment-000001"
    path.write_bytes(b"")
    disposal.dispose(-1, None, MemoryPool(None).empty())
    disposal.dispose(os.open(path, os.O_RDONLY), path, MemoryPool(None).empty())
    await disposal.settled()
    assert not path.exists()
    disposal.close()


async def test_a_disk_that_refuses_is_logged_once_for_each_dataset_and_one_of_them_is_tried_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Path] = []

    def refuse(path: Path, **_: object) -> None:
        tries.append(Path(path).parent)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async with durable_node(tmp_path) as node:
        disposal = node.catalogue.disk.disposal
        datasets = []
        for name in ("a", "b", "c"):
            dataset, _ = node.catalogue.create(CreateRequest(name, durable=True), SCHEMA)
            publish(node, dataset, 0, [b"x"])
            await node.durability.persist(dataset, [0], partial(seal, dataset, 0))
            datasets.append(dataset)
        with capture_logs() as log, monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuse)
            for dataset in datasets:
                node.catalogue.forget(dataset)
            await disposal.settled()
            assert [disposal.may_come_back(name) for name in ("a", "b", "c", "d")] == [
                True,
                True,
                True,
                False,
            ]
            tries.clear()
            for _ in range(6):
                disposal.forget_again()
                await disposal.settled()
            wanted = [dataset.files.directory for dataset in datasets if dataset.files is not None]
            assert tries == wanted * 2, "in turn"
        assert len([each for each in log if each["event"] == "files_not_forgotten"]) == 3
        disposal.forget_again()
        await disposal.settled()
        assert manifests(tmp_path) == []
        assert not disposal.may_come_back("a")
