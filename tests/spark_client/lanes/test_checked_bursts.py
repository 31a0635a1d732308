"""Bodies with checksums, damaged at any byte: every decoded batch has been checked."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.lanes.http.chunks import CHECKED_MESSAGES, FramedMessage, chunks_of
from flight_server.protocol import MessageKind, ipc_framing, wire
from flight_server.protocol.checksums import message_crc32c
from spark_client.lanes.batch_bursts import BurstReader, DamagedArrival
from spark_client.lanes.http import Body
from tests.support.http_source import END_OF_STREAM, chunk
from tests.support.raw_flight import ipc_messages

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
WORDS = pa.schema([("n", pa.int64()), ("s", pa.dictionary(pa.int32(), pa.string()))])
for_each_schema = pytest.mark.parametrize("schema", [SCHEMA, WORDS], ids=["plain", "dictionary"])


def batches_of(schema: pa.Schema, count: int) -> list[pa.RecordBatch]:
    return [
        pa.table({"n": range(i, i + 40), "s": [f"{i} {n}" for n in range(40)]}).cast(schema).to_batches()[0]
        for i in range(count)
    ]


def messages(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[FramedMessage]:
    return [
        FramedMessage(
            wire.FlightData(header=memoryview(each.header), body=memoryview(each.body)),
            message_crc32c(each.header, each.body),
        )
        for each in ipc_messages(schema, batches)
    ]


def sent(groups: Iterable[list[FramedMessage]], *, checked: bool = True) -> list[bytes]:
    """As the server sends them: a burst of messages for each group, and the end."""
    bursts = [b"".join(chunks_of(group, checked=checked)) for group in groups]
    return [*bursts, chunk(END_OF_STREAM), b"0\r\n\r\n"]


def reader_of(body: bytes) -> BurstReader:
    file = io.BufferedReader(io.BytesIO(body))
    return BurstReader(Body(file, {"transfer-encoding": "chunked"}))


def read(body: bytes) -> tuple[list[pa.RecordBatch], list[int]]:
    reader = reader_of(body)
    batches: list[pa.RecordBatch] = []
    checksums: list[int] = []
    while (burst := reader.read_burst()) is not None:
        batches += burst.batches
        checksums += burst.checksums
    reader._body.finish()
    return batches, checksums


@for_each_schema
@pytest.mark.parametrize("checked", [True, False])
def test_what_was_read_is_summed_up_whether_or_not_the_server_says_checksums(
    schema: pa.Schema, checked: bool
) -> None:
    batches = batches_of(schema, 12)
    first, *rest = messages(batches, schema)
    of_batches = [
        each.crc32c
        for each in rest
        if ipc_framing.IpcHeader(each.parts.header).kind is MessageKind.RECORD_BATCH
    ]
    assert len(of_batches) == 12
    found, checksums = read(b"".join(sent([[first], rest[:7], rest[7:]], checked=checked)))
    assert found == batches
    assert checksums == of_batches


def test_many_small_messages_are_several_chunks_whose_first_lines_clients_take() -> None:
    batches = batches_of(SCHEMA, 1) * (2 * CHECKED_MESSAGES + 1)
    first, *rest = messages(batches, SCHEMA)
    body = b"".join(sent([[first], rest]))
    lines = [line for line in body.split(b"\r\n") if b";crc32c=" in line]
    assert [line.count(b"-") for line in lines] == [1, CHECKED_MESSAGES, CHECKED_MESSAGES, 1]
    assert max(map(len, lines)) < 8 << 10
    assert read(body)[0] == batches


@for_each_schema
@given(data=st.data())
def test_a_damaged_message_ends_the_stream_behind_those_before_it(
    schema: pa.Schema, data: st.DataObject
) -> None:
    batches = batches_of(schema, 6)
    first, *rest = messages(batches, schema)
    head, *body = sent([[first], rest])
    whole = bytearray(body[0])
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    reader = reader_of(b"".join([head, bytes(whole), *body[1:]]))
    found: list[pa.RecordBatch] = []
    try:
        while (burst := reader.read_burst()) is not None:
            found += burst.batches
        reader._body.finish()
    except (OSError, pa.ArrowException):
        assert found == batches[: len(found)]
    else:
        # The flip has changed no message: it is in the line before them, and is the case of a letter.
        assert found == batches


@for_each_schema
def test_a_message_without_its_checksum_is_damage_where_others_had_one(schema: pa.Schema) -> None:
    first, *rest = messages(batches_of(schema, 6), schema)
    head, *_ = sent([[first]])
    reader = reader_of(b"".join([head, *sent([rest], checked=False)]))
    with pytest.raises(DamagedArrival, match="no checksum"):
        reader.read_burst()
