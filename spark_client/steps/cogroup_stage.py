"""The stage of ``cogroup(...).applyInArrow``: a function for each key of two inputs.

Guarantee: one call for each key that any side has, with all rows of the key on each side, in their input order; a side
without the key gives no rows, with its schema. Keys are equal as in Spark's GROUP BY (``placement.grouping``): null
equals null, NaN every NaN, -0.0 equals 0.0; keys of unlike types are compared in the common one
(``joining.join_keys``).

Memory
    Both inputs are gathered in windows (``spill.key_windows``). A window's rows are copied in the order of their
    groups, at most ``PIECE_BYTES`` at a time, or one group. A function that takes tables needs room for its largest
    group; one that takes iterators gets a group beyond the budget from the file, batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import group_codes, row_hashes
from spark_client.arrow import (
    Declared,
    Lent,
    NumberedRows,
    array_over,
    cuts,
    together,
    values,
    widened,
)
from spark_client.placement import PlacedKeys
from spark_client.spill import Window, windows

from .function_results import Call, batches_of, group_results, table_of
from .known_keys import KnownKeys
from .one_pass import Both, Pass

PIECE_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 128 * 1024 * 1024

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class GroupedSide:
    """One input.

    Args:
        keys: names of columns.
        compared: of each key, the type in which it is compared with the other side's.
        schema: the input's.
        placed: checks that the exchange would place the keys here.
    """

    keys: tuple[str, ...]
    compared: tuple[pa.DataType, ...]
    schema: pa.Schema
    placed: PlacedKeys

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The keys as they are compared."""
        columns = (batch.column(key) for key in self.keys)
        return [widened(column, kind) for column, kind in zip(columns, self.compared, strict=True)]

    def hashes(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        """The hash of each row's keys, for windows."""
        return row_hashes(self.key_columns(batch), batch.num_rows)


@dataclass(frozen=True)
class CogroupStage:
    """``cogroup(...).applyInArrow``: ``with_keys`` and ``iterates`` give ``fn``'s signature."""

    fn: Callable[..., Any]
    declared: Declared
    left: GroupedSide
    right: GroupedSide
    with_keys: bool
    iterates: bool

    divisible = False
    divisible_sides = frozenset[str]()

    def run(self, both: Both, how: Pass) -> Iterator[Any]:
        """The function's results, checked, cast and joined.

        Raises:
            InvalidRequest: a group's key belongs to another partition, or a result does not have the declared schema.
        """
        return group_results(self.declared, self._calls(both, how))

    def _calls(self, both: Both, how: Pass) -> Iterator[tuple[Lent, Call]]:
        hashes = (self.left.hashes, self.right.hashes)
        for window in windows(both, hashes, how.memory):
            if window.one_hash and self.iterates:
                yield from self._streamed(window, how)
            else:
                yield from self._grouped(window, how)

    def _grouped(self, window: Window, how: Pass) -> Iterator[tuple[Lent, Call]]:
        """The groups of a window in memory."""
        sides = (self.left, self.right)
        rows = [NumberedRows(together(side.taken())) for side in window.sides]
        columns = [
            [side.key_columns(batch) for batch in each.batches]
            for side, each in zip(sides, rows, strict=True)
        ]
        if not (columns[0] or columns[1]):
            return
        codes = values(
            group_codes(
                [pa.chunked_array(list(parts)) for parts in zip(*columns[0], *columns[1], strict=True)]
            ),
            np.int32,
        )
        groups = int(codes.max()) + 1
        left = _Sorted(rows[0], codes[: rows[0].count], groups, self.left.schema)
        right = _Sorted(rows[1], codes[rows[0].count :], groups, self.right.schema)
        del rows, columns, codes
        for first, last in cuts(left.before + right.before, 0, groups, PIECE_BYTES):
            tables = left.table(first, last), right.table(first, last)
            for side, each, table in zip(sides, (left, right), tables, strict=True):
                self._check(side, each.keys(table, side.keys, first, last), how)
            bounds = left.starts(first, last), right.starts(first, last)
            for at in range(last - first):
                one, two = (
                    table.slice(starts[at], starts[at + 1] - starts[at])
                    for table, starts in zip(tables, bounds, strict=True)
                )
                yield Lent(_Two(one, two)), partial(self._tables, one, two, how)

    def _streamed(self, window: Window, how: Pass) -> Iterator[tuple[Lent, Call]]:
        """The groups of a window whose rows are in a file. Almost always there is one."""
        known = KnownKeys()
        sides = (self.left, self.right)
        firsts = [
            known.firsts(rows, side.key_columns, side.keys)
            for side, rows in zip(sides, window.sides, strict=True)
        ]
        for side, found in zip(sides, firsts, strict=True):
            for keys in found.values():
                self._check(side, keys, how)
        for code in range(known.count):
            keys = next(found[code] for found in firsts if code in found)
            one, two = (
                how.limits.cut(known.rows(code, side.key_columns, rows) if code in found else iter(()))
                for side, rows, found in zip(sides, window.sides, firsts, strict=True)
            )
            lent = Lent()
            scalars = tuple(column[0] for column in keys.columns)
            yield lent, self._call(batches_of, scalars, lent.each(one), two)

    def _tables(self, left: pa.Table, right: pa.Table, how: Pass) -> Iterable[Any]:
        side, rows = (self.left, left) if left.num_rows else (self.right, right)
        keys = tuple(rows.column(key)[0] for key in side.keys) if self.with_keys else ()
        if self.iterates:
            cut = how.limits.cut
            return self._call(batches_of, keys, cut(iter(left.to_batches())), cut(iter(right.to_batches())))()
        return self._call(table_of, keys, left, right)()

    def _call(self, results: Callable[..., Any], keys: tuple[Any, ...], left: Any, right: Any) -> Call:
        return partial(results, self.declared, self.fn, *((keys,) if self.with_keys else ()), left, right)

    def _check(self, side: GroupedSide, keys: pa.RecordBatch, how: Pass) -> None:
        if how.partition is not None:
            side.placed.check(keys, how.partition, self.declared.stage)


class _Sorted:
    """One side's rows in the order of their groups."""

    def __init__(self, rows: NumberedRows, codes: NDArray[np.int32], groups: int, schema: pa.Schema) -> None:
        import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which other tasks do without

        self._rows, self._schema = rows, schema
        self._order = values(pc.array_sort_indices(array_over(codes)), np.uint64).astype(np.int64)
        self._bounds = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=groups))])
        self._bytes_before = np.concatenate([[0], np.cumsum(rows.sizes()[self._order])])
        self.before: Positions = self._bytes_before[self._bounds]
        """The bytes before each group, and after the last."""

    def table(self, first: int, last: int) -> pa.Table:
        """The rows of the groups from ``first`` to before ``last``; several chunks only for one group."""
        start, end = int(self._bounds[first]), int(self._bounds[last])
        pieces = [
            self._rows.take(self._order[at:to])
            for at, to in cuts(self._bytes_before, start, end, _CHUNK_BYTES)
        ]
        # Without rows one chunk, too, as in Spark: PySpark makes no DataFrame of none.
        return pa.Table.from_batches(pieces, self._schema) if pieces else self._schema.empty_table()

    def starts(self, first: int, last: int) -> list[int]:
        """Where these groups begin in their table, and its end."""
        found: list[int] = (self._bounds[first : last + 1] - self._bounds[first]).tolist()
        return found

    def keys(self, table: pa.Table, names: Sequence[str], first: int, last: int) -> pa.RecordBatch:
        """The keys of those groups that have rows."""
        starts = self._bounds[first : last + 1] - self._bounds[first]
        at = array_over(starts[:-1][np.diff(starts) > 0])
        columns = [
            table.column(name).chunk(0).take(at) if len(at) else pa.nulls(0, self._schema.field(name).type)
            for name in names
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(names))


class _Two:
    """What is lent together."""

    def __init__(self, *tables: pa.Table) -> None:
        self._tables = tables

    @property
    def columns(self) -> list[Any]:
        return [column for table in self._tables for column in table.columns]
