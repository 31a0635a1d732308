"""``sql``: a query of the user's own over ``input`` says which rows are kept.

``input`` has the declared columns, and each row as often as it is there. The result has the declared columns, in any
order, of types that Arrow casts to the declared ones without loss; it need not be rows of the input. Equal rows of the
result are one row with a count.

The query must be idempotent: keep(keep(a) + b) = keep(a + b) for all rows a and b, exactly. Then the result of the
query is all that is needed. That cannot be proved, so it is tested on real rows (:meth:`Query.check_idempotent`). Sums
of floating point numbers fail, because they depend on the order; sums of decimals do not. With a key the query must
treat each key's rows by themselves and give rows of that key; without one all rows are one group.

What is needed: the result of the query over the keys that have neither later retractions nor a count below zero; of
the other keys every row.

Types: those that come back from DuckDB as they went in. Durations, for one, do not. Names of columns differ by more
than upper and lower case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flight_server.protocol import InvalidRequest, KeepRule

from .groups import Groups, Kept
from .idempotence import Trial
from .query_limits import QueryLimits
from .query_text import INPUT, first_line, shown
from .ranked import Counts, of_rows, sums
from .sandbox import Sandbox


class Query:
    """See the module's text; :mod:`flight_server.rules.sandbox` says what a query may do and what its errors are.

    Raises InvalidRequest if the query cannot be run over the schema, or does not give it.
    """

    in_parts = False

    def __init__(self, spec: KeepRule, schema: pa.Schema, limits: QueryLimits) -> None:
        assert spec.query is not None
        self._query, self._key, self._schema = spec.query, spec.key, schema
        self._sandbox = Sandbox(limits)
        self._sandbox.check(self._query)
        self._check_types()
        self._run(pa.RecordBatch.from_pylist([], schema))

    def kept(self, groups: Groups) -> Kept:
        return self._counted(self._run(self._copies(groups.rows, np.maximum(groups.counts, 0))))

    def needed(self, groups: Groups, later_retractions: NDArray[np.int64]) -> Kept:
        counts = groups.counts
        awaited = of_rows(groups, sums(groups, (counts < 0) | (later_retractions < 0)) > 0)
        # Without a key there is one group, and a query over nothing may give a row.
        if awaited.all():
            return Kept(groups.rows, counts)
        settled = self._counted(self._run(self._copies(groups.rows, np.where(awaited, 0, counts))))
        rest = np.flatnonzero(awaited & (counts != 0))
        others = self._declared(groups.rows.take(pa.array(rest)))
        return Kept(pa.concat_batches([settled.rows, others]), np.concatenate([settled.counts, counts[rest]]))

    def check_idempotent(self, sample: pa.RecordBatch) -> None:
        Trial(self._query, self._run, self._key, self._sandbox).check(self._declared(sample))

    def _declared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without the metadata that their schema may have more than the declared one."""
        return pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)

    def _run(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the query gives, with the declared schema."""
        result = self._sandbox.run(self._query, {INPUT: rows})
        names = {name.lower(): number for number, name in enumerate(result.column_names)}
        wanted = [name.lower() for name in self._schema.names]
        if sorted(names) != sorted(wanted) or result.num_columns != len(wanted):
            raise InvalidRequest(
                f"the rule's query {shown(self._query)} gives the columns {result.column_names!a}; it must give the "
                f"declared ones, {self._schema.names!a}"
            )
        columns = [
            self._cast(result.column(names[name]), field)
            for name, field in zip(wanted, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _cast(self, column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
        try:
            if not field.nullable and column.null_count:
                raise pa.ArrowInvalid("a null in a column that has none")
            return pc.cast(column, field.type).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidRequest(
                f"the rule's query {shown(self._query)} gives {column.type} in the column {field.name!r}, which is "
                f"{field.type}: cast it in the query ({first_line(error)})"
            ) from error

    def _copies(self, rows: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
        """Each row as often as it is there."""
        copies = int(counts.sum())
        if copies == rows.num_rows and (counts == 1).all():
            return rows
        # By the mean size of a row: the limit is one of order, not of bytes.
        if copies * rows.nbytes > self._sandbox.limits.memory_limit_bytes * max(rows.num_rows, 1):
            raise self._sandbox.too_large(self._query, f"{copies} rows of its input")
        return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), counts)))

    def _counted(self, rows: pa.RecordBatch) -> Kept:
        """Equal rows as one row with a count."""
        names = [f"c{number}" for number in range(rows.num_columns)]
        positions = pa.array(np.arange(rows.num_rows))
        numbered = pa.RecordBatch.from_arrays([*rows.columns, positions], [*names, "position"])
        counted = self._sandbox.run(
            f"SELECT min(position) AS position, count(*) AS copies FROM numbered GROUP BY {', '.join(names)}",  # noqa: S608  # names of our own
            {"numbered": numbered},
            users=self._query,
        )
        chosen = counted.column("position").combine_chunks()
        return Kept(rows.take(chosen), counted.column("copies").cast(pa.int64()).to_numpy())

    def _check_types(self) -> None:
        names = [name.lower() for name in self._schema.names]
        if len(set(names)) != len(names):
            raise InvalidRequest(
                f"keep: for 'sql' the names of columns differ by more than upper and lower case: {self._schema.names}"
            )
        for field in self._schema:
            try:
                column = pa.array([_example(field.type)], field.type)
                rows = pa.RecordBatch.from_arrays([column], ["value"])
                same = pc.cast(
                    self._sandbox.run("SELECT value FROM given", {"given": rows}).column(0), field.type
                )
                if not same.combine_chunks().equals(column):
                    raise pa.ArrowInvalid
            except (InvalidRequest, pa.ArrowException) as error:
                raise InvalidRequest(
                    f"keep: the column {field.name!r} is {field.type}, which DuckDB does not keep as it is: declare "
                    "another type, or another rule than 'sql'"
                ) from error


def _example(kind: pa.DataType) -> Any:
    """A value that shows whether the type's smallest unit survives; None for types that are what they are called."""
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if pa.types.is_map(kind):
        return []
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
        return [_example(kind.value_type)] * size
    if pa.types.is_date64(kind):
        return 86_400_000
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return 1
    return None
