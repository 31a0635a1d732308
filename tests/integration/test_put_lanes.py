"""What a put leaves on the server, and what it says when it fails, on both of its lanes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest, Kind, PutCommand, Ticket
from flight_server.protocol.errors import FlightShuffleError, PartitionFailed, Unauthenticated
from spark_client import ShuffleClient
from spark_client.arrow.types import Declared
from spark_client.connection import RemoteServer, Timeouts, Writing
from spark_client.jobs.placements import ByKeys
from spark_client.jobs.tasks import WriteTask
from spark_client.lanes.partition_stream import StreamStalled
from spark_client.lanes.put_stream import PutStream, places_of
from tests.integration.round_trip.test_types import COLUMNS, celsius
from tests.support.certificates import self_signed
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess

__all__ = ["celsius"]

Start = Callable[..., ServerProcess]
Lane = Literal["auto", "grpc", "bulk"]
LANES: tuple[Lane, Lane] = ("grpc", "bulk")
both_lanes = pytest.mark.parametrize("lane", LANES)
MEBIBYTE = 1 << 20
NOISE = pa.record_batch({"n": np.random.default_rng(0).integers(0, 1 << 62, MEBIBYTE // 8)})


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    """One server for the module: each test uses names of its own."""
    with ServerProcess.start(memory_limit="1GiB") as running:
        yield running
    assert running.events("internal_error") == []


@pytest.fixture
def raw(process: ServerProcess) -> Iterator[RawFlight]:
    with RawFlight(process.location) as connected:
        yield connected


@contextlib.contextmanager
def connected(location: str, lane: Lane, **options: Any) -> Iterator[RemoteServer]:
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


def stored(raw: RawFlight, name: str, partition: int = 0) -> list[bytes]:
    """The messages of a partition, byte for byte, the schema's first."""
    return raw.get(Ticket(name, partition).encode())


# What is stored does not depend on the lane.


@both_lanes
@pytest.mark.parametrize("rows", [3, 300_000])
@pytest.mark.parametrize("how", ["put", "aput"])
async def test_an_iterable_may_fill_the_same_memory_again_and_again(
    process: ServerProcess, lane: Lane, rows: int, how: str
) -> None:
    numbers, words = np.empty(rows, np.int64), np.empty(1, np.int64)
    zeros = pa.array(np.zeros(rows, np.int32))

    def batches() -> Iterator[Any]:
        for number in range(8):
            numbers[:], words[:] = number, number
            yield pa.record_batch(
                {"n": pa.array(numbers), "d": pa.DictionaryArray.from_arrays(zeros, pa.array(words))}
            )
            numbers[:], words[:] = -1, -1

    async def async_batches() -> AsyncIterator[Any]:
        for batch in batches():
            yield batch

    name = uuid.uuid4().hex
    with ShuffleClient(process.location, writing=Writing(lane)) as client:
        if how == "put":
            await asyncio.to_thread(client.put, name, batches())
        else:
            await client.aput(name, async_batches())
        found = await asyncio.to_thread(client.get(name).read_all)
        await asyncio.to_thread(client.drop, name)
    expected = np.repeat(np.arange(8), rows)
    assert np.array_equal(found.column("n").to_numpy(), expected)
    assert np.array_equal(found.column("d").cast(pa.int64()).to_numpy(), expected)


def put_by_both(process: ServerProcess, raw: RawFlight, batches: list[pa.RecordBatch]) -> list[bytes]:
    found = []
    for lane in LANES:
        name = uuid.uuid4().hex
        with connected(process.location, lane) as server, stream(server, name, batches[0].schema) as put:
            for batch in batches:
                put.write(batch)
            put.commit()
        found.append(stored(raw, name))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("case", COLUMNS)
def test_each_type_is_stored_as_the_same_bytes(process: ServerProcess, raw: RawFlight, case: str) -> None:
    columns = COLUMNS[case]
    batch = pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(columns))])
    assert len(put_by_both(process, raw, [batch, batch.slice(1), batch.slice(0, 0), batch])) >= 5


@both_lanes
def test_an_attempt_reaches_its_partitions_whole_and_in_order(
    process: ServerProcess, raw: RawFlight, lane: Lane
) -> None:
    batches = [pa.record_batch({"n": np.arange(start, start + 100)}) for start in range(0, 100_000, 100)]
    with connected(process.location, lane) as server:
        name = shuffle(server, batches[0].schema, 7)
        with stream(server, name, batches[0].schema) as put:
            for number, batch in enumerate(batches):
                put.write(batch, number % 7)
            answer = put.commit()
        assert (answer["rows"], put.frames) == (100_000, 1_000)
        server.action("seal", {"dataset": name, "attempts": {"0": "1"}})
        assert server.flight_info(name).total_records == 100_000
        for partition in range(7):
            assert len(stored(raw, name, partition)) == 1 + len(batches[partition::7])


def test_a_write_task_that_knows_the_places_needs_no_grpc(process: ServerProcess) -> None:
    batches = [pa.record_batch({"k": np.arange(start, start + 1_000)}) for start in range(0, 50_000, 1_000)]
    schema = batches[0].schema
    with connected(process.location, "auto") as server, connected("grpc://127.0.0.1:1", "auto") as blind:
        name, places = shuffle(server, schema, 4), places_of(server)
        generation = json.loads(server.flight_info(name).app_metadata)["generation"]
        task = WriteTask(
            blind, name, generation, 4, Declared("the exchange", schema), ByKeys(("k",), 4), places=places
        )
        assert task.write(iter(batches), 0, "7")["rows"] == 50_000
        server.action("seal", {"dataset": name, "attempts": {"0": "7"}})
        with ShuffleClient(process.location) as client:
            assert sorted(client.get(name).read_all()["k"].to_pylist()) == list(range(50_000))


# What goes wrong.


@both_lanes
def test_a_server_that_is_killed_is_an_error_while_writing(flight_server_process: Start, lane: Lane) -> None:
    process = flight_server_process()
    with connected(process.location, lane) as server:
        put = stream(server, "d", NOISE.schema)
        put.write(NOISE)
        process.kill()
        with pytest.raises(FlightShuffleError), put:
            write_forever(put)


def test_a_server_that_has_no_room_for_long_is_an_error_that_says_so(flight_server_process: Start) -> None:
    process = flight_server_process(memory_limit="64MiB", disk_limit="16MiB", budget_deadline_seconds=300)
    with connected(process.location, "bulk", timeouts=Timeouts(stall_seconds=3)) as server:
        put = stream(server, "d", NOISE.schema)
        with pytest.raises(StreamStalled, match=r"no further for 3 s.*the server says it waits for:.*budget"):
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


def test_tls_and_token_guard_this_lane_too(flight_server_process: Start, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    process = flight_server_process(tls_cert=cert, tls_key=key, token="secret")
    certs = cert.read_bytes()
    small = pa.record_batch({"n": np.arange(100)})
    with connected(process.location, "bulk", token="secret", tls_root_certs=certs) as server:
        (place,) = places_of(server)
        assert place.startswith("https://")
        name = shuffle(server, NOISE.schema, 3)
        with stream(server, name, NOISE.schema) as put:
            for number in range(20):
                put.write(NOISE, number % 3)
                put.write(small, number % 3)
            assert put.commit()["rows"] == 20 * (NOISE.num_rows + 100)
        # Its error comes while it takes nothing more.
        put = stream(server, name, NOISE.schema, attempt="2")
        with pytest.raises(FlightShuffleError, match="partition 9, but there are partitions 0 to 2"):
            write_forever(put, 9)
    with connected(process.location, "bulk", token="wrong", tls_root_certs=certs) as server:
        with pytest.raises(Unauthenticated):
            stream(server, "d", NOISE.schema, places=[place])
        with pytest.raises(Unauthenticated):
            stream(server, "d", NOISE.schema)
    # A server that the system's certificates do not cover is refused.
    with (
        connected(process.location, "bulk", token="secret") as server,
        pytest.raises(FlightShuffleError, match="certificate"),
    ):
        stream(server, "d", NOISE.schema, places=[place])


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
