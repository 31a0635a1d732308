"""Messages of a batch: its rows in order, each with the version, the last one marked, none too large."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.kinds import VersionedMessage
from flight_server.kinds.changelog import reads
from flight_server.kinds.changelog.reads import encode
from flight_server.protocol import InvalidRequest
from flight_server.protocol.checksums import message_crc32c
from tests.support.run_rows import columns


def decoded(message: VersionedMessage, schema: pa.Schema) -> pa.RecordBatch:
    header, body = bytes(message.parts.header), bytes(message.parts.body)
    assert message.crc32c == message_crc32c(message.parts.header, message.parts.body)
    assert message.size_bytes == len(header) + len(body)
    stream = (
        schema.serialize().to_pybytes()
        + b"\xff\xff\xff\xff"
        + len(header).to_bytes(4, "little")
        + header
        + body
    )
    batch, said = pa.ipc.open_stream(stream).read_next_batch_with_custom_metadata()
    facts = {name.decode(): json.loads(value) for name, value in dict(said).items()}
    assert facts == json.loads(message.metadata)
    assert batch.num_rows == message.rows
    return batch


@given(st.lists(st.binary(max_size=300), max_size=40), st.booleans(), st.integers(0, 5))
def test_messages_have_the_rows_in_order_and_only_the_very_last_is_marked(
    values: list[bytes], last: bool, start: int
) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["a"]).slice(start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "MESSAGE_BYTES", 500)
        messages = list(encode(batch, 7, last=last, max_message_bytes=1000))
    found = [decoded(message, batch.schema) for message in messages]
    assert [value for each in found for value in each.column(0).to_pylist()] == values[start:]
    assert all(json.loads(message.metadata)["version"] == 7 for message in messages)
    marks = ["last" in json.loads(message.metadata) for message in messages]
    assert marks == [False] * (len(marks) - 1) + [last]
    assert all(len(message.parts.body) <= 1000 for message in messages)


def test_a_row_that_no_message_can_have_is_refused_with_the_option_that_helps() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"", b"x" * 2000])], ["a"])
    with pytest.raises(InvalidRequest, match="--max-message"):
        list(encode(batch, 1, last=True, max_message_bytes=1000))


@pytest.mark.parametrize("name", columns())
def test_columns_of_any_type_arrive(name: str) -> None:
    column = columns()[name]
    batch = pa.RecordBatch.from_arrays([column], ["a"])
    for part in (batch, batch.slice(1), batch.slice(0, 0)):
        [message] = encode(part, 1, last=False, max_message_bytes=1 << 20)
        assert repr(decoded(message, part.schema).to_pydict()) == repr(part.to_pydict())


def test_a_message_holds_no_more_memory_than_it_has() -> None:
    # With the schema just above a power of two, so that a buffer that grows by doubling would have twice that.
    batch = pa.record_batch({"v": [0.0] * 131_040})
    before_bytes = pa.total_allocated_bytes()
    (message,) = encode(batch, 1, last=True, max_message_bytes=1 << 21)
    assert pa.total_allocated_bytes() - before_bytes < 1.1 * batch.nbytes
    assert message.rows == batch.num_rows
