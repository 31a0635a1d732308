"""The stages of ``applyInArrow`` and ``cogroup(...).applyInArrow``: a function for each key of one or two inputs.

Guarantee: one call for each key that any side has (``key_groups``).

The inputs are gathered in windows (``spill.windows``). If they fit the budget, groups come in the order of their first
rows; beyond it window by window, in the order of their keys' hashes.

Groups beyond the budget
    A function of iterators gets such a group batch by batch from a file, so that memory follows the budget. A function
    of tables gets tables, which must fit the worker's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from spark_client.arrow import SMALL_ROWS, Declared, Lent, own, together
from spark_client.spill import Window, windows

from .key_groups import CHUNK_BYTES, GroupedSide, KnownKeys, groups
from .one_pass import Both, Pass, iterable, unexpected

BATCH_ROWS = 64 * 1024
BATCH_BYTES = 4 * 1024 * 1024

Call = Callable[[], Iterable[Any]]


def table_of(declared: Declared, fn: Callable[..., Any], *args: Any) -> Iterable[Any]:
    """The result of a function that must give a table. Raises InvalidRequest."""
    result = fn(*args)
    if not isinstance(result, pa.Table):
        raise unexpected(result, pa.Table, declared.stage)
    return (result,)


def batches_of(declared: Declared, fn: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """The results of a function that must give batches, one by one. Raises InvalidRequest."""
    for result in iterable(fn(*args), declared.stage, "an iterator"):
        if not isinstance(result, pa.RecordBatch):
            raise unexpected(result, pa.RecordBatch, declared.stage)
        yield result


def group_results(declared: Declared, calls: Iterable[tuple[Lent, Call]]) -> Iterator[Any]:
    """The results of all calls, in order, in batches of the declared schema, without empty ones.

    Args:
        calls: for each group what is lent to the function, and its call, which gives tables or batches. The next
            group is requested when the results of this one are copied.

    Raises:
        InvalidRequest: a result does not have the declared schema.
    """
    results: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for lent, call in calls:
        for result in call():
            if not result.num_rows:
                continue
            cast = declared.cast(result)
            for batch in cast.to_batches() if isinstance(cast, pa.Table) else [cast]:
                owned = _owned(batch, lent)
                results.append(owned)
                rows, size_bytes = rows + owned.num_rows, size_bytes + owned.get_total_buffer_size()
                if rows >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                    yield from _together(results)
                    results, rows, size_bytes = [], 0, 0
    yield from _together(results)


def _owned(batch: Any, lent: Lent) -> Any:
    """The rows in memory that the function cannot write to. A result that waits to be joined is copied in any case: a
    slice of its group would keep all rows that were copied with the group.
    """
    if batch.num_rows <= SMALL_ROWS or batch.nbytes < BATCH_BYTES:
        return pa.concat_batches([batch])
    return own(batch, lent)


def _together(results: list[pa.RecordBatch]) -> Iterator[Any]:
    """The rows in as few batches as their columns' offsets allow."""
    if len(results) <= 1:
        yield from results
    else:
        yield from pa.Table.from_batches(results).combine_chunks().to_batches()


@dataclass(frozen=True)
class GroupStage:
    """One call of ``fn`` for each key in the partition of one side or two. ``with_keys`` and ``iterates`` give ``fn``'s
    signature.
    """

    fn: Callable[..., Any]
    declared: Declared
    sides: tuple[GroupedSide, ...]
    with_keys: bool
    iterates: bool

    divisible = False
    ours = False
    overwritten = False

    def run(self, rows: Iterator[Any] | Both, how: Pass) -> Iterator[Any]:
        """The function's results, checked, cast and joined.

        Raises:
            InvalidRequest: a group's key belongs to another partition, or a result does not have the declared schema.
            OutOfBudget: rows beyond the budget cannot be written to a file.
        """
        return group_results(self.declared, self._calls(rows if isinstance(rows, Both) else [rows], how))

    def _calls(self, inputs: Sequence[Iterator[Any]], how: Pass) -> Iterator[tuple[Lent, Call]]:
        check = partial(self._check, how)
        for window in windows(inputs, [side.hashes for side in self.sides], how.memory):
            if window.one_hash:
                yield from self._of_hash(window, how)
                continue
            batches = [rows.take_all() for rows in window.sides]
            for keys, tables in groups(batches, self.sides, with_keys=self.with_keys, check=check):
                if self.iterates:
                    pieces = [how.limits.cut(iter(table.to_batches())) for table in tables]
                    yield Lent(*tables), self._call(batches_of, keys, pieces)
                else:
                    yield Lent(*tables), self._call(table_of, keys, tables)

    def _of_hash(self, window: Window, how: Pass) -> Iterator[tuple[Lent, Call]]:
        """The calls for rows whose keys have one hash, and which may be more than the budget."""
        known = KnownKeys()
        firsts = [known.firsts(side, rows) for side, rows in zip(self.sides, window.sides, strict=True)]
        for side, by_number in zip(self.sides, firsts, strict=True):
            for keys in by_number.values():
                self._check(how, side, keys)
        for number in range(known.count):
            keys = next(by_number[number] for by_number in firsts if number in by_number)
            scalars = tuple([column[0] for column in keys.columns])
            rows_of_key = [
                known.rows(number, side, rows) if number in by_number else iter(())
                for side, rows, by_number in zip(self.sides, window.sides, firsts, strict=True)
            ]
            if self.iterates:
                lent = Lent()
                first, *others = rows_of_key
                cut = [how.limits.cut(first, lent), *map(how.limits.cut, others)]
                yield lent, self._call(batches_of, scalars, cut)
                continue
            # In chunks as large as those of other groups, not in the pieces of the file.
            tables = [
                pa.Table.from_batches(pieces, side.schema) if pieces else side.schema.empty_table()
                for side, pieces in zip(
                    self.sides, (together(list(each), CHUNK_BYTES) for each in rows_of_key), strict=True
                )
            ]
            yield Lent(*tables), self._call(table_of, scalars, tables)

    def _call(self, results: Callable[..., Any], keys: tuple[Any, ...], args: Sequence[Any]) -> Call:
        return partial(results, self.declared, self.fn, *((keys,) if self.with_keys else ()), *args)

    def _check(self, how: Pass, side: GroupedSide, keys: pa.RecordBatch) -> None:
        if side.placed is not None and how.partition is not None:
            side.placed.check(keys, how.partition, self.declared.stage)
