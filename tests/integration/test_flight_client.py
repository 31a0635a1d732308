"""All RPCs with pyarrow's own client, and raw where it has no method for them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import ACTIONS
from tests.support.durable import action
from tests.support.held import message_bytes
from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, Refused, field, fields_of, path, put_messages, varint
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "128MiB", "lease_seconds": "1000"}

BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    """A client; afterwards all datasets are dropped and not one byte is left."""
    with flight.connect(server.location) as client:
        yield client
        for info in client.list_flights():
            action(client, "drop", dataset=info.descriptor.path[0].decode())
        for name in action(client, "statistics")["datasets"]:
            action(client, "drop", dataset=name)
        eventually(lambda: action(client, "statistics")["memory"]["used_bytes"], 0)


def descriptor(name: str, **command: Any) -> flight.FlightDescriptor:
    if command:
        return flight.FlightDescriptor.for_command(json.dumps({"dataset": name, **command}))
    return flight.FlightDescriptor.for_path(name)


def put(client: flight.FlightClient, name: str, *batches: pa.RecordBatch, **command: Any) -> None:
    writer, _ = client.do_put(descriptor(name, **command), BATCH.schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)


def read(client: flight.FlightClient, ticket: bytes | flight.Ticket) -> list[int]:
    if isinstance(ticket, bytes):
        ticket = flight.Ticket(ticket)
    numbers: list[int] = client.do_get(ticket).read_all()["n"].to_pylist()
    return numbers


def test_a_table_put_under_a_path_is_listed_described_and_read(
    client: flight.FlightClient, server: ServerProcess
) -> None:
    put(client, "countries", BATCH, BATCH)
    (info,) = client.list_flights()
    again = client.get_flight_info(descriptor("countries"))
    assert info.endpoints[0].ticket == again.endpoints[0].ticket
    assert info.descriptor == descriptor("countries")
    assert info.schema == client.get_schema(descriptor("countries")).schema == BATCH.schema
    assert info.total_records == 6
    stored = action(client, "statistics", dataset="countries")["datasets"]["countries"]
    assert info.total_bytes == stored["bytes"]
    said = json.loads(info.app_metadata)
    assert said == {"generation": stored["generation"], "kind": "stream", "sealed": True}
    for ticket in (b"countries", b"countries/0", info.endpoints[0].ticket):
        assert read(client, ticket) == [1, 2, 3] * 2


def test_an_endpoint_says_where_and_until_when(client: flight.FlightClient, server: ServerProcess) -> None:
    action(client, "create", dataset="d", kind="shuffle", partitions=1200, lease_seconds=50)
    info = client.get_flight_info(descriptor("d"))
    assert len(info.endpoints) == 1200
    assert (info.total_records, info.total_bytes) == (-1, -1)
    generation = json.loads(info.app_metadata)["generation"]
    for index in (0, 499, 500, 1199):
        endpoint = info.endpoints[index]
        assert json.loads(endpoint.ticket.ticket) == {
            "dataset": "d",
            "generation": generation,
            "partition": index,
        }
        assert [each.uri.decode() for each in endpoint.locations] == [
            "arrow-flight-reuse-connection://?",
            server.location,
            f"{server.http}/v1/datasets/d/partitions/{index}?generation={generation}",
        ]
        left = action(client, "renew", dataset="d")["lease_left_seconds"]
        assert 40 < left <= 50
        assert endpoint.expiration_time is not None


def test_app_metadata_is_echoed_where_no_commit_is_in_use(client: flight.FlightClient) -> None:
    writer, answers = client.do_put(descriptor("d"), BATCH.schema)
    with writer:
        for word in (b"one", b"two"):
            writer.write_with_metadata(BATCH, word)
            assert answers.read() == word
        writer.write_metadata(b"no batch")
        assert answers.read() == b"no batch"
    assert read(client, b"d") == [1, 2, 3] * 2


def test_trailers_carry_the_totals_and_headers_the_generation(
    raw: RawFlight, client: flight.FlightClient
) -> None:
    put(client, "d", BATCH, BATCH)
    call = raw.call("DoGet", field(1, b'{"dataset":"d","from":1}'))
    assert len(list(call)) == 2
    headers, trailers = dict(call.initial_metadata()), dict(call.trailing_metadata())
    assert (
        headers["x-flight-shuffle-generation"] == action(client, "statistics")["datasets"]["d"]["generation"]
    )
    assert trailers["x-flight-shuffle-rows"] == "6"
    assert trailers["x-flight-shuffle-frames"] == "2"
    assert trailers["x-flight-shuffle-from"] == "1"
    assert len(trailers["x-flight-shuffle-crc32c"]) == 8


def test_polling_reports_progress_and_is_complete_when_sealed(
    raw: RawFlight, client: flight.FlightClient
) -> None:
    action(client, "create", dataset="d", kind="shuffle", producers=4)

    def attempt(producer: int) -> None:
        writer, _ = client.do_put(descriptor("d", producer=producer, attempt="a"), BATCH.schema)
        with writer:
            writer.write_metadata(b'{"commit":{"rows":0,"frames":0}}')

    attempt(0)
    first = poll(raw)
    assert first["progress"] == 0.25
    with ThreadPoolExecutor(1) as thread:
        polling = thread.submit(poll, raw, first["descriptor"])
        eventually(lambda: len(action(client, "why", dataset="d")["waits"]), 1)
        attempt(1)
        half = polling.result()
    assert half["progress"] == 0.5
    attempt(2)
    attempt(3)
    whole = poll(raw, half["descriptor"])
    assert (whole["progress"], whole["descriptor"]) == (1.0, None)
    assert flight.FlightInfo.deserialize(whole["info"]).total_records == 0


def poll(raw: RawFlight, again: bytes | None = None) -> dict[str, Any]:
    (answer,) = raw.ask("PollFlightInfo", path("d") if again is None else again)
    fields = fields_of(answer)
    (progress,) = struct.unpack("<d", answer[answer.index(varint(3 << 3 | 1)[:1], len(fields[1])) + 1 :][:8])
    return {"info": fields[1], "descriptor": fields.get(2), "progress": progress}


def test_the_schema_is_there_before_any_batch(raw: RawFlight, client: flight.FlightClient) -> None:
    first, frame = put_messages(path("d"), [BATCH])
    with OpenPut(raw) as open_put:
        open_put.send(first)
        eventually(lambda: "d" in action(client, "statistics")["datasets"], expected=True)
        reader = client.do_get(flight.Ticket(b"d"))
        assert reader.schema == BATCH.schema
        assert client.get_schema(descriptor("d")).schema == BATCH.schema
        open_put.send(frame)
        assert reader.read_chunk().data == BATCH


def test_all_actions_are_listed(client: flight.FlightClient) -> None:
    listed = {each.type: each.description for each in client.list_actions()}
    assert listed == ACTIONS
    assert {"create", "seal", "drop", "statistics", "why", "drain"} < listed.keys()
    assert {"CancelFlightInfo", "RenewFlightEndpoint"} < listed.keys()


def test_cancelling_a_flight_info_drops_its_dataset(raw: RawFlight, client: flight.FlightClient) -> None:
    put(client, "d", BATCH)
    info = client.get_flight_info(descriptor("d")).serialize()
    (answer,) = raw.ask("DoAction", field(1, b"CancelFlightInfo") + field(2, field(1, info)))
    assert fields_of(answer)[1] == b"\x08\x01"  # CANCEL_STATUS_CANCELLED
    with pytest.raises(pa.ArrowKeyError, match="there is no dataset 'd'"):
        read(client, b"d")


def test_renewing_an_endpoint_moves_its_expiration(raw: RawFlight, client: flight.FlightClient) -> None:
    put(client, "d", BATCH)
    (endpoint,) = client.get_flight_info(descriptor("d")).endpoints
    (answer,) = raw.ask(
        "DoAction", field(1, b"RenewFlightEndpoint") + field(2, field(1, endpoint.serialize()))
    )
    renewed = flight.FlightEndpoint.deserialize(fields_of(answer)[1])
    assert renewed.ticket == endpoint.ticket
    assert renewed.locations == endpoint.locations
    assert renewed.expiration_time.value >= endpoint.expiration_time.value


def test_exchanging_is_unimplemented_and_says_what_to_use(client: flight.FlightClient) -> None:
    def exchange() -> None:
        # The answer may be there before the client has begun to write, or only when it reads.
        _, reader = client.do_exchange(descriptor("d"))
        reader.read_all()

    with pytest.raises(NotImplementedError, match="no DoExchange: write with DoPut and read with DoGet"):
        exchange()


def test_a_handshake_without_a_token_is_answered(raw: RawFlight) -> None:
    assert raw.ask("Handshake", iter([b""])) == []


# Overwriting


def test_an_overwrite_takes_the_name_when_it_is_sealed_and_readers_of_the_old_one_finish(
    raw: RawFlight, client: flight.FlightClient
) -> None:
    put(client, "d", BATCH, BATCH)
    old = client.get_flight_info(descriptor("d")).endpoints[0].ticket
    reading = client.do_get(old)
    assert reading.read_chunk().data == BATCH
    new = pa.record_batch({"n": [9]})
    first, frame = put_messages(descriptor("d", mode="overwrite").serialize(), [new])
    frames = action(client, "statistics")["frames_in"]
    with OpenPut(raw) as open_put:
        open_put.send(first)
        open_put.send(frame)
        eventually(lambda: action(client, "statistics")["frames_in"], frames + 1)
        assert read(client, b"d") == [1, 2, 3] * 2  # the old one, until the new one is whole
    assert read(client, b"d") == [9]
    assert reading.read_chunk().data == BATCH
    with pytest.raises(StopIteration):
        reading.read_chunk()
    with pytest.raises(pa.ArrowKeyError, match=r"earlier generation.*get_flight_info again"):
        read(client, old)


@pytest.mark.parametrize("how", ["cancelled", "refused"])
def test_an_overwrite_that_fails_leaves_the_old_dataset(
    raw: RawFlight, client: flight.FlightClient, how: str
) -> None:
    put(client, "d", BATCH)
    before = action(client, "statistics")
    open_put = OpenPut(raw)
    for message in put_messages(descriptor("d", mode="overwrite").serialize(), [BATCH, BATCH]):
        open_put.send(message)
    eventually(lambda: action(client, "statistics")["frames_in"], before["frames_in"] + 2)
    if how == "cancelled":
        open_put.cancel()
    else:
        open_put.send(b"\xff")
        with pytest.raises(Refused, match="not FlightData"):
            open_put.finish()
    eventually(lambda: message_bytes(action(client, "statistics")), message_bytes(before))
    assert read(client, b"d") == [1, 2, 3]
    assert (
        action(client, "statistics")["datasets"]["d"]["generation"] == before["datasets"]["d"]["generation"]
    )
