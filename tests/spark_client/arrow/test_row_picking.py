"""Rows picked from arrays of awkward layouts equal the rows of the same values as plain Python objects."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_client.arrow.numbered_rows import SHORTEST_BYTES, Picker

RANDOM = random.Random(3)
VECTORS: list[Any] = [
    None if index % 7 == 3 else [index + place for place in range(RANDOM.randrange(40))]
    for index in range(200)
]
LONG = [[index] * 30 for index in range(50)]


def sliced_child() -> pa.Array:
    """A list array over a part of a child array, which starts in the middle of its buffer."""
    child = pa.array(np.arange(10_000, dtype=np.int64)).slice(1_234)
    return pa.ListArray.from_arrays(pa.array(np.arange(101, dtype=np.int32) * 20), child)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(VECTORS, pa.list_(pa.int64())),
        pa.array(VECTORS, pa.large_list(pa.float32())),
        pa.array(VECTORS, pa.list_(pa.field("odd name", pa.int16(), metadata={"a": "b"}))),
        pa.array(VECTORS, pa.list_(pa.int64())).slice(13, 150),
        pa.array(LONG, pa.list_(pa.float64())),
        pa.array([[*row, None] for row in LONG], pa.list_(pa.float64())),
        pa.array([[True, False] * 200] * 20, pa.list_(pa.bool_())),
        pa.array([[f"text {index}"] * 9 for index in range(30)], pa.list_(pa.string())),
        pa.array([[]] * 40, pa.list_(pa.int64())),
        pa.array([None] * 40, pa.list_(pa.int64())),
        sliced_child(),
        sliced_child().slice(7, 80),
    ],
    ids=lambda column: str(column.type),
)
def test_picked_rows_are_the_rows(column: pa.Array) -> None:
    rows = column.to_pylist()
    batch = pa.record_batch([column, pa.array(range(len(rows)))], names=["l", "n"])
    for size in (0, 1, 3 * len(rows)):
        positions = np.array([RANDOM.randrange(len(rows)) for _ in range(size)], np.int64)
        picked = Picker(batch).take(positions)
        picked.validate(full=True)
        assert picked.schema.equals(batch.schema, check_metadata=True)
        assert picked.column(0).to_pylist() == [rows[position] for position in positions.tolist()]
        assert picked.column(1).to_pylist() == positions.tolist()


def test_a_result_owns_its_rows_only() -> None:
    vectors = pa.array([[float(index)] * SHORTEST_BYTES for index in range(1_000)], pa.list_(pa.float64()))
    batch = pa.record_batch([vectors], names=["v"])
    picked = Picker(batch).take(np.array([5, 900]))
    assert picked.get_total_buffer_size() <= 2 * SHORTEST_BYTES * 8 + 64
