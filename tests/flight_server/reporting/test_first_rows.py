"""The first rows of a dataset, as the dashboard shows them: what they are, and what they cost others."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from pyarrow import flight

from flight_server.datasets import Dataset
from flight_server.frames import SchemaMessage
from flight_server.frames.message import stored_checksums
from flight_server.node import Node
from flight_server.protocol import CreateRequest, wire
from flight_server.reporting import first_rows as module
from flight_server.reporting.first_rows import first_rows, text_of
from tests.support import changelogs
from tests.support.bulk import RawGet, get
from tests.support.durable import action, put, put_attempt, table
from tests.support.durable import get as read
from tests.support.frames import frame, on_disk
from tests.support.nodes import running_node
from tests.support.polling import eventually
from tests.support.rates import LATEST, RATES, rates_of
from tests.support.server_process import ServerProcess

LIMIT_BYTES = 8 << 20
NESTED = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])


def ask(server: ServerProcess, dataset: str, **query: str) -> Any:
    return get(f"{server.http}/v1/rows?{urlencode({'dataset': dataset, **query})}").json()


def statistics(client: flight.FlightClient, dataset: str) -> Any:
    return action(client, "statistics", dataset=dataset)["datasets"][dataset]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, pa.string(), None),
        (5, pa.int8(), "5"),
        (True, pa.bool_(), "true"),
        (1.5, pa.float32(), "1.5"),
        (dt.date(2024, 2, 29), pa.date32(), "2024-02-29"),
        (1, pa.timestamp("ns"), "1970-01-01 00:00:00.000000001"),
        (1, pa.timestamp("us", "Nowhere/None"), "1"),
        ((1, 2, 3), pa.month_day_nano_interval(), "MonthDayNano(months=1, days=2, nanoseco…"),
        ("a\nb", pa.string(), "a\nb"),
        ("é" * 500, pa.large_string(), "é" * 39 + "…"),
        ("x" * (10 << 20), pa.string_view(), "x" * 39 + "…"),
        (b"\x00\xff", pa.binary(), "2 bytes: 00ff"),
        (bytes(1 << 20), pa.large_binary(), "1,048,576 bytes: " + "0" * 22 + "…"),
        (b"abc", pa.binary(3), "3 bytes: 616263"),
        ({"a": 1, "b": ["x", None]}, NESTED, '{a: 1, b: ["x", null]}'),
        ({"a": None, "b": None}, NESTED, "{a: null, b: null}"),
        ([], pa.list_(pa.int64()), "[]"),
        ([1, 2], pa.list_(pa.int64(), 2), "[1, 2]"),
        (list(range(1 << 20)), pa.large_list(pa.int32()), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …"),
        ([("k", 1)], pa.map_(pa.string(), pa.int64()), '{"k": 1}'),
    ],
)
def test_a_value_is_shown_as_a_text_that_is_cut(value: Any, kind: pa.DataType, text: str | None) -> None:
    assert text_of(pa.scalar(value, kind), 40) == text


def test_values_behind_other_ones_are_shown_as_themselves() -> None:
    encoded = pa.array(["a", None, "a"]).dictionary_encode()
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["run"]))
    identity = pa.array([bytes(16)], pa.uuid())
    shown = [text_of(each, 40) for array in (encoded, union, runs, identity) for each in array]
    assert shown == ["a", None, "a", "1", "y", "run", "run", f"16 bytes: {bytes(16).hex()}"[:39] + "…"]


def test_the_columns_and_the_first_rows_are_shown(server: ServerProcess, client: flight.FlightClient) -> None:
    data = table(1000).append_column("nested", pa.array([{"a": n, "b": ["x"]} for n in range(1000)], NESTED))
    put(client, data, dataset="shown")
    answer = ask(server, "shown")
    assert answer["columns"][0] == {"name": "number", "type": "int64", "nullable": True}
    assert [each["type"] for each in answer["columns"]][2:] == [
        "dictionary<values=string, indices=int32, ordered=0>",
        "struct<a: int64, b: list<item: string>>",
    ]
    assert answer["rows"] == [[str(n), f"row {n}", f"0-{n % 3}", f'{{a: {n}, b: ["x"]}}'] for n in range(20)]
    assert (answer["column_count"], answer["partition"], answer["note"]) == (4, 0, None)
    assert answer["generation"] == statistics(client, "shown")["generation"]
    assert ask(server, "shown", generation="0" * 16)["error"] == "stale_ticket"


def test_of_a_large_partition_only_the_first_frame_is_read(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, pa.table({"x": ["v" * 1000] * 20_000}), dataset="large", chunk_rows=1000)
    before = action(client, "statistics")["frames_out"]
    answer = ask(server, "large")
    assert answer["rows"] == [["v" * 99 + "…"]] * 20
    assert action(client, "statistics")["frames_out"] == before + 1


def test_rows_of_small_frames_are_put_together(server: ServerProcess, client: flight.FlightClient) -> None:
    put(client, table(9), dataset="small", chunk_rows=2)
    assert [row[0] for row in ask(server, "small")["rows"]] == [str(n) for n in range(9)]


def test_of_many_wide_columns_the_answer_is_small(server: ServerProcess, client: flight.FlightClient) -> None:
    wide = pa.table({f"column {n} " + "n" * 400: ["v" * 200] * 30 for n in range(600)})
    put(client, wide, dataset="wide")
    answer = ask(server, "wide")
    assert (answer["column_count"], len(answer["columns"]), len(answer["rows"])) == (600, 500, 20)
    assert {len(row) for row in answer["rows"]} == {50}
    assert len(json.dumps(answer["rows"])) < 32_000
    assert {len(each["name"]) for each in answer["columns"]} == {200}


def test_compressed_rows_are_shown(server: ServerProcess, client: flight.FlightClient) -> None:
    options = flight.FlightCallOptions(timeout=60, write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    data = pa.table({"x": [7] * 100_000})
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("compressed"), data.schema, options)
    with writer:
        writer.write_table(data)
    assert ask(server, "compressed")["rows"] == [["7"]] * 20


def test_a_dataset_that_is_being_written_shows_what_there_is_and_is_not_waited_for(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    action(client, "create", dataset="awaited")
    assert ask(server, "awaited")["note"] == "no producer has sent its schema yet"
    batch = table(3).to_batches()[0]
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("filling"), batch.schema)
    eventually(lambda: ask(server, "filling").get("note"), "no reader would get a row yet")
    writer.write_batch(batch)
    eventually(lambda: [row[0] for row in ask(server, "filling")["rows"]], ["0", "1", "2"])
    writer.close()
    assert action(client, "why", dataset="filling")["waits"] == []


def test_a_shuffle_shows_the_first_partition_with_rows_when_it_is_sealed(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    action(client, "create", dataset="shuffled", kind="shuffle", partitions=4)
    put_attempt(client, "shuffled", {3: table(5, 30), 2: table(5, 20)})
    assert ask(server, "shuffled")["rows"] == []
    action(client, "seal", dataset="shuffled")
    answer = ask(server, "shuffled")
    assert (answer["partition"], answer["rows"][0][0]) == (2, "20")


def test_rows_on_disk_are_shown_after_a_restart(tmp_path: Path) -> None:
    with ServerProcess.start(memory_limit="64MiB", data_dir=tmp_path) as server:
        with flight.connect(server.location) as client:
            action(client, "create", dataset="kept", durable=True)
            put(client, table(500), dataset="kept")
            changelogs.create(client, "log", RATES, keep=LATEST)
            changelogs.put(client, "log", rates_of(("EUR", 1, 1.0), ("USD", 1, 2.0)))
        again = server.restart(memory_limit="64MiB", data_dir=tmp_path)
    with again:
        assert [row[0] for row in ask(again, "kept")["rows"]] == [str(n) for n in range(20)]
        assert sorted(row[0] for row in ask(again, "log")["rows"]) == ["EUR", "USD"]


def test_a_changelog_shows_rows_of_its_newest_version(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    changelogs.create(client, "log", RATES, keep=LATEST, delay_seconds=3600)
    assert ask(server, "log")["note"] == "no reader would get a row yet"
    for time in (1, 2):
        changelogs.put(client, "log", rates_of(("EUR", time, time / 2), ("USD", time, 9.0)))
    answer = ask(server, "log")
    assert sorted(answer["rows"]) == [["EUR", "2", "1"], ["USD", "2", "9"]]
    assert answer["columns"][2] == {"name": "rate", "type": "double", "nullable": True}
    assert (answer["kind"], statistics(client, "log")["changelog"]["followers"]) == ("changelog", 0)


def test_a_failed_dataset_says_why_and_shows_its_columns(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    command = {"dataset": "broken", "producer": 0, "attempt": "1"}
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(json.dumps(command)), table(10).schema)
    writer.write_table(table(10))
    writer.write_metadata(json.dumps({"commit": {"rows": 11, "frames": 1}}).encode())
    with pytest.raises(pa.ArrowInvalid, match="the commit says 11 rows"):
        writer.close()
    answer = ask(server, "broken")
    assert "the commit says 11 rows in 1 frames, but 10 rows in 1 frames arrived" in answer["failure"]
    assert answer["failure"].endswith("write it again")
    assert statistics(client, "broken")["failure"] == answer["failure"]
    assert (len(answer["columns"]), answer["rows"]) == (3, [])
    assert answer["note"] == "of a partition that has failed no rows are kept"


def test_a_source_is_not_pulled_for_it(tmp_path: Path) -> None:
    pq.write_table(table(10), tmp_path / "a.parquet")
    with ServerProcess.start(source_roots=tmp_path) as server, flight.connect(server.location) as client:
        source = {"format": "parquet", "path": str(tmp_path / "a.parquet")}
        action(client, "create", dataset="files", kind="source", source=source)
        assert "next reader has the server pull them" in ask(server, "files")["note"]
        assert statistics(client, "files")["source"]["pulls"] == 0
        read(client, "files")
        assert ask(server, "files")["rows"][9][0] == "9"


def test_retention_does_not_count_it(server: ServerProcess, client: flight.FlightClient) -> None:
    action(client, "create", dataset="once", retention={"readers": 1})
    put(client, table(10), dataset="once")
    for _ in range(3):
        assert len(ask(server, "once")["rows"]) == 10
    assert read(client, "once").num_rows == 10
    eventually(lambda: ask(server, "once")["note"], "it has no rows here, or retention has released them")


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, memory_limit=LIMIT_BYTES) as made:
        yield made


def spilled(node: Node) -> Dataset:
    """A dataset of one frame on disk, for which a read needs room."""
    schema = pa.schema([("n", pa.int64())])
    dataset, _ = node.catalogue.create(CreateRequest("d"), SchemaMessage.of(schema))
    batch = pa.record_batch([pa.array(range(100))], schema=schema).serialize()
    header_bytes = 8 + int.from_bytes(memoryview(batch)[4:8], "little")
    data = wire.flight_data(memoryview(batch)[8:header_bytes], body=memoryview(batch)[header_bytes:])
    made = frame(data, rows=100, pool=node.budget.frames)
    made.crc32c, made.metadata_crc32c = stored_checksums(data)
    dataset.begin_stream(0).publish(made)
    made.move_to(on_disk(data))
    return dataset


async def test_one_that_gets_no_room_says_so_and_holds_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = spilled(node)
    assert (await first_rows(node.reads, node.kinds, dataset, "test"))["rows"][:2] == [["0"], ["1"]]
    # The thread that rendered the rows may refer to them for a moment after its result is there.
    eventually(lambda: node.budget.sends.used_bytes, 0)
    monkeypatch.setattr(module, "READ_SECONDS", 0.05)
    held = node.budget.sends.reserve(node.budget.sends.limit_bytes or 0)
    answer = await first_rows(node.reads, node.kinds, dataset, "test")
    assert (answer["rows"], answer["note"]) == (
        [],
        "no further row came within 0.05 s: the server is busy; ask again",
    )
    assert not node.delivery.readers
    held.free()
    assert node.budget.sends.used_bytes == 0


async def test_one_that_is_cancelled_while_it_waits_holds_nothing(node: Node) -> None:
    dataset = spilled(node)
    held = node.budget.sends.reserve(node.budget.sends.limit_bytes or 0)
    asked = asyncio.ensure_future(first_rows(node.reads, node.kinds, dataset, "test"))
    while not node.waits.listed():  # noqa: ASYNC110 - the list tells of no change
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])
    held.free()
    assert asked.cancelled()
    assert not node.delivery.readers
    assert (node.budget.sends.used_bytes, node.waits.listed()) == (0, [])


async def test_a_client_that_takes_nothing_of_it_holds_no_room_of_readers(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, table(100), dataset="untaken")
    with RawGet(f"{server.http}/v1/rows?dataset=untaken", receive_buffer_bytes=4096):
        eventually(lambda: action(client, "statistics")["memory"]["accounts"]["sends"]["used_bytes"], 0)
        assert read(client, "untaken").num_rows == 100
