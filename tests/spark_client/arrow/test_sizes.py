"""The sizes of rows, one by one and together, against Arrow's ``nbytes`` of the same rows."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest

from spark_client.arrow.sizes import (
    batch_bits_before,
    buffer_count,
    held_buffers,
    row_bytes,
)

COLUMNS: list[pa.Array] = [
    pa.array([True, None, False] * 30),
    pa.array(range(90), pa.int16()),
    pa.array([None] * 90),
    pa.array(["", None, "abc", "x" * 50] * 20),
    pa.array([b"", b"abc"] * 40, pa.large_binary()),
    pa.array([b"abc", None] * 40, pa.binary(3)),
    pa.array([[1, 2], None, [], [3]] * 20, pa.list_(pa.int32())),
    pa.array([["a", "bcd"], None, [], [None]] * 20, pa.large_list(pa.string())),
    pa.array([[1, None], [3, 4]] * 40, pa.list_(pa.int32(), 2)),
    pa.array([["a", "bcd"], [None, "e"]] * 40, pa.list_(pa.string(), 2)),
    pa.array([{"a": 1, "b": "xyz"}, None, {"a": None, "b": ""}] * 30),
    pa.array([[("k", [1, 2])], None, []] * 30, pa.map_(pa.string(), pa.list_(pa.int8()))),
    pa.array([[{"a": ["b", "c"]}], [], None] * 30),
    pa.array([bytes(16)] * 40, pa.uuid()),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
@pytest.mark.parametrize("part", [slice(None), slice(7, 40), slice(3, 4), slice(5, 5)], ids=str)
def test_the_bits_before_a_place_are_those_that_arrays_of_the_rows_before_it_take(
    column: pa.Array, part: slice
) -> None:
    rows = column[part]
    batch = pa.record_batch([rows, rows], names=["a", "b"])
    places = np.array([0, len(rows) // 3, len(rows) // 3, len(rows)])
    for place, bits in zip(places, batch_bits_before(batch, places), strict=True):
        # Each buffer may exceed its rows: bits fill whole bytes, and offsets have an end.
        assert abs(8 * batch.slice(0, place).nbytes - bits) <= 16 * 8 * buffer_count(batch)
    each = np.broadcast_to(np.asarray(row_bytes(batch)), len(rows))
    bits = np.diff(batch_bits_before(batch, np.arange(len(rows) + 1)))
    assert each.tolist() == np.ceil(bits / 8).tolist()


def test_a_slice_and_a_part_of_a_message_hold_all_of_it() -> None:
    batch = pa.record_batch([pa.array(np.arange(1_000)), pa.array(np.arange(1_000))], names=["a", "b"])
    assert sum(held_buffers(batch.slice(3, 5)).values()) == 16_000
    file = io.BytesIO()
    with pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    received = pa.ipc.open_stream(pa.PythonFile(io.BytesIO(file.getvalue()), "r")).read_next_batch()
    assert sum(held_buffers(received.select(["a"])).values()) >= 16_000
