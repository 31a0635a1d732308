"""The bulk lane of a real server: what it answers, to our own reader and to those of others."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import flight

from tests.support.bulk import RawGet, get, head_of
from tests.support.durable import action, put, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", "/").replace("]", "")


def url_of(server: ServerProcess, name: str, partition: int | None = 0, query: str = "") -> str:
    part = "" if partition is None else f"/partitions/{partition}"
    return f"{server.http}/v1/datasets/{name}{part}{query}"


def numbers(start: int, rows: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})


def shuffle(client: flight.FlightClient, name: str, partitions: int, parts: list[tuple[int, int]]) -> None:
    """A sealed shuffle: ``parts`` are partition and first number of each batch."""
    action(client, "create", dataset=name, kind="shuffle", partitions=partitions, producers=1)
    command = json.dumps({"dataset": name, "producer": 0, "attempt": "1"})
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), numbers(0).schema)
    with writer:
        for partition, start in parts:
            writer.write_with_metadata(numbers(start), b"%d" % partition)
        total = {"commit": {"rows": 10 * len(parts), "frames": len(parts)}}
        writer.write_metadata(json.dumps(total).encode())


def test_a_partition_is_one_arrow_stream_with_its_totals_at_the_end(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    put(client, table(1000), dataset=name)
    answer = get(url_of(server, name))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert "content-length" not in answer.headers
    assert answer.table() == table(1000)
    totals = {"x-flight-shuffle-rows": "1000", "x-flight-shuffle-frames": "10", "x-flight-shuffle-from": "0"}
    assert totals.items() <= answer.trailers.items()
    assert answer.trailers.items() <= answer.headers.items()  # it was sealed, so they were known before
    assert answer.headers["trailer"].split(", ") == list(answer.trailers)


def test_frames_of_zero_rows_and_columns_come_through(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    nothing = pa.record_batch({})
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), nothing.schema)
    with writer:
        writer.write_batch(nothing)
        writer.write_batch(nothing)
    assert pa.ipc.open_stream(get(url_of(server, name)).body).read_all().schema == nothing.schema
    assert get(url_of(server, name)).trailers["x-flight-shuffle-frames"] == "2"


def test_a_reader_gets_schema_and_frames_while_they_are_produced(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), numbers(0).schema)
    eventually(lambda: head_of(url_of(server, name)).status, 200)
    with writer, urllib.request.urlopen(url_of(server, name), timeout=30) as answer:
        assert answer.headers["x-flight-shuffle-sealed"] == "false"
        reader = pa.ipc.open_stream(answer)
        assert reader.schema == numbers(0).schema
        for start in (0, 10, 20):
            writer.write_batch(numbers(start))
            assert reader.read_next_batch() == numbers(start)
        with RawGet(url_of(server, name)) as late:
            writer.close()
            assert late.answer().table()["n"].to_pylist() == list(range(30))
        with pytest.raises(StopIteration):
            reader.read_next_batch()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_the_producer_compressed_passes_through_and_nothing_else_is_compressed(
    server: ServerProcess, client: flight.FlightClient, name: str, codec: str
) -> None:
    zeros = pa.record_batch({"n": pa.array(np.zeros(100_000, np.int64))})
    plain, options = zeros.nbytes, pa.ipc.IpcWriteOptions(compression=codec)
    for each, given in ((f"{name}/packed", options), (f"{name}/plain", None)):
        writer, _ = client.do_put(
            flight.FlightDescriptor.for_path(each),
            zeros.schema,
            flight.FlightCallOptions(write_options=given),
        )
        with writer:
            writer.write_batch(zeros)
    packed = get(url_of(server, f"{name}/packed"), **{"Accept-Encoding": "gzip, deflate, br, zstd"})
    assert packed.table() == pa.Table.from_batches([zeros])
    assert len(packed.body) < plain / 10
    answer = get(url_of(server, f"{name}/plain"), **{"Accept-Encoding": "gzip, deflate, br, zstd"})
    assert "content-encoding" not in answer.headers
    assert len(answer.body) > plain


@pytest.mark.parametrize(
    "dataset", ["a", "a/b/c", "v1.2/x-y_z", "x/partitions/y", "x/partitions/y/partitions/z", "day=7:a"]
)
def test_every_legal_name_can_be_read(
    server: ServerProcess, client: flight.FlightClient, name: str, dataset: str
) -> None:
    dataset = f"legal/{dataset}"
    put(client, table(10), dataset=dataset)
    assert get(url_of(server, dataset)).table() == table(10)
    escaped = dataset.replace("/", "%2F")
    assert get(url_of(server, escaped)).table() == table(10)
    assert get(url_of(server, escaped, partition=None)).table() == table(10)


def test_a_whole_dataset_is_each_row_once(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    shuffle(client, name, 5, [(3, 0), (1, 10), (3, 20), (0, 30), (1, 40)])
    answer = get(url_of(server, name, partition=None))
    assert sorted(answer.table()["n"].to_pylist()) == list(range(50))
    assert answer.trailers == {"x-flight-shuffle-rows": "50", "x-flight-shuffle-frames": "5"}
    one_by_one = [get(url_of(server, name, partition=index)).table() for index in range(5)]
    assert pa.concat_tables(one_by_one) == answer.table()


def test_a_shuffle_answers_when_it_is_sealed(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    action(client, "create", dataset=name, kind="shuffle", partitions=2)
    with RawGet(url_of(server, name, partition=None)) as early:
        eventually(lambda: len(get(f"{server.http}/v1/why?dataset={name}").json()["waits"]), 1)
        command = json.dumps({"dataset": name, "producer": 0, "attempt": "1"})
        writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), numbers(0).schema)
        with writer:
            writer.write_with_metadata(numbers(0), b"1")
            writer.write_metadata(json.dumps({"commit": {"rows": 10, "frames": 1}}).encode())
        assert head_of(url_of(server, name)).headers["x-flight-shuffle-sealed"] == "false"
        action(client, "seal", dataset=name)
        assert early.answer().table()["n"].to_pylist() == list(range(10))


def test_head_says_what_is_known_and_sends_nothing(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), numbers(0).schema)
    with writer:
        writer.write_batch(numbers(0))
        eventually(lambda: head_of(url_of(server, name)).status, 200)
        filling = head_of(url_of(server, name)).headers
        assert filling["x-flight-shuffle-sealed"] == "false"
        assert "x-flight-shuffle-rows" not in filling
    for partition in (0, None):
        with RawGet(url_of(server, name, partition), method="HEAD") as raw:
            status, headers = raw.head()
            assert status == 200
            assert headers["content-type"] == "application/vnd.apache.arrow.stream"
            assert headers["x-flight-shuffle-sealed"] == "true"
            assert headers["x-flight-shuffle-rows"] == "10"
            assert "transfer-encoding" not in headers
            raw.ask(url_of(server, name))  # nothing of a body came before the next answer
            assert (
                raw.answer().headers["x-flight-shuffle-generation"] == headers["x-flight-shuffle-generation"]
            )


def test_one_connection_reads_one_partition_after_the_other(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    put(client, table(100), dataset=name)
    with RawGet(url_of(server, name)) as raw:
        for _ in range(3):
            assert raw.answer().table() == table(100)
            raw.ask(f"{server.http}/nowhere")
            assert raw.answer().status == 404
            raw.ask(url_of(server, name))
        assert raw.answer().table() == table(100)


def test_small_frames_go_out_together_and_are_encoded_once(
    server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    before = get(f"{server.http}/v1/statistics").json()
    put(client, table(20_000), chunk_rows=10, dataset=name)
    for _ in range(3):
        with RawGet(url_of(server, name)) as raw:
            assert raw.answer().trailers["x-flight-shuffle-frames"] == "2000"
            assert raw.chunk_count <= 8  # schema, end, and about a mebibyte in each of the others
    after = get(f"{server.http}/v1/statistics").json()
    assert after["encodes"] - before["encodes"] == 2000
    assert after["frames_out"] - before["frames_out"] == 6000


def test_a_source_is_pulled_by_its_first_reader_and_by_no_head(
    flight_server_process: Start, tmp_path: Path
) -> None:
    pq.write_table(table(100).select(["number"]), tmp_path / "numbers.parquet")
    server = flight_server_process(source_roots=tmp_path)
    with flight.connect(server.location) as client:
        source = {"format": "parquet", "path": str(tmp_path / "numbers.parquet")}
        action(client, "create", dataset="d", kind="source", source=source)
        assert head_of(url_of(server, "d")).headers["x-flight-shuffle-sealed"] == "false"
        assert action(client, "statistics")["pulls"] == 0
        for partition in (0, None, 0):
            assert get(url_of(server, "d", partition)).table()["number"].to_pylist() == list(range(100))
        assert action(client, "statistics")["pulls"] == 1
