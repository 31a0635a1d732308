"""What a producer compresses: rows, stored bytes, and other readers, on both lanes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any, Literal
from urllib.request import urlopen

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import CreateRequest, Kind, SealRequest
from spark_client import ShuffleClient
from spark_client.arrow.types import Declared
from spark_client.connection import Compression, Reading, RemoteServer, Writing
from spark_client.jobs.placements import InTurn
from spark_client.jobs.tasks import Destination, WriteTask
from spark_client.lanes import messages
from tests.integration.round_trip.test_types import COLUMNS, celsius
from tests.support.server_process import ServerProcess

__all__ = ["celsius"]

Lane = Literal["grpc", "bulk"]
# What is compressed does not depend on the lane.
each_pair = pytest.mark.parametrize(
    ("lane", "how"), [("grpc", "auto"), ("bulk", "auto"), ("bulk", "zstd"), ("grpc", None)]
)
ROWS = 50_000
TEXT = pa.record_batch({"t": pa.array([f"the same words again, {row % 10}" for row in range(ROWS)])})
FLOATS = pa.record_batch({"f": np.random.default_rng(0).random(4 * ROWS, np.float32)})
PARTITIONS = 3


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess.start(memory_limit="512MiB") as running:
        yield running
    assert running.events("internal_error") == []


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server counts as one on another host."""
    monkeypatch.setattr(messages, "MOST_ON_THIS_HOST", messages.MOST)


@pytest.fixture
def all_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` compresses every put, also of what does not shrink."""
    monkeypatch.setattr(messages, "LEAST_BYTES", 1)
    monkeypatch.setattr(messages, "MOST_ON_THIS_HOST", 1_000.0)


def stored_bytes(client: ShuffleClient, name: str) -> int:
    return sum(each["bytes"] for each in client.statistics(name)["datasets"][name]["partitions"].values())


@pytest.mark.usefixtures("all_buffers")
@pytest.mark.parametrize(("lane", "how"), [("grpc", "lz4"), ("bulk", "auto")])
@pytest.mark.parametrize("case", COLUMNS)
def test_every_type_comes_back_as_it_was_put(
    process: ServerProcess,
    name: str,
    lane: Lane,
    how: Compression,
    case: str,
) -> None:
    columns = COLUMNS[case]
    batch = pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(columns))])
    batches = [batch, batch.slice(1), batch.slice(0, 0), batch]
    with ShuffleClient(process.location, writing=Writing(lane), reading=Reading(lane)) as client:
        client.put(name, batches, compression=how)
        found = client.get(name).read_all()
        client.drop(name)
    assert found.schema == batch.schema
    assert found.to_pylist() == pa.Table.from_batches(batches).to_pylist()


@pytest.mark.usefixtures("far")
@each_pair
def test_the_server_stores_what_the_producer_compressed(
    process: ServerProcess, name: str, lane: Lane, how: Compression
) -> None:
    with ShuffleClient(process.location, writing=Writing(lane)) as client:
        assert asyncio.run(client.aput(name, [TEXT] * 4, compression=how)) == 4 * ROWS
        assert 0 < stored_bytes(client, name) < (1.1 if how is None else 0.2) * 4 * TEXT.nbytes
        if how is None:
            assert stored_bytes(client, name) > 4 * TEXT.nbytes
        assert client.get(name).read_all() == pa.Table.from_batches([TEXT] * 4)
        client.drop(name)


@pytest.mark.usefixtures("far")
def test_a_put_that_begins_with_few_rows_is_compressed_from_its_first_large_batch_on(
    process: ServerProcess, name: str
) -> None:
    rows = pa.record_batch([TEXT["t"], TEXT["t"].dictionary_encode()], ["t", "word"])
    batches = [rows.take(pa.array([0, 1])), rows, rows.take(pa.array([2])), rows]
    with ShuffleClient(process.location, writing=Writing("bulk")) as client:
        client.put(name, batches, compression="auto")
        assert stored_bytes(client, name) < 0.2 * 2 * rows.nbytes
        assert client.get(name).read_all().to_pylist() == pa.Table.from_batches(batches).to_pylist()
        client.drop(name)


@pytest.mark.usefixtures("far")
@each_pair
def test_an_exchange_compresses_as_its_client_was_told(
    process: ServerProcess, name: str, lane: Lane, how: Compression
) -> None:
    rows = pa.record_batch([*TEXT.columns, FLOATS.column(0)[:ROWS]], ["t", "f"])
    server = RemoteServer(process.location, writing=Writing(lane, compression=how))
    try:
        created = server.action("create", CreateRequest(name, Kind.SHUFFLE, partitions=PARTITIONS).encode())
        generation = created["generation"]
        placement = InTurn(PARTITIONS)
        task = WriteTask(name, PARTITIONS, Declared("rows", rows.schema), placement)
        answer = task.write(Destination(server, generation, (server.location,)), iter([rows] * 4), 0, "a")
        totals = server.action("seal", SealRequest(name, generation, {0: "a"}).encode())
    finally:
        server.close()
    assert answer["bytes"] == totals["bytes"]
    floats_bytes = 4 * 4 * ROWS
    assert answer["bytes"] > floats_bytes
    if how is None:
        assert answer["bytes"] > 4 * rows.nbytes
    else:
        assert answer["bytes"] < floats_bytes + 0.4 * 4 * TEXT.nbytes
    with ShuffleClient(process.location) as client:
        found = client.get(name).read_all()
        client.drop(name)
    key = [("t", "ascending"), ("f", "ascending")]
    assert found.sort_by(key) == pa.Table.from_batches([rows] * 4).sort_by(key).combine_chunks()


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(("lane", "how"), [("grpc", "auto"), ("bulk", "zstd")])
def test_other_readers_read_it(process: ServerProcess, name: str, lane: Lane, how: Compression) -> None:
    expected = pa.Table.from_batches([TEXT, TEXT])
    with ShuffleClient(process.location, writing=Writing(lane)) as client:
        client.put(name, expected, compression=how)
        with flight.connect(process.location) as other:
            assert other.do_get(flight.Ticket(name.encode())).read_all() == expected
        url = f"{process.http}/v1/datasets/{name}"
        other_table: Any = pa.ipc.open_stream(urlopen(url)).read_all()
        assert other_table == expected
        found: Any = duckdb.sql("select count(distinct t) from other_table")
        assert found.fetchall() == [(10,)]
        assert pl.read_ipc_stream(url).to_arrow().cast(expected.schema) == expected
        client.drop(name)
