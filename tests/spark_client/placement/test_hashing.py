"""Slices and nested columns are placed as each of their rows is; `test_hashing_in_spark` has Spark itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_client.placement import murmur3
from spark_client.placement.hashing import (
    SLICE_ROWS,
    partition_ids,
    round_robin_ids,
    round_robin_start,
)
from tests.support.examples import examples

# --- Against single rows ----------------------------------------------------------------------------------


def ids_of_rows(batch: pa.RecordBatch, partitions: int) -> list[int]:
    """Where each row alone is placed."""
    rows = (pa.RecordBatch.from_pylist([row], batch.schema) for row in batch.to_pylist())
    return [int(partition_ids(row, batch.schema.names, partitions)[0]) for row in rows]


def scalar_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        top = 1 << (kind.bit_width - 1)
        return st.integers(-top, top - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pa.types.is_decimal(kind):
        return st.decimals(allow_nan=False, allow_infinity=False, places=kind.scale).filter(
            lambda value: len(value.as_tuple().digits) <= kind.precision
        )
    return st.binary(max_size=30) if "binary" in str(kind) else st.text(max_size=20)


SCALARS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.decimal128(10, 3), pa.decimal128(30, 5)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
]


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    shape = draw(st.sampled_from(["scalar"] * 3 + ["list", "struct"])) if depth else ""
    if shape == "struct":
        fields = [draw(typed_values(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        kind = pa.struct([(f"f{index}", field) for index, (field, _) in enumerate(fields)])
        values = st.fixed_dictionaries({f"f{index}": inner for index, (_, inner) in enumerate(fields)})
        return kind, st.none() | values
    if shape == "list":
        element, inner = draw(typed_values(depth - 1))
        return pa.list_(element), st.none() | st.lists(inner, max_size=4)
    kind = draw(st.sampled_from(SCALARS))
    return kind, st.none() | scalar_values(kind)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 12))
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        kind, values = draw(typed_values())
        column = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
        columns.append(column)
    batch = pa.record_batch(columns, names=[f"c{index}" for index in range(len(columns))])
    first = draw(st.integers(0, rows))
    return batch.slice(first, draw(st.integers(0, rows - first)))


@settings(max_examples=examples(0.5))
@given(batch=batches(), partitions=st.sampled_from([1, 2, 3, 16, 200, 2**31 - 1]))
def test_any_slice_of_any_schema_is_placed_as_its_rows_are(batch: pa.RecordBatch, partitions: int) -> None:
    assert partition_ids(batch, batch.schema.names, partitions).tolist() == ids_of_rows(batch, partitions)


@pytest.mark.long
def test_batches_longer_than_a_slice_are_placed_without_a_seam() -> None:
    rows = 2 * SLICE_ROWS + 77
    values = np.random.default_rng(7).integers(-(2**40), 2**40, rows)
    numbers = pa.array(values, mask=values % 5 == 0)
    texts = pa.array([None if value % 7 == 0 else str(value)[: value % 11] for value in values.tolist()])
    whole = pa.record_batch([numbers, texts], names=["n", "t"])
    pieces = [partition_ids(whole.slice(first, 1000), ["n", "t"], 97) for first in range(0, rows, 1000)]
    expected = np.concatenate(pieces).tolist()
    for part in (slice(None), slice(3, None), slice(SLICE_ROWS - 1, 2 * SLICE_ROWS + 1)):
        ids = partition_ids(whole[part], ["n", "t"], 97)
        assert ids.dtype == np.int32
        assert ids.tolist() == expected[part]


@pytest.mark.long
def test_one_very_long_string_among_short_ones_is_hashed_whole() -> None:
    long = "".join(map(str, range(2 * murmur3.TAIL_WORDS)))
    assert len(long) > 8 * murmur3.TAIL_WORDS
    texts = pa.array([*map(str, range(100)), long, *("ab" * length for length in range(60)), long[:-1]])
    batch = pa.record_batch([texts], names=["t"])
    assert partition_ids(batch, ["t"], 1_000).tolist() == ids_of_rows(batch, 1_000)


def test_every_nan_and_both_zeros_are_one_value_each() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    zeros = np.array([0.0, -0.0])
    for values in (nans, zeros, np.array([0x7FC00000, 0x7F800001, 0xFFC00000], np.uint32).view(np.float32)):
        batch = pa.record_batch([pa.array(values)], names=["x"])
        assert len(set(partition_ids(batch, ["x"], 2**31 - 1).tolist())) == 1


# --- Without keys -----------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 50), max_size=6),
    start=st.integers(0, 10**12),
    partitions=st.integers(1, 40),
)
def test_round_robin_goes_on_over_the_batches_of_a_producer(
    sizes: list[int], start: int, partitions: int
) -> None:
    dealt: list[int] = []
    for size in sizes:
        ids = round_robin_ids(size, start + len(dealt), partitions)
        assert ids.dtype == np.int32
        dealt += ids.tolist()
    assert dealt == [(start + row) % partitions for row in range(sum(sizes))]


def test_producers_of_one_row_each_fill_the_partitions_evenly() -> None:
    for partitions in (1, 7, 16, 200):
        starts = [round_robin_start(producer, partitions) for producer in range(10 * partitions)]
        rows = np.bincount(starts, minlength=partitions)
        assert rows.size == partitions
        assert rows.min() >= 8
        assert rows.max() <= 12
