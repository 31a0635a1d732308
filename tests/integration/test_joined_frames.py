"""Small frames over gRPC: any client gets exactly the rows, in fewer messages, and each frame at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from flight_server.lanes.grpc.joined_frames import JOINED_BYTES, MAX_FRAMES, SMALL_BYTES
from tests.integration.round_trip.flights import drop, put, same
from tests.integration.round_trip.test_any_table import tables
from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, flight_data, ipc_messages, path, put_messages
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "256MiB"}

ROWS = 1000
FRAMES = 600


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    """A client; afterwards no byte of ``d`` is held, and no stream waits."""
    with flight.connect(server.location) as client, RawFlight(server.location) as raw:
        yield client
        drop(client, "d")
        eventually(lambda: raw.action("statistics")["memory"]["used_bytes"], 0)
        eventually(lambda: raw.action("statistics")["waits"], 0)


def frame(number: int, rows: int = ROWS) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number] * rows, pa.int64()), "text": [f"frame {number}"] * rows})


def numbered(batches: list[pa.RecordBatch]) -> list[int]:
    """The numbers of the frames whose rows came, in order; each frame's rows must be together and complete."""
    found = pa.Table.from_batches(batches)["n"].to_pylist()
    assert len(found) % ROWS == 0
    numbers: list[int] = found[::ROWS]
    assert found == [number for number in numbers for _ in range(ROWS)]
    return numbers


def read(client: flight.FlightClient, ticket: bytes | dict[str, Any], **options: Any) -> list[pa.RecordBatch]:
    asked = ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode()
    return [chunk.data for chunk in client.do_get(flight.Ticket(asked), flight.FlightCallOptions(**options))]


def joins(server: ServerProcess) -> int:
    with urlopen(f"{server.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("flight_shuffle_joins_total "))
    return int(float(line.split()[1]))


def test_a_client_gets_small_frames_joined(server: ServerProcess, client: flight.FlightClient) -> None:
    put(client, "d", [frame(number) for number in range(FRAMES)])
    (endpoint,) = client.get_flight_info(flight.FlightDescriptor.for_path("d")).endpoints
    before = joins(server)
    for ticket in (b"d", b"d/0", endpoint.ticket.ticket, {"dataset": "d", "partition": 0}):
        batches = read(client, ticket)
        assert numbered(batches) == list(range(FRAMES))
        assert len(batches) < FRAMES / 8
        assert max(batch.nbytes for batch in batches) <= JOINED_BYTES * 9 // 8
        assert max(batch.num_rows for batch in batches) <= MAX_FRAMES * ROWS
    assert joins(server) - before > 0


@pytest.mark.parametrize(("size_bytes", "most"), [(8 << 10, 128), (100 << 10, 8)])
def test_messages_are_full_once_a_reader_has_taken_as_much(
    client: flight.FlightClient, size_bytes: int, most: int
) -> None:
    one = pa.record_batch({"n": range(size_bytes // 8)})
    put(client, "d", [one] * 1000)
    found = [batch.num_rows // one.num_rows for batch in read(client, b"d")]
    growing = found.index(most)
    assert growing <= 10
    assert sum(found) == 1000
    assert len(found[growing:-1]) >= 5
    assert set(found[growing:-1]) == {most}


@pytest.mark.parametrize(
    ("ticket", "options"),
    [
        ({"dataset": "d", "from": 7}, {}),
        ({"dataset": "d", "until": 300}, {}),
        ({"dataset": "d", "partitions": [0]}, {}),
        (b"d", {"headers": [(b"x-flight-shuffle-batches", b"stored")]}),
    ],
)
def test_a_client_that_counts_frames_gets_them_as_they_are_stored(
    client: flight.FlightClient, ticket: bytes | dict[str, Any], options: dict[str, Any]
) -> None:
    stored = [frame(number) for number in range(FRAMES)]
    put(client, "d", stored)
    body = {} if isinstance(ticket, bytes) else ticket
    # The end of a listed partition comes as a batch without rows, with metadata.
    batches = [batch for batch in read(client, ticket, **options) if batch is not None and batch.num_rows]
    same(batches, stored[body.get("from", 0) : body.get("until")])


@settings(suppress_health_check=list(HealthCheck))
@given(table=tables(), repeats=st.integers(1, 60), codec=st.sampled_from([None, None, "lz4"]))
def test_any_table_in_small_frames_comes_back_in_order(
    server: ServerProcess, table: tuple[pa.Schema, list[pa.RecordBatch]], repeats: int, codec: str | None
) -> None:
    schema, batches = table
    wanted = [*batches] * repeats
    with flight.connect(server.location) as client:
        put(client, "any", wanted, schema=schema, options=pa.ipc.IpcWriteOptions(compression=codec))
        try:
            reader = client.do_get(flight.Ticket(b"any"))
            found = reader.read_all()
            found.validate(full=True)
            assert found.schema == schema
            assert found.to_pylist() == pa.Table.from_batches(wanted, schema).to_pylist()
        finally:
            drop(client, "any")


@pytest.mark.long
def test_frames_are_joined_between_the_dictionaries_that_they_need(client: flight.FlightClient) -> None:
    def coded(number: int) -> pa.RecordBatch:
        words = pa.array([f"word {number // 40} {n}" for n in range(5)] + [None])
        indices = pa.array([(number + row) % 6 for row in range(800)], pa.int16())
        return pa.record_batch({"word": pa.DictionaryArray.from_arrays(indices, words), "n": range(800)})

    stored = [coded(number) for number in range(400)]
    put(client, "d", stored)
    batches = read(client, b"d")
    assert len(batches) < 100
    for batch in batches:
        batch.validate(full=True)
    assert [row for batch in batches for row in batch.to_pylist()] == [
        row for batch in stored for row in batch.to_pylist()
    ]


def test_frames_with_metadata_and_large_ones_stand_alone_between_joined_ones(
    client: flight.FlightClient,
) -> None:
    large = frame(1, rows=SMALL_BYTES // 8)
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), large.schema)
    with writer:
        for number in range(200):
            if number % 50 == 49:
                writer.write_with_metadata(frame(number), f"note {number}".encode())
            elif number % 50 == 30:
                writer.write_batch(large)
            else:
                writer.write_batch(frame(number))
    chunks = list(client.do_get(flight.Ticket(b"d")))
    notes = {chunk.app_metadata.to_pybytes(): chunk.data for chunk in chunks if chunk.app_metadata}
    assert notes == {f"note {number}".encode(): frame(number) for number in range(49, 200, 50)}
    assert sum(chunk.data == large for chunk in chunks) == 4
    assert len(chunks) < 100
    wanted = [large if number % 50 == 30 else frame(number) for number in range(200)]
    assert pa.Table.from_batches([chunk.data for chunk in chunks]) == pa.Table.from_batches(wanted)


def test_a_frame_that_is_ready_waits_for_no_later_one(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    first, *rest = put_messages(path("d"), [frame(number) for number in range(40)])
    with RawFlight(server.location) as raw:
        with OpenPut(raw) as producer:
            producer.send(first)
            eventually(lambda: "d" in action(client, "statistics")["datasets"], True)
            reader = client.do_get(flight.Ticket(b"d"))
            found = []
            for message in rest:
                producer.send(message)
                found.append(reader.read_chunk().data)
        found += [chunk.data for chunk in reader]
    assert numbered(found) == list(range(40))
    assert len(found) == 40


def test_joined_messages_have_room_or_frames_go_out_one_by_one() -> None:
    stored = [frame(number) for number in range(FRAMES)]
    with ServerProcess.start(memory_limit="8MiB") as server, flight.connect(server.location) as client:
        put(client, "d", stored)
        stalled = [client.do_get(flight.Ticket(b"d")) for _ in range(8)]
        for reader in stalled:
            reader.read_chunk()
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: numbered(read(client, b"d")), range(4)))
        assert found == [list(range(FRAMES))] * 4
        for reader in stalled:
            reader.cancel()
        peak_bytes = action(client, "statistics")["memory"]["peak_bytes"]
        assert peak_bytes <= 8 << 20
        assert server.events("internal_error") == []


def test_frames_that_an_earlier_process_has_not_checked_end_no_server(tmp_path: Path) -> None:
    codes, offsets = pa.array([0] * 16, pa.int8()), pa.array(range(16), pa.int32())
    union = pa.UnionArray.from_dense(codes, offsets, [pa.array(range(16))])
    schema, batch = ipc_messages(pa.schema([("union", union.type)]), [pa.record_batch({"union": union})])
    assert batch.body.startswith(bytes(16))
    malformed = flight_data(batch.header, b"\x80" * 16 + batch.body[16:])
    with ServerProcess.start("--no-full-validation", data_dir=tmp_path) as server:
        with RawFlight(server.location) as raw:
            raw.action("create", {"dataset": "d", "kind": "stream", "durable": True})
            raw.put([flight_data(schema.header, descriptor=path("d")), *[malformed] * 20])
        server.terminate()
    with ServerProcess.start(data_dir=tmp_path) as server, flight.connect(server.location) as client:
        assert [batch.num_rows for batch in read(client, b"d")] == [16] * 20
