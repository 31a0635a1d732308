"""What a put leaves on the server, and what it says when it fails, on both of its lanes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest, Kind, PutCommand
from flight_server.protocol.errors import FlightShuffleError, PartitionFailed
from spark_client import ShuffleClient
from spark_client.arrow.types import Declared
from spark_client.connection import LaneChoice, RemoteServer, Timeouts, Writing
from spark_client.jobs.placements import ByKeys
from spark_client.jobs.tasks import Destination, WriteTask
from spark_client.lanes.put_stream import PutStream, places_of
from spark_client.lanes.read_stream import StreamStalled
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
MEBIBYTE = 1 << 20
NOISE = pa.record_batch({"n": np.random.default_rng(0).integers(0, 1 << 62, MEBIBYTE // 8)})


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    """One server for the module: each test uses names of its own."""
    with ServerProcess.start(memory_limit="1GiB") as running:
        yield running
    assert running.events("internal_error") == []


@contextlib.contextmanager
def connected(location: str, lane: LaneChoice, **options: Any) -> Iterator[RemoteServer]:
    server = RemoteServer(location, writing=Writing(lane), **options)
    try:
        yield server
    finally:
        server.close()


def stream(
    server: RemoteServer, name: str, schema: pa.Schema, attempt: str = "1", **options: Any
) -> PutStream:
    return PutStream(server, PutCommand(name, producer=0, attempt=attempt), schema, **options)


def shuffle(server: RemoteServer, schema: pa.Schema, partitions: int) -> str:
    name = uuid.uuid4().hex
    server.action("create", CreateRequest(name, Kind.SHUFFLE, partitions=partitions).encode())
    return name


def write_forever(put: PutStream, partition: int | None = None) -> None:
    """Until it fails, long after every buffer on the way is full."""
    for _ in range(1_000):
        put.write(NOISE, partition)


def test_a_write_task_that_knows_the_places_needs_no_grpc(process: ServerProcess) -> None:
    batches = [pa.record_batch({"k": np.arange(start, start + 1_000)}) for start in range(0, 50_000, 1_000)]
    schema = batches[0].schema
    with connected(process.location, "auto") as server, connected("grpc://127.0.0.1:1", "auto") as blind:
        name, places = shuffle(server, schema, 4), places_of(server)
        generation = json.loads(server.flight_info(name).app_metadata)["generation"]
        task = WriteTask(name, 4, Declared("the exchange", schema), ByKeys(("k",), 4))
        destination = Destination(blind, generation, (blind.location,), places={blind.location: places})
        assert task.write(destination, iter(batches), 0, "7")["rows"] == 50_000
        server.action("seal", {"dataset": name, "attempts": {"0": "7"}})
        with ShuffleClient(process.location) as client:
            assert sorted(client.get(name).read_all()["k"].to_pylist()) == list(range(50_000))


@contextlib.contextmanager
def written(process: ServerProcess, budget_bytes: int) -> Iterator[Callable[[Iterator[Any]], dict[str, Any]]]:
    """Writes batches of a column ``k`` by a task to a shuffle of its own."""
    schema = pa.schema({"k": pa.int64()})
    with connected(process.location, "auto") as server:
        name = shuffle(server, schema, 4)
        generation = json.loads(server.flight_info(name).app_metadata)["generation"]
        task = WriteTask(
            name, 4, Declared("the exchange", schema), ByKeys(("k",), 4), budget_bytes=budget_bytes
        )
        destination = Destination(server, generation, (server.location,))
        yield lambda batches: task.write(destination, batches, 0, "7")


def test_a_task_that_computes_long_for_few_rows_has_no_silent_put_meanwhile(process: ServerProcess) -> None:
    puts: list[int] = []

    def computed(server: RemoteServer) -> Iterator[Any]:
        for start in range(0, 5_000, 1_000):
            puts.append(server.action("statistics")["puts"])
            yield pa.record_batch({"k": np.arange(start, start + 1_000)})

    with connected(process.location, "auto") as server, written(process, MEBIBYTE) as write:
        assert write(computed(server))["rows"] == 5_000
        assert server.action("statistics")["puts"] == puts[0] + 1
    assert len(set(puts)) == 1


# What goes wrong.


def test_a_server_that_has_no_room_for_long_is_an_error_that_says_so(flight_server_process: Start) -> None:
    process = flight_server_process(memory_limit="64MiB", disk_limit="16MiB", budget_deadline_seconds=300)
    with connected(process.location, "bulk", timeouts=Timeouts(stall_seconds=1)) as server:
        put = stream(server, "d", NOISE.schema)
        with pytest.raises(StreamStalled, match=r"no further for 1 s.*the server says it waits for:.*budget"):
            write_forever(put)
        # The server notices that the client has gone, although it was reading nothing.
        eventually(lambda: server.action("why", {"dataset": "d"})["waits"], [])


def test_a_connection_that_is_cut_anywhere_is_an_error_or_came_too_late(process: ServerProcess) -> None:
    def committed(cut_after_bytes: int | None) -> int:
        """Put through a proxy that is cut after so many bytes from the server; how many came back at all."""
        with Proxy.to(str(process.http)) as proxy, connected(process.location, "bulk") as server:
            name = shuffle(server, NOISE.schema, 1)
            if cut_after_bytes is not None:
                proxy.cut_after(cut_after_bytes)
            with stream(server, name, NOISE.schema, places=[f"{proxy.http}/v1/put"], once=True) as put:
                put.write(NOISE, 0)
                put.commit()
            assert server.action("seal", {"dataset": name, "attempts": {"0": "1"}})["rows"] == NOISE.num_rows
            return proxy.bytes_back

    whole = committed(None)
    for cut_after_bytes in range(1, whole, 7):
        with pytest.raises(FlightShuffleError):
            committed(cut_after_bytes)


# Cancelling.


async def test_cancelling_an_async_put_ends_it_while_the_server_takes_nothing(
    flight_server_process: Start,
) -> None:
    process = flight_server_process(memory_limit="64MiB", disk_limit="16MiB", budget_deadline_seconds=300)

    async def endless() -> AsyncIterator[pa.RecordBatch]:
        while True:
            yield NOISE

    with connected(process.location, "auto") as server:

        def waits() -> list[str]:
            return [wait["waiting_for"] for wait in server.action("why", {"dataset": "d"})["waits"]]

        with ShuffleClient(process.location, writing=Writing("bulk")) as client:
            task = asyncio.create_task(client.aput("d", endless()))
            try:
                await asyncio.to_thread(eventually, waits, ["budget"], 60)
            finally:
                task.cancel()
                await asyncio.wait([task])
            assert task.cancelled()
        await asyncio.to_thread(eventually, waits, [])
        with pytest.raises(PartitionFailed):
            server.flight_info("d")
