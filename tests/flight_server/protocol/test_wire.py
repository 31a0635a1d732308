"""Protobuf and IPC framing: located, never copied, and what is malformed is an error of ours."""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flight_server.protocol import IpcHeader, MessageKind, ipc_framing, wire
from flight_server.protocol.errors import BadFrame, InvalidRequest
from tests.support import raw_flight

WORDS = pa.record_batch({"w": pa.array(["a", "b"]).dictionary_encode()})
SCHEMA, DICTIONARY, FRAME = raw_flight.ipc_messages(WORDS.schema, [WORDS])


@given(st.integers(1, (1 << 29) - 1), st.binary(max_size=300))
def test_a_field_comes_back_as_it_was_written(number: int, value: bytes) -> None:
    assert wire.field(number, value) == raw_flight.field(number, value)
    assert [(found, bytes(data)) for found, data in wire.fields(wire.field(number, value))] == [
        (number, value)
    ]


@given(st.integers(1, 100), st.integers(0, 2**63))
def test_a_number_comes_back_as_it_was_written(number: int, value: int) -> None:
    assert list(wire.fields(wire.varint_field(number, value))) == [(number, value)]


@given(st.floats(0, 4e9))
def test_a_timestamp_has_seconds_and_nanoseconds(seconds: float) -> None:
    fields = dict(wire.fields(wire.timestamp(seconds)))
    whole, nanos = fields.get(1, 0), fields.get(2, 0)
    assert isinstance(whole, int)
    assert isinstance(nanos, int)
    assert 0 <= nanos < 10**9
    assert whole + nanos / 1e9 == pytest.approx(seconds, abs=2e-9)


MALFORMED = {
    "field 0": b"\x00",
    "no size": b"\x0a",
    "too short": b"\x0a\x05abc",
    "no end": b"\x80",
    "no end of a number": b"\xff" * 11,
    "group": b"\x0b",
    "end of a group": b"\x0c",
    "fixed": b"\x09abc",
    "a tag of 33 bits": b"\x82\x80\x80\x80\x10\x00",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"past the end|field number|wire type"):
        list(wire.fields(data))


def varint(value: int, size_bytes: int) -> bytes:
    """In so many bytes, or more if it needs them: protobuf allows longer ones than it takes."""
    out = bytearray()
    while value > 0x7F or len(out) < size_bytes - 1:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


LENGTHS = st.sampled_from((1, 1, 1, 2, 4))


@st.composite
def any_fields(draw: st.DrawFn) -> bytes:
    """Fields of FlightData and others, in any order, some in longer words than they need; perhaps cut or changed."""
    out = b""
    for number in draw(st.lists(st.sampled_from((1, 2, 3, 1000, 4, 1016)), min_size=1, max_size=4)):
        value = draw(st.binary(max_size=3)) * draw(st.sampled_from((1, 1, 47, 100)))
        out += varint(number << 3 | 2, draw(LENGTHS)) + varint(len(value), draw(LENGTHS)) + value
    change = draw(st.sampled_from(("none", "none", "cut", "byte", "number")))
    if change == "cut":
        return out[: -draw(st.integers(1, 6))]
    if change == "byte":
        at = draw(st.integers(0, len(out) - 1))
        return out[:at] + bytes([draw(st.integers(0, 255))]) + out[at + 1 :]
    return out + wire.varint_field(draw(st.sampled_from((2, 4))), 300) if change == "number" else out


@example(b"\x12\x85\x00abcde" + wire.field(1000, b"\0" + b"\x12\0" * 100))
@given(any_fields())
def test_flight_data_is_located_where_its_fields_lie(message: bytes) -> None:
    expected: dict[int, bytes] = {}
    refused = False
    try:
        for number, value in wire.fields(message):
            if number in {1, 2, 3, 1000}:
                refused = refused or isinstance(value, int)
                expected[number] = b"" if isinstance(value, int) else bytes(value)
    except ValueError:
        refused = True
    parts = tuple(expected.get(number, b"") for number in (1, 2, 3, 1000))
    if refused or not any(parts[:3]) or (parts[3] and not parts[1]):
        with pytest.raises(BadFrame):
            wire.locate(message)
    else:
        assert tuple(map(bytes, wire.locate(message))) == parts


def test_flight_data_is_located_without_a_copy() -> None:
    message = raw_flight.flight_data(b"header", b"body", metadata=b"metadata", descriptor=b"descriptor")
    parts = wire.locate(message)
    found = (parts.descriptor, parts.header, parts.metadata, parts.body)
    assert [bytes(each) for each in found] == [b"descriptor", b"header", b"metadata", b"body"]
    assert all(each.obj is message for each in found)
    assert wire.flight_data(b"header", b"metadata", b"body") == raw_flight.flight_data(
        b"header", b"body", metadata=b"metadata"
    )


def test_the_last_of_a_repeated_field_counts() -> None:
    twice = raw_flight.field(2, b"first") + raw_flight.field(2, b"second")
    assert bytes(wire.locate(twice).header) == b"second"
    assert wire.bytes_field(twice, 2, "Action") == b"second"
    assert wire.bytes_field(twice, 1, "Action") == b""


def decompressed_bytes(header: bytes, body: bytes) -> int:
    return IpcHeader(header).decompressed_bytes(partial(ipc_framing.number_at, memoryview(body)))


def test_a_field_of_another_type_is_refused() -> None:
    number = raw_flight.varint(1 << 3) + b"\x05"
    with pytest.raises(InvalidRequest, match="Ticket is not the protobuf message"):
        wire.bytes_field(number, 1, "Ticket")
    with pytest.raises(BadFrame, match="field 1 is a number"):
        wire.locate(number)


@given(st.integers(0, 500), st.integers(0, 255))
def test_a_damaged_header_is_a_bad_frame_and_nothing_worse(place: int, value: int) -> None:
    damaged = bytearray(DICTIONARY.header)
    damaged[place % len(damaged)] = value
    header = bytes(damaged)
    for read in (
        lambda: IpcHeader(header).kind,
        lambda: IpcHeader(header).body_bytes,
        lambda: IpcHeader(header).dictionary_id,
        lambda: decompressed_bytes(header, b""),
    ):
        with suppress(BadFrame):
            read()


def test_the_id_of_a_dictionary_and_whether_it_is_a_delta_are_read() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("a", kind), ("b", kind)])
    first = pa.RecordBatch.from_arrays([pa.array(["x"], kind), pa.array(["x"], kind)], schema=schema)
    second = pa.RecordBatch.from_arrays(
        [
            pa.array(["x"], kind),
            pa.DictionaryArray.from_arrays(pa.array([1], pa.int32()), pa.array(["x", "y"])),
        ],
        schema=schema,
    )
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    messages = raw_flight.ipc_messages(schema, [first, second], options)
    found = [IpcHeader(each.header).dictionary_id for each in messages if each.kind == "dictionary batch"]
    assert found == [(0, False), (1, False), (1, True)]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_a_message_decompresses_to_is_read_from_its_buffers(codec: str) -> None:
    noise = np.random.default_rng(0).integers(0, 2**63, 1000)
    words = pa.array(["w" * 999] * 1000).dictionary_encode()
    batch = pa.record_batch({"zeros": np.zeros(1000), "noise": noise, "words": words})
    plain = raw_flight.ipc_messages(batch.schema, [batch])
    packed = raw_flight.ipc_messages(batch.schema, [batch], pa.ipc.IpcWriteOptions(compression=codec))
    for one, other in zip(plain[1:], packed[1:], strict=True):
        assert decompressed_bytes(one.header, one.body) == 0
        said = decompressed_bytes(other.header, other.body)
        # Without the padding between the buffers of the plain message, and with a prefix on what was left plain.
        assert len(one.body) - 64 * 6 <= said <= len(one.body) + 8 * 6


def schema_header(byte_order: int) -> bytes:
    """A schema message without fields, by hand: pyarrow writes no byte order but its own."""
    message_table = struct.pack("<HHHHH2xiIhBx", 10, 12, 8, 10, 4, 12, 16, 4, 1)
    schema_table = struct.pack("<HHH2xih", 6, 6, 4, 8, byte_order)
    return struct.pack("<I", 16) + message_table + schema_table


def header_without_content(kind: MessageKind) -> bytes:
    """A message that names its kind and has nothing else, not even the batch."""
    return struct.pack("<I4HiB3x", 12, 8, 5, 0, 4, 8, kind)


def test_what_a_header_lacks_is_nothing() -> None:
    header = header_without_content(MessageKind.DICTIONARY)
    read = IpcHeader(header)
    assert (read.kind, read.body_bytes, read.dictionary_id) == (MessageKind.DICTIONARY, 0, (0, False))
    assert decompressed_bytes(header, b"") == 0


def test_the_byte_order_of_a_schema_is_read() -> None:
    assert ipc_framing.is_little_endian(SCHEMA.header)
    assert ipc_framing.is_little_endian(schema_header(0))
    assert not ipc_framing.is_little_endian(schema_header(1))
    assert IpcHeader(schema_header(1)).kind is MessageKind.SCHEMA
