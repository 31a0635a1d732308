"""Offsets of a query over a dataset's partitions, on a real server, without Spark."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from flight_server.protocol import CreateRequest, Kind, PutCommand, SealRequest, WriteMode
from spark_client import ShuffleClient
from spark_client.datasource.batch_read import FlightReader, find
from spark_client.datasource.source_options import BATCH_READ, STREAM_READ, SourceOptions
from spark_client.datasource.stream_read import FlightStreamReader
from spark_client.lanes import PutStream
from tests.support.driver_datasets import write_dataset

STRUCT = StructType([StructField("id", LongType())])


def append(client: ShuffleClient, number: int) -> None:
    """One more partition."""
    server, batch = client._open(), pa.record_batch({"id": [number]})
    request = CreateRequest("d", Kind.SHUFFLE, mode=WriteMode.APPEND, write=uuid.uuid4().hex)
    generation = server.action("create", request.encode())["generation"]
    with PutStream(
        server, PutCommand("d", producer=0, attempt="1", generation=generation), batch.schema
    ) as put:
        put.write(batch, 0)
        put.commit()
    server.action("seal", SealRequest("d", generation, {0: "1"}).encode())


def reader(client: ShuffleClient, starting: str) -> FlightStreamReader:
    options = SourceOptions({"location": client.location, "path": "d", "starting": starting}, STREAM_READ)
    return FlightStreamReader.plan(options, find(client._open(), "d"), STRUCT)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_batch_that_is_repeated_by_another_run_has_the_same_rows(
    client: ShuffleClient, starting: str
) -> None:
    append(client, 0)
    query = reader(client, starting)
    start = query.initialOffset()
    append(client, 1)
    assert query.initialOffset() == start, "Spark asks again"
    end = query.latestOffset(start)
    first = query.partitions(start, end)
    assert len(first) == (2 if starting == "earliest" else 1)
    append(client, 2)
    again = reader(client, starting)
    assert again.partitions(again.initialOffset(), end) == first
    last = again.latestOffset(end)
    assert len(again.partitions(end, last)) == 1
    assert again.latestOffset(last) == last


def test_a_query_that_finds_nothing_new_at_first_reads_what_comes_once(client: ShuffleClient) -> None:
    """Also on Spark 4.1, which does not say where the last batch ended."""
    append(client, 0)
    query = reader(client, "latest")
    start = query.initialOffset()
    end = query.latestOffset(start)
    assert end["start"] == 1, "a batch of another run begins there, too"
    assert query.partitions(start, end) == []
    append(client, 1)
    for last in (query.latestOffset(end), query.latestOffset(), reader(client, "latest").latestOffset()):
        assert len(query.partitions(end, last)) == 1


def test_a_drivers_exchange_on_one_server_is_read_as_a_stream_and_without_its_empty_partitions(
    client: ShuffleClient,
) -> None:
    batch = pa.record_batch({"id": [7, 8]})
    write_dataset(client._owned(), "d", batch.schema, 3, {1: [batch]})
    source = find(client._open(), "d")
    stream = FlightStreamReader.plan(
        SourceOptions({"location": client.location, "path": "d", "starting": "earliest"}, STREAM_READ),
        source,
        STRUCT,
    )
    start = stream.initialOffset()
    shares = stream.partitions(start, stream.latestOffset(start))
    assert [row for share in shares for each in stream.read(share) for row in each.column(0).to_pylist()] == [
        7,
        8,
    ]
    options = SourceOptions({"location": client.location, "path": "d"}, BATCH_READ)
    shares = FlightReader.plan(options, source, STRUCT).partitions()
    assert len(shares) == 1
