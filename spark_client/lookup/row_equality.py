"""Whether rows are the same in every bit, for all types that Spark can hold.

Guarantee: two rows are the same if each value is null in both, or has the same bits in both; nested values are
compared element by element. Floats are compared by their bits: the count of one is never changed for the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from spark_client.arrow import array_over, offsets
from spark_client.joining import flags

Positions = NDArray[np.int64]


def same_rows(batch: pa.RecordBatch, first: Positions, second: Positions) -> NDArray[np.bool_]:
    """For each pair of row numbers of the batch, whether the two rows are the same."""
    found = np.ones(len(first), np.bool_)
    for column in batch.columns:
        found &= _same(column.take(array_over(first)), column.take(array_over(second)))
    return found


def _same(one: Any, two: Any) -> NDArray[np.bool_]:
    if isinstance(one, pa.ExtensionArray):
        return _same(one.storage, two.storage)
    valid, other = flags(one.is_valid()), flags(two.is_valid())
    both = valid & other
    if both.any():
        both[both] = _same_values(_where(one, both), _where(two, both))
    return both | ~(valid | other)


def _same_values(one: Any, two: Any) -> NDArray[np.bool_]:
    """The same for arrays that have no nulls."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as in layers

    kind = one.type
    if types.is_struct(kind):
        found = np.ones(len(one), np.bool_)
        for index in range(kind.num_fields):
            found &= _same(one.field(index), two.field(index))
        return found
    if types.is_map(kind):
        return _same_lists(
            one,
            two,
            pa.StructArray.from_arrays([one.keys, one.items], ["k", "v"]),
            pa.StructArray.from_arrays([two.keys, two.items], ["k", "v"]),
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return _same_lists(one, two, one.values, two.values)
    if types.is_floating(kind):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
        one, two = one.view(bits), two.view(bits)
    return flags(pc.equal(one, two))


def _same_lists(one: Any, two: Any, elements: Any, others: Any) -> NDArray[np.bool_]:
    starts, lengths = _spans(one)
    other_starts, other_lengths = _spans(two)
    found: NDArray[np.bool_] = lengths == other_lengths
    lengths = np.where(found, lengths, 0)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    same = _same(
        elements.take(array_over(starts[rows] + within)), others.take(array_over(other_starts[rows] + within))
    )
    found[rows[~same]] = False
    return found


def _spans(lists: Any) -> tuple[Positions, Positions]:
    bounds = offsets(lists).astype(np.int64)
    return bounds[:-1], np.diff(bounds)


def _where(array: Any, kept: NDArray[np.bool_]) -> Any:
    return array if kept.all() else array.take(array_over(np.flatnonzero(kept)))
