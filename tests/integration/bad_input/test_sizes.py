"""Requests of any kind that are too large, or decode to too much, are refused with the limit."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable

import grpc
import pyarrow as pa
import pytest

from flight_server.protocol import ipc_framing
from tests.support.raw_flight import (
    RawFlight,
    Refused,
    command,
    field,
    flight_data,
    ipc_messages,
    path,
    put_messages,
)
from tests.support.server_process import ServerProcess

MIB = 1 << 20
BATCH = pa.record_batch({"n": [1]})
PADDING = json.dumps({"dataset": "x" * (2 * MIB)}).encode()


def descriptor_of(size_bytes: int) -> bytes:
    return field(2, b"x" * size_bytes) + b"\x08\x02"


TOO_LARGE: dict[str, Callable[[RawFlight], object]] = {
    "an action's body": lambda raw: raw.action("drop", PADDING),
    "an unknown action": lambda raw: raw.action("nothing", PADDING),
    "a seal": lambda raw: raw.action("seal", b"{" + b" " * (17 * MIB)),
    "a create": lambda raw: raw.action("create", b"{" + b" " * (12 * MIB)),
    "a ticket": lambda raw: raw.get(PADDING),
    "a descriptor": lambda raw: raw.ask("GetFlightInfo", descriptor_of(2 * MIB)),
    "a descriptor to poll": lambda raw: raw.ask("PollFlightInfo", descriptor_of(2 * MIB)),
    "a descriptor of a schema": lambda raw: raw.ask("GetSchema", descriptor_of(2 * MIB)),
    "criteria": lambda raw: raw.ask("ListFlights", field(1, b"x" * (2 * MIB))),
    "the descriptor of a put": lambda raw: raw.put(put_messages(descriptor_of(2 * MIB), [BATCH])),
    "a message without a batch": lambda raw: raw.put(
        [put_messages(path("d"), [BATCH])[0], flight_data(b"", metadata=b"x" * (2 * MIB))]
    ),
    "a commit": lambda raw: raw.put(
        [
            put_messages(command({"dataset": "d", "producer": 0, "attempt": "0"}), [BATCH])[0],
            flight_data(b"", metadata=b" " * (2 * MIB)),
        ]
    ),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_a_request_that_is_too_large_is_refused_with_its_limit(raw: RawFlight, what: str) -> None:
    with pytest.raises(Refused) as refused:
        TOO_LARGE[what](raw)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert "limit of" in refused.value.message
    assert refused.value.detail["limit_bytes"] >= MIB


def test_a_seal_may_name_a_hundred_thousand_attempts(raw: RawFlight) -> None:
    raw.action("create", {"dataset": "s", "kind": "shuffle"})
    attempts = {str(producer): str((1 << 62) + producer) for producer in range(100_000)}
    body = json.dumps({"dataset": "s", "attempts": attempts}).encode()
    with pytest.raises(Refused, match="producer 0 attempt 4611686018427387904 is unknown here"):
        raw.action("seal", body)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_grpc_message_is_refused_before_it_is_decompressed(
    server: ServerProcess, compression: grpc.Compression
) -> None:
    before = server.peak_rss_bytes()
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.location.removeprefix("grpc://"), options) as channel:
        for method in ("DoAction", "DoPut"):
            call = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")
            with pytest.raises(grpc.RpcError) as refused:
                list(call(iter([b"\0" * (200 * MIB)]), compression=compression))
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "is disabled" in refused.value.details()
    assert server.peak_rss_bytes() - before < 50 * MIB


def schema_of(size_bytes: int) -> pa.Schema:
    return BATCH.schema.with_metadata({"x": "y" * size_bytes})


def test_a_schema_that_is_too_large_is_refused_by_create_and_by_a_put(raw: RawFlight) -> None:
    large = schema_of(4 * MIB + 100_000)  # of 64 MiB a sixteenth is 4
    text = base64.b64encode(large.serialize()).decode()
    with pytest.raises(Refused, match="--max-schema"):
        raw.action("create", {"dataset": "d", "schema": text})
    first = put_messages(path("d"), [BATCH.cast(large)])[0]
    with pytest.raises(Refused, match="limit of"):
        raw.put([first])
    assert list(raw.action("statistics")["datasets"]) == ["bystander"]


def test_a_put_with_a_large_schema_is_whole_and_its_schema_is_counted(raw: RawFlight) -> None:
    before = raw.action("statistics")["memory"]["used_bytes"]
    schema = schema_of(MIB // 2)
    raw.put(put_messages(path("d"), [BATCH.cast(schema)]))
    assert raw.action("statistics")["memory"]["used_bytes"] - before > MIB // 2
    assert raw.get(b"d")[0].count(b"y") >= MIB // 2


MARKS = {"lists": b"[[]]", "objects": b'{"":0}', "numbers": b"7"}


@pytest.mark.parametrize("value", MARKS)
@pytest.mark.parametrize("name", ["seal", "create"])
def test_json_of_many_small_values_is_refused_before_it_is_parsed(
    server: ServerProcess, raw: RawFlight, name: str, value: str
) -> None:
    before = server.peak_rss_bytes()
    body = (
        b'{"dataset": "d", "a": [' + b",".join([MARKS[value]] * (6 * MIB // (1 + len(MARKS[value])))) + b"]}"
    )
    with pytest.raises(Refused, match=f"the action '{name}' would take") as refused:
        raw.action(name, body)
    assert refused.value.detail["limit_bytes"] == 48 * MIB
    assert server.peak_rss_bytes() - before < 60 * MIB


def test_a_ticket_of_many_small_values_is_refused_before_it_is_parsed(raw: RawFlight) -> None:
    with pytest.raises(Refused, match="many more values"):
        raw.get(b'{"a": [' + b",".join([b"[[]]"] * (MIB // 6)) + b"]}")


def test_flight_messages_of_many_small_fields_are_refused_before_they_become_objects(
    server: ServerProcess, raw: RawFlight
) -> None:
    """In pyarrow's objects each of these would take 40 to 180 times its size: the first of them 500 MB."""
    before = server.peak_rss_bytes()
    endpoints = field(1, field(2, b"\x08\x02\x12\x01x") + b"\x1a\x00" * (6 * MIB))
    with pytest.raises(Refused, match="dataset"):
        raw.action("CancelFlightInfo", endpoints)
    with pytest.raises(Refused, match="more than 1000 fields"):
        raw.action("RenewFlightEndpoint", field(1, b"\x12\x00" * (MIB // 2 - 100)))
    with pytest.raises(Refused, match="more than 1000 fields"):
        raw.ask("GetFlightInfo", b"\x08\x01" + b"\x1a\x00" * (MIB // 2 - 100))
    assert server.peak_rss_bytes() - before < 120 * MIB


@pytest.mark.parametrize("empty", [field(4, b""), field(2, b"")])
def test_messages_of_very_many_fields_are_refused_before_they_hold_up_the_server(
    raw: RawFlight, empty: bytes
) -> None:
    many = empty * (MIB // 2 - 100)
    for rpc in ("DoGet", "ListFlights", "GetFlightInfo", "DoAction"):
        with pytest.raises(Refused, match="more than 1000 fields"):
            raw.ask(rpc, many)
    with pytest.raises(Refused, match="more than 1000 fields"):
        raw.action("CancelFlightInfo", field(1, many * 8))
    schema, batch = put_messages(path("d"), [BATCH])
    for message in (batch + many, many + batch):
        with pytest.raises(Refused, match="more than 1000 fields"):
            raw.put([schema, message])


def test_a_batch_that_says_to_have_very_many_buffers_does_not_hold_up_the_server() -> None:
    compressed = pa.ipc.IpcWriteOptions(compression="lz4")
    schema, batch = ipc_messages(BATCH.schema, [pa.record_batch({"n": [1] * 1000})], compressed)
    table = ipc_framing.IpcHeader(batch.header).message.table(2)
    assert table is not None
    at = table.slot(2)
    count = 16 * MIB // 16
    header = bytearray(batch.header + bytes(-len(batch.header) % 8 + 4))
    header[at : at + 4] = (len(header) - at).to_bytes(4, "little")
    header += count.to_bytes(4, "little") + (struct.pack("<qq", 0, 8) * count)
    messages = [flight_data(schema.header, descriptor=path("d")), flight_data(bytes(header), batch.body)]
    with (
        ServerProcess.start(memory_limit="256MiB") as server,
        RawFlight(server.location) as raw,
        pytest.raises(Refused, match="decompresses to"),
    ):
        raw.put(messages)


def test_a_request_that_was_refused_does_not_stay_in_memory(server: ServerProcess, raw: RawFlight) -> None:
    before = server.peak_rss_bytes()
    body = b'{"dataset": "d", "a": [' + b"[]," * (5 * MIB) + b"[]]}"
    for _ in range(10):  # 150 MiB together
        with pytest.raises(Refused, match="would take"):
            raw.action("seal", body)
    assert server.peak_rss_bytes() - before < 100 * MIB
