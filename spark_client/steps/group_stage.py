"""The stage of ``applyInArrow``: a function for each group of a partition.

A group stage gathers its partition in windows (``spill.key_windows``), and copies each window's rows group by group
(``placement.grouping``).

Order
    A partition that fits the budget gives its groups in the order of their first rows. Beyond the budget they come
    window by window, in the order of their keys' hashes. The rows of a group are in the partition's order in either
    case.

Groups beyond the budget
    A function of iterators gets such a group batch by batch from a file, so that memory follows the budget. A function
    of tables gets one table, which must fit the worker's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.keys import row_hashes
from spark_client.arrow import Declared, Lent, array_over, together
from spark_client.placement import CHUNK_BYTES, PlacedKeys, groups
from spark_client.spill import Rows, windows

from .function_results import Call, group_results
from .known_keys import KnownKeys
from .one_pass import Pass, expect, iterable


@dataclass(frozen=True)
class GroupStage:
    """``applyInArrow``: one call of ``fn`` for each group of ``keys`` in the partition.

    ``schema`` is the input's, ``with_keys`` and ``iterates`` give ``fn``'s signature, and ``placed`` checks that the
    exchange would place the keys here; None for no check.
    """

    fn: Callable[..., Any]
    declared: Declared
    keys: tuple[str, ...]
    schema: pa.Schema
    with_keys: bool
    iterates: bool
    placed: PlacedKeys | None = None

    divisible = False

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """The function's results, checked, cast and joined.

        Raises:
            InvalidRequest: a group's key belongs to another partition, or a result does not have the declared schema.
            OutOfBudget: rows beyond the budget cannot be written to a file.
        """
        return group_results(self.declared, self._calls(batches, how))

    def _calls(self, batches: Iterator[Any], how: Pass) -> Iterator[tuple[Lent, Call]]:
        check = partial(self._check, how)
        for window in windows([batches], [self._hashes], how.memory):
            (rows,) = window.sides
            if window.one_hash:
                yield from self._of_hash(rows, check, how)
                continue
            for keys, table in groups(
                rows.taken(), self.schema, self.keys, with_keys=self.with_keys, check=check
            ):
                lent = Lent(table)
                if self.iterates:
                    yield lent, partial(self._iterated, keys, how.limits.cut(iter(table.to_batches())))
                else:
                    yield lent, partial(self._called, keys, table)

    def _of_hash(
        self, rows: Rows, check: Callable[[pa.RecordBatch], None], how: Pass
    ) -> Iterator[tuple[Lent, Call]]:
        """The calls for rows whose keys have one hash, and which may be more than the budget."""
        known = KnownKeys()
        found: list[pa.RecordBatch] = []
        for batch in rows:
            before = known.count
            codes = known.codes(self._key_columns(batch))
            numbers, firsts = np.unique(codes, return_index=True)
            new = firsts[numbers >= before]
            if len(new):
                keys = batch.select(self.keys).take(array_over(new))
                found.extend(keys.slice(at, 1) for at in range(len(new)))
        for number, key in enumerate(found):
            check(key)
            group = known.rows(number, self._key_columns, rows)
            scalars = tuple([column[0] for column in key.columns])
            if self.iterates:
                lent = Lent()
                yield lent, partial(self._iterated, scalars, lent.each(how.limits.cut(group)))
            else:
                # In chunks as large as those of other groups, not in the pieces of the file.
                table = pa.Table.from_batches(together(list(group), CHUNK_BYTES), self.schema)
                yield Lent(table), partial(self._called, scalars, table)

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(key) for key in self.keys]

    def _hashes(self, batch: pa.RecordBatch) -> Any:
        return row_hashes(self._key_columns(batch), batch.num_rows)

    def _called(self, keys: tuple[Any, ...], table: pa.Table) -> Iterable[Any]:
        result = self.fn(keys, table) if self.with_keys else self.fn(table)
        expect(result, pa.Table, self.declared.stage)
        return (result,)

    def _iterated(self, keys: tuple[Any, ...], batches: Iterator[Any]) -> Iterator[Any]:
        first = (keys,) if self.with_keys else ()
        for result in iterable(self.fn(*first, batches), self.declared.stage, "an iterator"):
            expect(result, pa.RecordBatch, self.declared.stage)
            yield result

    def _check(self, how: Pass, keys: pa.RecordBatch) -> None:
        if self.placed is not None and how.partition is not None:
            self.placed.check(keys, how.partition, self.declared.stage)
