"""A crowd of pyarrow's clients that reads one dataset at once: all get all of it, and all get it together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from flight_server import config
from flight_server.server import Server
from tests.load.crowd import CrowdProcess, Read, put, read
from tests.support.server_process import ServerProcess

MIB = 1 << 20
BATCHES = 64
PROCESSES = 3
READERS_OF_EACH = 50
MEMORY_LIMIT_BYTES = 128 * MIB
CONSTANT_BYTES = 150 * MIB  # what deploy/README.md says, and what these readers' own objects take
# gRPC's own limit, which this server lifts, is 30 s.
BUSY_SECONDS = 31.5
EARLY_READERS = 4


@pytest.mark.load(seconds=8)
def test_every_reader_of_a_crowd_begins_before_the_others_have_ended(
    flight_server_process: Callable[..., ServerProcess],
) -> None:
    server = flight_server_process(memory_limit=MEMORY_LIMIT_BYTES)
    put(server.location, BATCHES)
    reads: list[Read] = []
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(CrowdProcess(server.location, "d", READERS_OF_EACH)) for _ in range(PROCESSES)
        ]
        for process in crowd:
            process.wait_until_ready()
        for process in crowd:
            process.begin()
        for process in crowd:
            reads += process.reads()

    assert {(each.batches, each.error) for each in reads} == {(BATCHES, None)}
    last_began = max(each.began or 0.0 for each in reads)
    ended_before = sum(each.ended < last_began for each in reads)
    assert ended_before < len(reads) / 2
    assert server.peak_rss_bytes() <= MEMORY_LIMIT_BYTES + CONSTANT_BYTES
    assert server.events("internal_error") == []


@pytest.mark.long
@pytest.mark.load(seconds=32)
async def test_calls_that_come_while_the_server_is_busy_for_long_are_answered() -> None:
    chosen = config.load({"port": 0, "http_port": -1, "memory_limit": 64 * MIB})
    async with Server(chosen) as server:
        await asyncio.to_thread(put, server.location, 1)
        with ThreadPoolExecutor(EARLY_READERS) as threads:
            early = [threads.submit(read, server.location, "d") for _ in range(EARLY_READERS)]
            # The loop stands still while gRPC's own threads take the calls in: this is the case under test.
            time.sleep(BUSY_SECONDS)  # noqa: ASYNC251
            reads = [await asyncio.wrap_future(each) for each in early]
    assert [(each.batches, each.error) for each in reads] == [(1, None)] * EARLY_READERS
