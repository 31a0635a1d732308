"""What the disposal is asked for when a server has closed it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from flight_server.storage.durable_files import DurableFiles
from flight_server.storage.quarantine import DAMAGE_NAME, Quarantined
from tests.support.sealing import create, durable_node, manifests, publish, seal


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
