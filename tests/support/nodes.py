"""A server's node without its lanes, for tests of what is below them, and the reader that they would be.

It spills, pulls and accounts as in a server; there are no ports, no housekeeping and no leases that end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.config import Settings
from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.frames.message import Frame
from flight_server.memory.accounts import Budget
from flight_server.node import Node
from flight_server.protocol import ipc_framing, wire
from flight_server.storage.disk import Disk
from flight_server.tiering.readback import Reader
from flight_server.transfer import FrameRange

PATIENCE_SECONDS = 30.0


@asynccontextmanager
async def running_node(directory: Path, **settings: Any) -> AsyncIterator[Node]:
    """A node with ``settings``; its spilled frames are below ``directory``. At the end everything is released."""
    chosen = Settings(**{"memory_limit": 256 << 20, "budget_deadline_seconds": PATIENCE_SECONDS, **settings})
    budget = Budget(int(chosen.memory_limit), None if chosen.disk_limit is None else int(chosen.disk_limit))
    catalogue = Catalogue(
        budget, Disk(budget.disk, directory / "spilled", segment_bytes=int(chosen.segment_size))
    )
    node = Node(chosen, catalogue)
    spiller = asyncio.get_running_loop().create_task(node.spiller.run())
    try:
        yield node
    finally:
        spiller.cancel()
        await asyncio.wait([spiller])
        await node.background.stop()
        await asyncio.to_thread(catalogue.close)


async def read_messages(
    node: Node, dataset: Dataset, index: int = 0, start: int = 0, *, at_most: int | None = None
) -> list[bytes]:
    """What a reader is sent after the schema: dictionaries and frames from frame ``start`` on.

    ``at_most`` frames, after which the reader leaves; None reads to the end.
    """
    taken: list[bytes] = []
    frames = 0
    reader = Reader(dataset.name, index, "test")
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        aclosing(node.reads.read(dataset, reader, FrameRange(start))) as runs,
    ):
        async for run in runs:
            taken += [outgoing.data for outgoing in run]
            frames += sum(isinstance(outgoing.message, Frame) for outgoing in run)
            if frames == at_most:
                return taken
    return taken


async def read_table(node: Node, dataset: Dataset, index: int = 0, start: int = 0) -> pa.Table:
    """The rows that a reader gets, decoded by Arrow's own stream reader."""
    return decoded(dataset, await read_messages(node, dataset, index, start))


def decoded(dataset: Dataset, messages: list[bytes]) -> pa.Table:
    """The rows in messages that follow the dataset's schema."""
    assert dataset.schema is not None
    parts: list[bytes | memoryview] = [ipc_framing.encapsulate(dataset.schema.header)]
    for message in messages:
        located = wire.locate(message)
        parts += (ipc_framing.encapsulate(located.header), located.body)
    return pa.ipc.open_stream(b"".join([*parts, ipc_framing.END_OF_STREAM])).read_all()
