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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from flight_server.keys import row_hashes
from spark_client.arrow import Declared, Lent, together
from spark_client.placement import CHUNK_BYTES, PlacedKeys, groups
from spark_client.spill import Rows, windows

from .function_results import Call, batches_of, group_results, table_of
from .known_keys import KnownKeys
from .one_pass import Pass


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
                    yield lent, self._call(batches_of, keys, how.limits.cut(iter(table.to_batches())))
                else:
                    yield lent, self._call(table_of, keys, table)

    def _of_hash(
        self, rows: Rows, check: Callable[[pa.RecordBatch], None], how: Pass
    ) -> Iterator[tuple[Lent, Call]]:
        """The calls for rows whose keys have one hash, and which may be more than the budget."""
        known = KnownKeys()
        for number, key in known.firsts(rows, self._key_columns, self.keys).items():
            check(key)
            group = known.rows(number, self._key_columns, rows)
            scalars = tuple([column[0] for column in key.columns])
            if self.iterates:
                lent = Lent()
                yield lent, self._call(batches_of, scalars, lent.each(how.limits.cut(group)))
            else:
                # In chunks as large as those of other groups, not in the pieces of the file.
                table = pa.Table.from_batches(together(list(group), CHUNK_BYTES), self.schema)
                yield Lent(table), self._call(table_of, scalars, table)

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(key) for key in self.keys]

    def _hashes(self, batch: pa.RecordBatch) -> Any:
        return row_hashes(self._key_columns(batch), batch.num_rows)

    def _call(self, results: Callable[..., Any], keys: tuple[Any, ...], group: Any) -> Call:
        return partial(results, self.declared, self.fn, *((keys,) if self.with_keys else ()), group)

    def _check(self, how: Pass, keys: pa.RecordBatch) -> None:
        if self.placed is not None and how.partition is not None:
            self.placed.check(keys, how.partition, self.declared.stage)
