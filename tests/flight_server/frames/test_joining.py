"""Several small frames as one message: exactly their rows, or nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.frames import FrameJoiner, SchemaMessage
from flight_server.protocol import wire
from tests.integration.round_trip.test_any_table import tables
from tests.support.examples import examples
from tests.support.raw_flight import flight_data, ipc_messages


def frames(batches: list[pa.RecordBatch], **options: Any) -> list[bytes]:
    """The batches as a producer sends them."""
    messages = ipc_messages(batches[0].schema, batches, pa.ipc.IpcWriteOptions(**options))
    return [flight_data(each.header, each.body) for each in messages if each.kind == "record batch"]


def joined(schema: pa.Schema, stored: list[bytes], *, checked: bool = True) -> pa.RecordBatch | None:
    """What a reader decodes of the joined message; None if a frame, or all of them, cannot be joined."""
    joiner = FrameJoiner.of(SchemaMessage.of(schema), checked=checked)
    if joiner is None:
        return None
    parts = [joiner.parts_of(each) for each in stored]
    if None in parts:
        return None
    message = joiner.join([each for each in parts if each is not None])
    if message is None:
        return None
    found = wire.locate(message)
    assert not found.metadata
    assert not found.descriptor
    stream = [
        schema.serialize().to_pybytes(),
        pa.py_buffer(b"\xff\xff\xff\xff" + len(found.header).to_bytes(4, "little") + bytes(found.header)),
        found.body,
    ]
    (batch,) = pa.ipc.open_stream(pa.py_buffer(b"".join(stream)))
    batch.validate(full=True)
    return batch


def joiner_of(batch: pa.RecordBatch) -> FrameJoiner:
    joiner = FrameJoiner.of(SchemaMessage.of(batch.schema), checked=True)
    assert joiner is not None
    return joiner


@settings(suppress_health_check=list(HealthCheck), max_examples=examples(0.5))
@given(table=tables(), cut=st.booleans())
def test_a_joined_message_has_exactly_the_rows_of_its_frames(
    table: tuple[pa.Schema, list[pa.RecordBatch]], cut: bool
) -> None:
    schema, batches = table
    if cut:  # validity at odd bits, and offsets that do not begin at 0
        batches = [batch.slice(1) for batch in batches if batch.num_rows]
    if len(batches) < 2:
        return
    found = joined(schema, frames(batches))
    if found is not None:
        assert found.schema == schema
        assert pa.Table.from_batches([found]).to_pylist() == pa.Table.from_batches(batches).to_pylist()


def test_frames_of_the_same_header_or_only_the_same_size_are_told_apart() -> None:
    schema = pa.schema({"n": pa.int64(), "text": pa.string()})
    columns = [
        {"n": [1, None, *range(6)], "text": [*"abcdefg", "hi"]},
        {"n": [None, 2, *range(6)], "text": [*"ABCDEFG", "HI"]},  # another body
        {"n": [None, None, *range(6)], "text": [*"abcdefg", "hi"]},  # another header
        {"n": [None, None, *range(6)], "text": ["abcdefghi", *[""] * 7]},  # other offsets
        {"n": range(9), "text": [*"abcdefgh", ""]},  # other rows
    ]
    batches = [pa.record_batch(each, schema=schema) for each in columns]
    stored = frames(batches)
    assert len({len(wire.locate(each).header) for each in stored}) == 1
    order = [0, 0, 1, 1, 0, 2, 0, 2, 2, 3, 3, 1, 0, 4]
    found = joined(schema, [stored[number] for number in order])
    assert found is not None
    assert found.to_pylist() == pa.Table.from_batches([batches[number] for number in order]).to_pylist()
    joiner = joiner_of(batches[0])
    for number in order:
        assert joiner.parts_of(stored[number]) == wire.locate(stored[number])


NUMBERS = pa.record_batch({"n": pa.array([1, None, 3], pa.int64()), "text": ["a", "bc", None]})
PLAIN_TYPES = [
    pa.array([1, None, 3], pa.int32()),
    pa.array([True, None, False]),
    pa.array(["a", None, "bcd"], pa.large_string()),
    pa.array(["a", None, "a text that is longer than a view holds"], pa.string_view()),
    pa.array([[1, 2], None, []], pa.list_(pa.int8())),
    pa.array([[1, 2], None, []], pa.list_view(pa.int8())),
    pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    pa.array([None, None, None], pa.null()),
    pa.array([1.5, 1.5, 2.0]).cast(pa.float16()),
    pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["x", "y", "z"])]
    ),
    pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()),
        pa.array([0, 0, 1], pa.int32()),
        [pa.array([1, 2]), pa.array(["x"])],
    ),
]


@pytest.mark.parametrize("column", PLAIN_TYPES, ids=[str(each.type)[:30] for each in PLAIN_TYPES])
def test_columns_of_any_type_are_joined(column: pa.Array) -> None:
    batches = [pa.record_batch({"column": each, "n": range(len(each))}) for each in (column, column.slice(1))]
    found = joined(batches[0].schema, frames(batches))
    assert found is not None
    assert found["column"].to_pylist() == [*column.to_pylist(), *column.to_pylist()[1:]]


def test_frames_that_were_not_checked_are_joined_only_if_they_are_valid() -> None:
    batch = pa.record_batch({"texts": [["a", "bc"], ["d"]]})
    (stored,) = frames([batch])
    offsets = [number.to_bytes(4, "little") for number in (0, 1, 3, 4)]
    malformed = stored.replace(b"".join(offsets), b"".join((*offsets[:2], offsets[0], offsets[3])))
    assert malformed != stored
    found = joined(batch.schema, [stored] * 2, checked=False)
    assert found is not None
    assert found.to_pylist() == batch.to_pylist() * 2
    assert joined(batch.schema, [stored, malformed], checked=False) is None


def test_small_frames_that_would_become_a_huge_one_are_not_joined() -> None:
    kind = pa.list_(pa.struct([("nothing", pa.null())]))
    many = pa.StructArray.from_arrays([pa.nulls(1 << 20)], ["nothing"])
    huge = pa.ListArray.from_arrays(pa.array([0, len(many)], pa.int32()), many)
    batches = [
        pa.record_batch({"n": column}) for column in (huge, pa.array([[{"nothing": None}, None]], kind))
    ]
    assert sum(map(len, frames(batches))) < 1000
    assert joined(batches[0].schema, frames(batches)) is None
    found = joined(batches[0].schema, frames(batches[1:] * 2))
    assert found is not None
    assert found.num_rows == 2


RUNS = pa.run_end_encoded(pa.int32(), pa.int8())
DICTIONARY_INSIDE = pa.list_(pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))]))


@pytest.mark.parametrize(
    "kinds",
    [[RUNS], [pa.list_(RUNS)], [pa.struct([("runs", RUNS)])], [DICTIONARY_INSIDE], [pa.int8()] * 2000],
    ids=["runs", "list of runs", "struct of runs", "dictionary inside", "wide"],
)
def test_frames_of_some_schemas_are_not_joined(kinds: list[pa.DataType]) -> None:
    """Of runs because a small frame may have a billion rows."""
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    assert not FrameJoiner.of(SchemaMessage.of(schema), checked=True)


def headed() -> bytes:
    """A frame with metadata in its header."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, NUMBERS.schema) as writer:
        writer.write_batch(NUMBERS, custom_metadata={"its": "own"})
    *_, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return flight_data(message.metadata.to_pybytes(), message.body.to_pybytes())


ZEROS = pa.record_batch({"n": [0] * 10_000})
WIDE = pa.record_batch({f"c{n}": [n] for n in range(100)})


@pytest.mark.parametrize(
    ("batch", "frame"),
    [
        (NUMBERS, frames([NUMBERS])[0] + wire.field(3, b"app metadata")),
        (NUMBERS, headed()),
        (ZEROS, frames([ZEROS], compression="zstd")[0]),
        (WIDE, frames([WIDE])[0]),
    ],
    ids=["app metadata", "metadata in the header", "compressed", "many columns"],
)
def test_some_frames_are_not_joined(batch: pa.RecordBatch, frame: bytes) -> None:
    joiner = joiner_of(batch)
    for _ in range(2):
        assert joiner.parts_of(frame) is None
        assert (joiner.parts_of(frames([batch])[0]) is None) == (batch is WIDE)
