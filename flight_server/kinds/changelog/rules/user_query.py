"""UserQuery: runs a user's query over rows with counts, tests it, and finds the row on which it fails.

The rows have the declared columns; the result must have them, too, in any order, of types that Arrow casts to the
declared ones without loss.

Types: those that come back from DuckDB as they went in. Durations, for one, do not. Names of columns differ by more
than upper and lower case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flight_server.protocol import InvalidRequest, KeepRule

from .query_errors import first_line, shown
from .query_text import INPUT
from .ranked import Counts, Kept
from .sandbox import Sandbox

_SEED, _SPLITS, _SHOWN_ROWS, _SHOWN_CHARACTERS = 8, 8, 5, 70


@dataclass(frozen=True)
class Trial:
    """Tries on real rows whether a rule survives compaction.

    A rule ``keep`` of multisets of rows is tried with eight random splits of the sample into a and b, one of them with
    an empty b, and each in another order of rows:

        keep(keep(a) + b) = keep(a + b)

    and, if the changelog has a key, with as many random splits of its keys into A and B:

        keep(A) + keep(B) = keep(A + B), and keep(A) has only keys of A

    The splits come from a fixed seed: the same sample gives the same answer. Rows are compared exactly, nulls with
    nulls. A rule that passes is not proved. A sample without two rows of one key shows little.

    Args:
        query: the user's.
        keep: runs it.
        key: the changelog's; empty if it has none.
    """

    query: str
    keep: Callable[[pa.RecordBatch], pa.RecordBatch]
    key: Sequence[str]
    sandbox: Sandbox

    def check(self, sample: pa.RecordBatch) -> None:
        """Raises InvalidRequest with up to five rows that only one side has, of each side; and what ``keep`` raises."""
        random = np.random.default_rng(_SEED)
        whole = self.keep(sample)
        for split in range(_SPLITS):
            order = random.permutation(sample.num_rows)
            cut = sample.num_rows if split == 0 else int(random.integers(0, sample.num_rows, endpoint=True))
            kept = self.keep(sample.take(pa.array(order[:cut])))
            again = self.keep(pa.concat_batches([kept, sample.take(pa.array(order[cut:]))]))
            self._compare({"keep(keep(a) + b)": again, "keep(a + b)": whole}, "is not idempotent")
        if not self.key:
            return
        numbers = _key_numbers(sample, self.key)
        for split in range(_SPLITS):
            chosen = random.random(int(numbers.max(initial=0)) + 1) < split / _SPLITS
            sides = [sample.filter(pa.array(mask)) for mask in (chosen[numbers], ~chosen[numbers])]
            results = [self.keep(side) for side in sides]
            self._check_keys(results[0], sides[0])
            both = {"keep(A) + keep(B)": pa.concat_batches(results), "keep(A + B)": whole}
            self._compare(both, "does not treat each key by itself: for different keys A and B")

    def _compare(self, sides: dict[str, pa.RecordBatch], why: str) -> None:
        """Raises InvalidRequest unless both sides have the same rows equally often."""
        (left, left_rows), (right, right_rows) = sides.items()
        more = self._only_in(left_rows, right_rows), self._only_in(right_rows, left_rows)
        if more[0].num_rows or more[1].num_rows:
            raise InvalidRequest(
                f"the rule's query {shown(self.query)} {why}: only in {left}: {_text(more[0])}; only in {right}: "
                f"{_text(more[1])}. Write it so that its result can stand for the rows that it was computed from: "
                "whole rows, min, max or exact sums"
            )

    def _only_in(self, one: pa.RecordBatch, other: pa.RecordBatch) -> pa.Table:
        query = f"(FROM one) EXCEPT ALL (FROM other) LIMIT {_SHOWN_ROWS}"
        return self.sandbox.run(query, {"one": one, "other": other}, users=self.query)

    def _check_keys(self, kept: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        one, other = (each.select(list(self.key)) for each in (kept, rows))
        foreign = self.sandbox.run(
            f"(FROM one) EXCEPT (FROM other) LIMIT {_SHOWN_ROWS}",
            {"one": one, "other": other},
            users=self.query,
        )
        if foreign.num_rows:
            raise InvalidRequest(
                f"the rule's query {shown(self.query)} gives rows of keys that are not in its input: "
                f"{_text(foreign)}"
            )


def _key_numbers(rows: pa.RecordBatch, key: Sequence[str]) -> NDArray[np.int64]:
    """For each row the number of its key, from 0."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for name in key:
        encoded = pc.dictionary_encode(rows.column(name), null_encoding="encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        numbers = np.unique(numbers * len(encoded.dictionary) + codes, return_inverse=True)[1].astype(
            np.int64
        )
    return numbers


def shown_row(row: dict[str, object]) -> str:
    """A row in a message."""
    text = ascii(row)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _text(rows: pa.Table | pa.RecordBatch) -> str:
    try:
        found = rows.to_pylist()
    except (ValueError, OverflowError):  # Python has no dates after 9999
        columns = [[pa.array([each]).to_string(indent=0) for each in column] for column in rows.columns]
        found = [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    return ", ".join(map(shown_row, found)) or "none"


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
            on = "these rows together" if bad is None else f"the row {_text(bad)}"
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
