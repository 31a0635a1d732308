"""Join plans: keys, kind and the result's columns, apart from where the rows come from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from flight_server.keys import compute
from spark_client.arrow import widened

from .join_keys import MatchKeys

How = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True)
class Column:
    """A column of the result, by its name on the left, on the right, or on both: then the first that is not null."""

    left: str | None
    right: str | None


@dataclass(frozen=True)
class JoinPlan:
    """A join of two sides.

    Args:
        columns: those of the result.
        left_schema, right_schema: of the sides.
        schema: of the result, whose types are the sides' but for columns of both.
    """

    how: How
    left: MatchKeys
    right: MatchKeys
    columns: tuple[Column, ...]
    left_schema: pa.Schema
    right_schema: pa.Schema
    schema: pa.Schema

    def side(self, *, left: bool) -> Side:
        keys, schema = (self.left, self.left_schema) if left else (self.right, self.right_schema)
        named = [column.left if left else column.right for column in self.columns]
        kept = {"left": left, "right": not left, "full": True}.get(self.how, False)
        exists = left and self.how in ("semi", "anti")
        # Only the result's columns are copied.
        return Side(keys, pa.schema([schema.field(name) for name in named if name is not None]), kept, exists)

    def mirrored(self) -> JoinPlan:
        """The same rows, with the sides in each other's place: of an inner, left, right or full join."""
        hows: dict[How, How] = {"left": "right", "right": "left"}
        columns = tuple(Column(column.right, column.left) for column in self.columns)
        if self.how in ("semi", "anti") or any(None not in (each.left, each.right) for each in columns):
            raise ValueError(f"a {self.how} join is not the same from the other side")
        how = hows.get(self.how, self.how)
        sides = self.right, self.left, columns, self.right_schema, self.left_schema
        return JoinPlan(how, *sides, self.schema)

    def matching(self, *, left: bool) -> JoinPlan:
        """The semi join that gives the rows of one side which have a match on the other, whose keys are all that it
        needs.
        """
        ours, theirs = (self.left, self.right) if left else (self.right, self.left)
        schema, other = (
            (self.left_schema, self.right_schema) if left else (self.right_schema, self.left_schema)
        )
        keys = pa.schema([other.field(name) for name in dict.fromkeys(theirs.names)])
        columns = tuple(Column(name, None) for name in schema.names)
        return JoinPlan("semi", ours, theirs, columns, schema, keys, schema)

    def with_columns(self, names: Collection[str], left: pa.Schema, right: pa.Schema) -> JoinPlan:
        """The join of sides of these schemas that gives these of the result's columns."""
        kept = [
            (column, field)
            for column, field in zip(self.columns, self.schema, strict=True)
            if field.name in names
        ]
        columns, fields = zip(*kept, strict=True)
        return replace(
            self, columns=columns, left_schema=left, right_schema=right, schema=pa.schema(list(fields))
        )

    def assembled(
        self, rows: int, left: pa.RecordBatch | None, right: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        """The result's rows of the sides' columns; None for a side without rows here."""
        sides = [iter(batch.columns) if batch is not None else None for batch in (left, right)]
        columns = []
        for column, field in zip(self.columns, self.schema, strict=True):
            arrays = [
                next(side)
                for side, name in zip(sides, (column.left, column.right), strict=True)
                if side is not None and name is not None
            ]
            columns.append(_first_valid(arrays, field.type) if arrays else pa.nulls(rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class Side:
    """One side of a join: its keys, the columns that it gives, whether its rows without a match are in the result, and
    whether the result is its rows that have a match, or have none.
    """

    keys: MatchKeys
    schema: pa.Schema
    kept: bool
    exists: bool


def _first_valid(columns: list[pa.Array], kind: pa.DataType) -> pa.Array:
    columns = [widened(column, kind) for column in columns]
    if len(columns) == 1 or not columns[0].null_count:
        return columns[0]
    return compute().coalesce(*columns)
