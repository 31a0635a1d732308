"""A staged write that is dropped while its rows become a version of a changelog."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from flight_server.kinds.changelog.writes import ChangelogWrite
from flight_server.kinds.seals import seal
from flight_server.protocol import CreateRequest, Kind, NotFound, SealRequest, WriteMode
from tests.support.sealing import SCHEMA, durable_node

TEXT = base64.b64encode(SCHEMA.schema.serialize().to_pybytes()).decode()


async def test_a_drop_during_the_commit_waits_for_the_version_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on, commit = asyncio.Event(), asyncio.Event(), ChangelogWrite.commit

    async def held(write: ChangelogWrite, transaction: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await commit(write, transaction)

    monkeypatch.setattr(ChangelogWrite, "commit", held)
    async with durable_node(tmp_path) as node:
        await node.changelogs.create(CreateRequest("d", Kind.CHANGELOG, schema=TEXT), SCHEMA)
        request = CreateRequest("d", Kind.SHUFFLE, mode=WriteMode.APPEND, write="w")
        staged, _ = node.catalogue.stage(request, SCHEMA)
        wanted = SealRequest("d", staged.generation, {})
        sealing = asyncio.ensure_future(seal(node.durability, staged, wanted))
        await reached.wait()
        dropping = asyncio.ensure_future(node.catalogue.remove("d", staged.generation, staged=True))
        await asyncio.sleep(0.01)
        assert not dropping.done()
        go_on.set()
        assert (await sealing).version == 1
        with pytest.raises(NotFound):
            await dropping
        await node.background.stop()
        await asyncio.to_thread(node.changelogs.close)
        await node.catalogue.remove("d")
