"""FlightData is located without a copy, and what is no FlightData is refused."""

from __future__ import annotations

import io
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server import wire
from flight_server.errors import BadFrame, InvalidRequest


def messages(table: pa.Table) -> list[pa.Message]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    return list(reader)


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=50), st.binary(max_size=1000))
def test_what_is_rendered_is_located(header: bytes, metadata: bytes, body: bytes) -> None:
    parts = wire.locate(wire.flight_data(header, metadata, body))
    assert (bytes(parts.header), bytes(parts.metadata), bytes(parts.body)) == (header, metadata, body)


def test_locating_copies_nothing() -> None:
    message = wire.flight_data(b"header", b"", b"body" * 1000)
    assert wire.locate(message).body.obj is message


@given(st.binary(max_size=200))
def test_whatever_bytes_come_are_located_or_refused(data: bytes) -> None:
    with suppress(BadFrame):
        parts = wire.locate(data)
        assert len(parts.header) + len(parts.metadata) + len(parts.body) <= len(data)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x12",
        b"\x12\x05abc",
        b"\x10\x01",
        b"\x13\x01",
        wire.field(1000, b"body alone"),
        b"\xff" * 12,
        wire.field(2, b"header") + b"\x00\x01",
    ],
)
def test_what_is_no_flight_data_is_refused(message: bytes) -> None:
    with pytest.raises(BadFrame):
        wire.locate(message)


def test_a_later_versions_field_is_passed_over() -> None:
    message = wire.varint_field(77, 5) + wire.field(2, b"header") + wire.field(78, b"new")
    assert bytes(wire.locate(message).header) == b"header"


def test_the_kind_of_each_message_is_read_from_its_header() -> None:
    column = pa.array(["a", "b", "a"]).dictionary_encode()
    found = [wire.message_kind(memoryview(each.metadata)) for each in messages(pa.table({"d": column}))]
    assert found == [wire.MessageKind.SCHEMA, wire.MessageKind.DICTIONARY, wire.MessageKind.RECORD_BATCH]


def test_dictionary_ids_follow_the_columns() -> None:
    column = pa.array(["a", "b", "a"]).dictionary_encode()
    headers = [memoryview(each.metadata) for each in messages(pa.table({"d": column, "e": column}))]
    assert [wire.dictionary_id(header) for header in headers[1:3]] == [(0, False), (1, False)]


@given(st.binary(max_size=64))
def test_garbage_is_no_header(data: bytes) -> None:
    with suppress(BadFrame):
        wire.message_kind(memoryview(data))
    with suppress(BadFrame):
        wire.dictionary_id(memoryview(data))


@given(st.integers(0, 2**63 - 1))
def test_numbers_come_back_as_they_were(number: int) -> None:
    assert list(wire.fields(wire.varint_field(5, number))) == [(5, number)]


def test_a_field_of_another_type_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="Ticket is not the protobuf message"):
        wire.bytes_field(wire.varint_field(1, 3), 1, "Ticket")
    assert wire.bytes_field(b"", 1, "Ticket") == b""


def test_an_encapsulated_header_is_padded_so_that_the_body_is_aligned() -> None:
    for size in range(1, 20):
        framed = wire.encapsulate(b"h" * size)
        assert framed[:4] == wire.CONTINUATION
        assert len(framed) % 8 == 0
        assert int.from_bytes(framed[4:8], "little") == len(framed) - 8


def test_the_header_of_a_serialized_schema_is_a_schema() -> None:
    header = wire.schema_header(pa.schema([("a", pa.int64())]).serialize().to_pybytes())
    assert wire.message_kind(memoryview(header)) is wire.MessageKind.SCHEMA
