"""Reduces rows to one row for each group, a bounded number of rows at a time.

Guarantee: :meth:`Reduction.merge` gives one row for each group of its rows, groups in the order of their first rows, or
of their keys. Keys are equal as in ``arrow.group_codes``; -0.0 becomes 0.0, as in Spark's GROUP BY.

How
    Rows in the order of their keys need no hash table (``rows_in_order``). Others are merged by
    Arrow's hash aggregation over the key columns themselves, where every key is plain and every state has a kernel;
    it takes a third of the time of codes for the groups. Otherwise each row gets its group's code first.

    A batch's groups fit a core's cache, and those of many batches do not: where rows of one group are near each other,
    as in files in the order of their keys, each batch is merged first (:meth:`Reduction.lifted`). It takes half of the
    time, and there may be nothing left to do.

Memory of :meth:`Reduction.reduced`
    A merge holds its rows, Arrow's hash table, which copies the keys and doubles as it grows, and the result. So rows
    count with ``MERGED_COPIES`` times their bytes and ``MERGED_ROW_BYTES`` each (:func:`merge_bytes`), which a merge
    takes if no two rows are of one group. Rows are gathered up to ``CHUNK_BYTES``, or as many as the groups found so
    far have, but at most until they and the groups count as much as the budget. Groups that count more than half of it
    are given on.

Rows that do not reduce
    If a merge leaves more than a third of the bytes of its rows, as with keys that do not repeat or with lists of all
    values, merging costs more than it saves: all later rows are given on as they are, one state for each row, as in
    DataFusion and Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.keys import canonical
from spark_client.arrow import Lent, aligned, array_over, group_codes, own, values

from .coded_states import first_rows
from .group_states import StateColumn
from .rows_in_order import RowsInOrder

CHUNK_BYTES = 16 << 20
BATCH_ROWS = 64 * 1024
MERGED_ROWS = 4096
"""A merge of fewer rows takes no less time."""
FEW_GROUPS = 1024
"""They fit the cache, of however many rows they are."""
MERGED_COPIES = 4
MERGED_ROW_BYTES = 160


def merge_bytes(data: Any) -> int:
    """The most that a merge of these rows takes, with the rows themselves."""
    return int(MERGED_COPIES * data.nbytes + MERGED_ROW_BYTES * data.num_rows)


@dataclass(frozen=True)
class Reduction:
    """Groups by ``keys``, with the ``states``, and with the ``carried`` columns of one of the group's rows.

    ``schema`` is that of reduced rows: keys, carried columns, states.
    """

    keys: tuple[str, ...]
    states: tuple[StateColumn, ...]
    schema: pa.Schema
    stage: str
    carried: tuple[str, ...] = ()

    def lift(self, batch: Any) -> pa.RecordBatch:
        """Each row as a group of its own, in the reduced schema, in memory of its own: a column would keep alive all of
        the message in which its batch came.
        """
        return own(self._lift(batch), Lent())

    def lifted(self, batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        """As :meth:`lift`, and each batch is merged by itself, as long as that leaves at most half of it, but many
        groups.
        """
        merges = True
        for batch in batches:
            if not merges or batch.num_rows < MERGED_ROWS:
                yield self.lift(batch)
                continue
            rows = self._lift(batch)
            table = self.merge([rows])
            if table.num_rows == rows.num_rows:
                # Nothing was merged, and the table may be the rows as they came, in memory that is not its own.
                merges = False
                yield own(rows, Lent())
                continue
            merges = table.num_rows >= FEW_GROUPS and 2 * table.nbytes <= rows.nbytes
            yield from table.to_batches()

    def _lift(self, batch: Any) -> pa.RecordBatch:
        columns = [
            *(canonical(batch.column(key)) for key in self.keys),
            *(batch.column(name) for name in self.carried),
            *(state.lift(batch) for state in self.states),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """One row for each group; the rows themselves where each is a group. Empties the list."""
        found = self._of_neighbours(batches)
        if found is not None:
            batches.clear()
            return found
        # As in ``steps.expression_stages``: Arrow's engine warns of values as they lie in messages of the gRPC lane.
        table = pa.Table.from_batches(map(aligned, batches), self.schema)
        batches.clear()
        plain = not any(pa.types.is_nested(table.schema.field(key).type) for key in self.keys)
        if plain and not self.carried and all(state.kernel for state in self.states):
            names = [str(number) for number in range(len(self.keys))]
            grouped = self._aggregate(names, [table.column(key) for key in self.keys], table)
            return self._table([grouped.column(name) for name in names], grouped)
        codes = (
            group_codes([table.column(key) for key in self.keys])
            if self.keys
            else array_over(np.zeros(table.num_rows, np.int32))
        )
        numbers = values(codes, np.int32)
        first = first_rows(numbers)
        places = array_over(first)
        kept = [table.column(name).take(places) for name in (*self.keys, *self.carried)]
        grouped = self._aggregate(["0"], [codes], table) if self.states else None
        merged = {
            index: state.merged(_one(table.column(self._at(index))), numbers.astype(np.int64), len(first))
            for index, state in enumerate(self.states)
            if not state.kernel
        }
        return self._table(kept, grouped, merged)

    def _of_neighbours(self, batches: list[pa.RecordBatch]) -> pa.Table | None:
        """As :meth:`merge`, of rows that are in the order of their keys; None if they are not, or if Arrow's own
        aggregation is needed.
        """
        rows = RowsInOrder.of(batches, self.schema, len(self.keys))
        if rows is None:
            return None
        first = len(self.keys) + len(self.carried)
        if rows.are_merged and not any(map(_changes_zeros, self.states)):
            return rows.table
        columns = []
        for index, state in enumerate(self.states):
            if not state.kernel:
                return None
            found = rows.merged(state.kernel, state.ready(rows.table.column(self._at(index))))
            if found is None:
                return None
            columns.append(state.settled(found, self.stage))
        return pa.table([*map(rows.firsts, range(first)), *columns], schema=self.schema)

    def reduced(self, batches: Iterator[Any], budget_bytes: int | None) -> Iterator[pa.Table]:
        """Merged rows, of distinct groups in each table; in one table if they fit ``budget_bytes``, or without a
        budget. ``batches`` are in the reduced schema. Without rows, no table.
        """
        held: list[pa.RecordBatch] = []
        fresh: list[pa.RecordBatch] = []
        held_bytes = fresh_bytes = given_bytes = 0
        held_weight = fresh_weight = 0
        passing = False
        for batch in batches:
            if not batch.num_rows:
                continue
            batch_bytes, batch_weight = batch.nbytes, merge_bytes(batch)
            full = budget_bytes is not None and held_weight + fresh_weight + batch_weight > budget_bytes
            if fresh and (full or fresh_bytes >= max(CHUNK_BYTES, held_bytes)):
                fresh[:0], held = held, []
                merged = self.merge(fresh)
                fresh_bytes = fresh_weight = 0
                held_bytes, held_weight = merged.nbytes, merge_bytes(merged)
                passing = budget_bytes is not None and held_bytes * 3 > given_bytes
                if passing or (budget_bytes is not None and 2 * held_weight > budget_bytes):
                    yield merged
                    held_bytes = held_weight = given_bytes = 0
                else:
                    held = merged.to_batches()
                del merged
            if passing:
                yield pa.Table.from_batches([batch])
                continue
            fresh.append(batch)
            fresh_bytes += batch_bytes
            given_bytes += batch_bytes
            fresh_weight += batch_weight
        if fresh:
            fresh[:0], held = held, []
            yield self.merge(fresh)
        elif held:
            yield pa.Table.from_batches(held)

    def _at(self, state: int) -> int:
        return len(self.keys) + len(self.carried) + state

    def _aggregate(self, names: list[str], groups: list[Any], table: pa.Table) -> pa.Table:
        """Arrow's aggregation of the states with kernels; a state's result is named after its number."""
        import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which tasks without groups do without

        columns, labels, wanted = list(groups), list(names), []
        options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
        for index, state in enumerate(self.states):
            if state.kernel:
                columns.append(state.ready(table.column(self._at(index))))
                labels.append(f"s{index}")
                wanted.append((f"s{index}", state.kernel, options))
        return pa.table(columns, names=labels).group_by(names, use_threads=False).aggregate(wanted)

    def _table(
        self, kept: list[Any], grouped: pa.Table | None, merged: dict[int, pa.Array] | None = None
    ) -> pa.Table:
        columns = list(kept)
        for index, state in enumerate(self.states):
            if state.kernel:
                assert grouped is not None
                columns.append(state.settled(grouped.column(f"s{index}_{state.kernel}"), self.stage))
            else:
                columns.append((merged or {})[index])
        return pa.table(columns, schema=self.schema)


def _changes_zeros(state: StateColumn) -> bool:
    """Whether a merge of one row makes 0.0 of -0.0."""
    return state.kernel == "sum" and bool(pa.types.is_floating(state.type))


def _one(column: Any) -> pa.Array:
    """The chunked column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
