"""Frames of flat columns, joined without Arrow: what Arrow decodes, and what is left to it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.frames.joining import FlatColumns
from flight_server.protocol import wire
from tests.support.raw_flight import flight_data, ipc_messages

NUMBERS = pa.schema(
    {
        "long": pa.int64(),
        "bits": pa.bool_(),
        "text": pa.string(),
        "large": pa.large_binary(),
        "four": pa.binary(4),
        "decimal": pa.decimal128(12, 3),
        "half": pa.float16(),
        "time": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "byte": pa.uint8(),
        "span": pa.month_day_nano_interval(),
    }
)


def parts(batches: list[pa.RecordBatch]) -> list[wire.FlightData]:
    messages = ipc_messages(batches[0].schema, batches)[1:]
    return [wire.locate(flight_data(each.header, each.body)) for each in messages]


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """What a reader decodes; None if Arrow has to join them."""
    schema = batches[0].schema
    columns = FlatColumns.of(schema)
    assert columns is not None
    message = columns.join(parts(batches))
    if message is None:
        return None
    found = wire.locate(message)
    assert len(found.header) % 8 == 0
    prefix = b"\xff\xff\xff\xff" + len(found.header).to_bytes(4, "little")
    stream = b"".join((schema.serialize().to_pybytes(), prefix, found.header, found.body))
    (batch,) = pa.ipc.open_stream(pa.py_buffer(stream))
    batch.validate(full=True)
    return batch


def batch_of(rows: int, seed: int, *, nulls: bool) -> pa.RecordBatch:
    def column(make: Any) -> list[Any]:
        return [None if nulls and (seed + row) % 3 == 0 else make(seed + row) for row in range(rows)]

    return pa.record_batch(
        {
            "long": pa.array(column(lambda n: n), pa.int64()),
            "bits": pa.array(column(lambda n: n % 5 == 0), pa.bool_()),
            "text": pa.array(column(lambda n: "é" * (n % 4)), pa.string()),
            "large": pa.array(column(lambda n: b"x" * (n % 3)), pa.large_binary()),
            "four": pa.array(column(lambda n: n.to_bytes(4, "little")), pa.binary(4)),
            "decimal": pa.array(column(lambda n: Decimal(n) / 8), pa.decimal128(12, 3)),
            "half": pa.array(column(float), pa.float32()).cast(pa.float16()),
            "time": pa.array(column(lambda n: n), pa.timestamp("us", "UTC")),
            "day": pa.array(column(lambda n: dt.date(2026, 1, 1 + n % 28)), pa.date32()),
            "byte": pa.array(column(lambda n: n % 256), pa.uint8()),
            "span": pa.array(column(lambda n: (n, 1, 2)), pa.month_day_nano_interval()),
        },
        schema=NUMBERS,
    )


@given(
    frames=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 100), st.booleans(), st.integers(0, 8)), min_size=1
    ),
    last=st.integers(0, 20),
)
def test_flat_frames_are_joined_where_no_bits_are_shifted(
    frames: list[tuple[int, int, bool, int]], last: int
) -> None:
    batches = [batch_of(8 * eights + cut, seed, nulls=nulls)[cut:] for eights, seed, nulls, cut in frames]
    batches.append(batch_of(last, 7, nulls=True))
    found = joined(batches)
    wanted = pa.Table.from_batches(batches)
    assert (found is None) == (wanted.num_rows == 0)
    if found is not None:
        assert pa.Table.from_batches([found]).equals(wanted)


def test_frames_of_any_number_of_rows_are_joined_if_they_have_no_bits() -> None:
    schema = pa.schema({"n": pa.int64(), "text": pa.string()})
    batches = [
        pa.record_batch({"n": range(rows), "text": ["ab"] * rows}, schema=schema) for rows in (3, 0, 5, 1)
    ]
    found = joined(batches)
    assert found is not None
    assert found.to_pylist() == pa.Table.from_batches(batches).to_pylist()


@pytest.mark.parametrize("column", [pa.array([1, None, 3]), pa.array([True, False, True])])
def test_bits_that_would_have_to_be_shifted_are_left_to_arrow(column: pa.Array) -> None:
    assert joined([pa.record_batch({"column": column})] * 2) is None


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int8()),
        pa.struct({"n": pa.int8()}),
        pa.null(),
        pa.string_view(),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.uuid(),
    ],
)
def test_other_columns_are_left_to_arrow(kind: pa.DataType) -> None:
    assert FlatColumns.of(pa.schema({"n": pa.int8(), "other": kind})) is None


def test_nulls_that_a_producer_has_not_counted_are_left_to_arrow() -> None:
    batch = pa.record_batch({"column": pa.array([1, None, *range(6)])})
    columns = FlatColumns.of(batch.schema)
    assert columns is not None
    (frame,) = parts([batch])
    node = (8).to_bytes(8, "little") + (1).to_bytes(8, "little")
    assert node in bytes(frame.header)
    header = bytes(frame.header).replace(node, node[:8] + b"\xff" * 8)
    assert columns.join([frame, frame]) is not None
    assert columns.join([frame, frame._replace(header=memoryview(header))]) is None


def test_frames_of_another_schema_are_not_joined() -> None:
    columns = FlatColumns.of(pa.schema({"n": pa.int8()}))
    assert columns is not None
    for other in ({"n": [1, 2]}, {"n": [1], "m": [2]}, {"n": ["text"]}):
        batch = pa.record_batch(other)
        (frame,) = parts([batch])
        for end in range(0, len(frame.header), 8):
            assert columns.join([frame, frame._replace(header=frame.header[:end])]) is None
        assert (columns.join([frame, frame]) is None) == (other != {"n": [1, 2]})
        assert columns.join([frame, frame._replace(body=frame.body[:0])]) is None
