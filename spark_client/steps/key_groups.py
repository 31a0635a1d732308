"""The rows of one or two inputs, group by group.

Guarantee: each key that any side has comes once, with all its rows on each side, in their order; a side without the
key has a table without rows. Keys are equal as in ``arrow.group_codes``, and come in the order of their first rows,
of the left side before those of the right.

Memory
    Rows are copied in the order of their groups, ``WINDOW_BYTES`` at a time, or one group if it is larger, which comes
    in chunks of at most ``CHUNK_BYTES``, or of one row. If all are within ``BLOCK_BYTES``, they are copied at once: out
    of one batch twice as fast as out of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import compute, row_hashes
from spark_client.arrow import (
    SMALL_BYTES,
    NumberedRows,
    Picker,
    array_over,
    cuts,
    group_codes,
    together,
    values,
    widened,
)
from spark_client.placement import PlacedKeys

WINDOW_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 128 * 1024 * 1024
BLOCK_BYTES = 16 * 1024 * 1024

Group = tuple[tuple[Any, ...], tuple[pa.Table, ...]]


@dataclass(frozen=True)
class GroupedSide:
    """One input.

    Args:
        keys: names of columns.
        compared: of each key, the type in which it is compared with the other side's.
        schema: the input's.
        placed: checks that the exchange would place the keys here; None for no check.
    """

    keys: tuple[str, ...]
    compared: tuple[pa.DataType, ...]
    schema: pa.Schema
    placed: PlacedKeys | None = None

    @classmethod
    def alone(cls, keys: tuple[str, ...], schema: pa.Schema, placed: PlacedKeys | None = None) -> GroupedSide:
        """The only input: its keys are compared in their own types."""
        return cls(keys, tuple([schema.field(key).type for key in keys]), schema, placed)

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        columns = (batch.column(key) for key in self.keys)
        return [widened(column, kind) for column, kind in zip(columns, self.compared, strict=True)]

    def hashes(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        return row_hashes(self.key_columns(batch), batch.num_rows)


Check = Callable[[GroupedSide, pa.RecordBatch], None]


def groups(
    inputs: Sequence[list[pa.RecordBatch]],
    sides: Sequence[GroupedSide],
    *,
    with_keys: bool = True,
    check: Check = lambda *_: None,
) -> Iterator[Group]:
    """Each group's keys as a tuple of Arrow scalars, and its rows on each side.

    Args:
        inputs: each side's rows, in types that ``arrow.sizes`` can weigh. The lists are emptied.
        with_keys: False for empty tuples.
        check: called for each window and side before its groups, with one row of keys for each group with rows there.
    """
    small = sum(batch.nbytes for batches in inputs for batch in batches) <= BLOCK_BYTES
    rows = [NumberedRows(together(batches, BLOCK_BYTES if small else SMALL_BYTES)) for batches in inputs]
    keys = [side.key_columns(batch) for side, each in zip(sides, rows, strict=True) for batch in each.batches]
    if not keys:
        return
    codes = group_codes([pa.chunked_array(parts) for parts in zip(*keys, strict=True)])
    del keys
    count = int(values(codes, np.int32).max()) + 1
    start, sorted_sides = 0, list[_Sorted]()
    for side, each in zip(sides, rows, strict=True):
        sorted_sides.append(_Sorted(side, each, codes.slice(start, each.count), count, weighed=not small))
        start += each.count
    del rows, codes
    before: NDArray[np.int64] = np.sum([each.before for each in sorted_sides], axis=0)
    for first, last in cuts(before, 0, count, WINDOW_BYTES):
        parts = [each.rows_of(first, last) for each in sorted_sides]
        for side, (_, _, keyed) in zip(sides, parts, strict=True):
            check(side, keyed)
        slices = [_slices(table, starts) for table, starts, _ in parts]
        yield from zip(_scalars(parts) if with_keys else repeat(()), zip(*slices, strict=True), strict=False)


Part = tuple[pa.Table, list[int], pa.RecordBatch]


class _Sorted:
    """One side's rows in the order of their groups."""

    def __init__(
        self, side: GroupedSide, rows: NumberedRows, codes: pa.Array, groups: int, *, weighed: bool
    ) -> None:
        self._side, self._rows = side, rows
        self._order = values(compute().array_sort_indices(codes), np.uint64).view(np.int64)
        self._bounds = np.zeros(groups + 1, np.int64)
        np.cumsum(np.bincount(values(codes, np.int32), minlength=groups), out=self._bounds[1:])
        # Where all rows are one window, their sizes do not matter.
        self._bytes_before = rows.bytes_before(self._order) if weighed else np.zeros(rows.count + 1, np.int64)
        self.before: NDArray[np.int64] = self._bytes_before[self._bounds]
        """The bytes before each group, and after the last."""

    def rows_of(self, first: int, last: int) -> Part:
        """The rows of the groups from ``first`` to before ``last``, in several chunks only for one group; where each
        begins, and the last one's end; and the keys of those that have rows.
        """
        schema, start, end = self._side.schema, int(self._bounds[first]), int(self._bounds[last])
        bounds = cuts(self._bytes_before, start, end, CHUNK_BYTES)
        pieces = [self._rows.take(self._order[at:to]) for at, to in bounds]
        # Without rows one chunk, too, as in Spark: PySpark makes no DataFrame of none.
        table = pa.Table.from_batches(pieces, schema) if pieces else schema.empty_table()
        starts = self._bounds[first : last + 1] - start
        at = array_over(starts[:-1][np.diff(starts) > 0])
        # A group's first row is in the first chunk.
        columns = [table.column(name).chunk(0).take(at) for name in self._side.keys]
        return table, starts.tolist(), pa.RecordBatch.from_arrays(columns, names=list(self._side.keys))


def _slices(table: pa.Table, starts: list[int]) -> Iterator[pa.Table]:
    return (table.slice(start, end - start) for start, end in pairwise(starts))


def _scalars(parts: Sequence[Part]) -> Iterator[tuple[Any, ...]]:
    """The keys of each group, of the first side that has rows of it."""
    scalars = [zip(*keyed.columns, strict=True) for _, _, keyed in parts]
    if len(scalars) == 1:
        yield from scalars[0]
        return
    for at in range(len(parts[0][1]) - 1):
        yield next(
            keys
            for keys in [
                next(each) if starts[at] < starts[at + 1] else None
                for each, (_, starts, _) in zip(scalars, parts, strict=True)
            ]
            if keys is not None
        )


class KnownKeys:
    """The distinct keys of batches that share a hash, numbered from 0 by first appearance. Nearly always there is one;
    further keys take further passes over the rows.
    """

    def __init__(self) -> None:
        self._columns: list[pa.Array] = []
        self.count = 0

    def codes(self, columns: list[pa.Array]) -> NDArray[np.int32]:
        """The number of each row's key; new keys get the next numbers."""
        parts = [[column] for column in columns]
        if self._columns:
            parts = [[known, *part] for known, part in zip(self._columns, parts, strict=True)]
        every = [pa.chunked_array(part) for part in parts]
        codes = values(group_codes(every), np.int32)
        # Codes count by first appearance, so the known keys keep theirs.
        _, firsts = np.unique(codes, return_index=True)
        if len(firsts) > self.count:
            at = array_over(firsts)
            self._columns = [pa.concat_arrays(column.take(at).chunks) for column in every]
        known, self.count = self.count, len(firsts)
        return codes[known:]

    def firsts(self, side: GroupedSide, batches: Iterable[pa.RecordBatch]) -> dict[int, pa.RecordBatch]:
        """The number of each key of these batches, and the key's columns in its first row."""
        firsts: dict[int, pa.RecordBatch] = {}
        for batch in batches:
            codes, rows = np.unique(self.codes(side.key_columns(batch)), return_index=True)
            for code, row in zip(codes.tolist(), rows.tolist(), strict=True):
                if code not in firsts:
                    firsts[code] = batch.select(side.keys).take(array_over(np.array([row])))
        return firsts

    def rows(
        self, code: int, side: GroupedSide, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one key, among batches whose keys are all known."""
        for batch in batches:
            if self.count == 1:
                yield batch
                continue
            chosen = np.flatnonzero(self.codes(side.key_columns(batch)) == code)
            if len(chosen):
                yield Picker(batch).take(chosen)
