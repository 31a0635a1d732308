"""UserQuery: runs a user's query over rows with counts, tests it, and finds the row on which it fails.

The rows have the declared columns; the result must have them, too, in any order, of types that Arrow casts to the
declared ones without loss.

Types: those that come back from DuckDB as they went in. Durations, for one, do not. Names of columns differ by more
than upper and lower case.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flight_server.protocol import InvalidRequest, KeepRule

from .groups import Kept
from .idempotence import Trial, shown_row
from .query_errors import first_line, shown
from .query_text import INPUT
from .ranked import Counts
from .sandbox import Sandbox


class UserQuery:
    """One query over rows of one schema, in a :mod:`flight_server.kinds.changelog.rules.sandbox`.

    Raises InvalidRequest if the query must not be run, cannot be run over the schema, or does not give it. All methods
    raise InvalidRequest if it fails on the rows, and OutOfBudget if it needs more memory than there is.
    """

    def __init__(self, spec: KeepRule, schema: pa.Schema, sandbox: Sandbox) -> None:
        assert spec.query is not None
        self._query, self._key, self._schema = spec.query, spec.key, schema
        self._sandbox = sandbox
        sandbox.check(self._query)
        self._check_types()
        self._run(pa.RecordBatch.from_pylist([], schema))

    def kept(self, rows: pa.RecordBatch, counts: Counts) -> Kept:
        """The query's result for rows that are there so often."""
        return self._counted(self._run(self._copies(rows, counts)))

    def check_rows(self, rows: pa.RecordBatch, counts: Counts, seconds: float) -> None:
        """Raise InvalidRequest if it fails on these rows, and name the first one on which it fails by itself.
        ``seconds``: the time to look for that row.
        """
        try:
            self._run(self._copies(rows, counts))
        except InvalidRequest as failure:
            bad, why = self._bad_row(rows, time.monotonic() + seconds)
            on = "these rows together" if bad is None else f"the row {shown_row(bad.to_pylist()[0])}"
            raise InvalidRequest(
                f"{(why or failure).message}. It fails on {on}, and nothing of the put was kept: put rows that the "
                "query can take, or create the changelog with a query that takes them (try_cast, coalesce)"
            ) from None

    def check_idempotent(self, sample: pa.RecordBatch) -> None:
        """Raise InvalidRequest, with rows that show it, if the query's result cannot stand for its input."""
        Trial(self._query, self._run, self._key, self._sandbox).check(sample)

    def _bad_row(
        self, rows: pa.RecordBatch, until: float
    ) -> tuple[pa.RecordBatch | None, InvalidRequest | None]:
        """One row on which the query fails, and how it does; nothing if there is none, or not in time."""
        why: InvalidRequest | None = None
        while rows.num_rows > 1 or why is None:
            half = (rows.num_rows + 1) // 2
            for part in (rows.slice(0, half), rows.slice(half)) if half < rows.num_rows else (rows,):
                if time.monotonic() > until:
                    return None, None
                try:
                    self._run(part)
                except InvalidRequest as failure:
                    rows, why = part, failure
                    break
            else:
                return None, None
        return rows, why

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
        if (counts == 1).all():
            return rows
        return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), counts)))

    def _counted(self, rows: pa.RecordBatch) -> Kept:
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
