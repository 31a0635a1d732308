"""Guesses how many rows a leg gives, from what its scans and the exchanges that are written say; runs nothing.

A guess decides only what is tried first (``held_joins``). A scan says how many rows it looks at, and a sealed exchange
how many it has. A filter keeps the part that ``arrow.kept_share`` guesses. A key of a join is taken for that of one row
on the smaller side: so the larger side keeps the part that the smaller one has of its own rows before filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyarrow import types

from spark_client.arrow import kept_share
from spark_client.steps import FilterStage, JoinStage, LimitStage, Stage, TableJoinStage, TopStage

from .nodes import Exchange, Input, Leg, Pair, PlanPart

TEXT_BYTES = 16
"""A value of no fixed size."""
EXISTS_SHARE = 1 / 3
"""The part of its rows that a semi or anti join with a table keeps."""
_LEAST = 1e-9


@dataclass(frozen=True)
class ExpectedRows:
    """About so many rows, which are the part ``kept`` of those before filters."""

    rows: float
    kept: float = 1.0

    @property
    def before(self) -> float:
        """The rows before filters."""
        return self.rows / self.kept

    def reduced(self, share: float) -> ExpectedRows:
        return ExpectedRows(self.rows * share, max(_LEAST, self.kept * share))

    def at_most(self, rows: float) -> ExpectedRows:
        return self if self.rows <= rows else self.reduced(rows / self.rows)


class Expectations:
    """The guesses of one moment; ``sealed`` has the rows of the exchanges that are written."""

    def __init__(self, sealed: Mapping[Exchange, int]) -> None:
        self._sealed = sealed
        # Of a plan that uses exchanges twice, each of which uses some twice, each is looked at once.
        self._known: dict[Exchange, ExpectedRows | None] = {}

    def of(self, exchange: Exchange) -> ExpectedRows | None:
        """Those that it sends; None where a DataFrame, or files that do not tell, are among what they are made of."""
        if exchange not in self._known:
            found, rows = self._of_leg(exchange.leg), self._sealed.get(exchange)
            if rows is not None:
                before = max(1.0, rows if found is None else found.before)
                found = ExpectedRows(rows, min(1.0, max(_LEAST, rows / before)))
            self._known[exchange] = found
        return self._known[exchange]

    def size_bytes(self, exchange: Exchange) -> float | None:
        """About their bytes; None where :meth:`of` is None."""
        found = self.of(exchange)
        return None if found is None else found.rows * row_bytes(exchange.leg.schema)

    def _of_leg(self, leg: Leg) -> ExpectedRows | None:
        found = [self._of_part(part) for part in leg.parts]
        known = [each for each in found if each is not None]
        return reduce(_together, known) if len(known) == len(found) else None

    def _of_part(self, part: PlanPart) -> ExpectedRows | None:
        origin, stages = part.origin, part.stages
        if isinstance(origin, Input):
            rows = origin.scanned_rows
            found = None if rows is None else ExpectedRows(rows).reduced(origin.kept)
        elif isinstance(origin, Exchange):
            found = self.of(origin)
        else:
            found, stages = self._of_pair(origin, stages[0]), stages[1:]
        for stage in stages:
            found = None if found is None else _after(stage, found)
        return found

    def _of_pair(self, pair: Pair, stage: Stage) -> ExpectedRows | None:
        left, right = self._of_part(pair.left), self._of_part(pair.right)
        if left is None or right is None:
            return None
        how = stage.plan.how if isinstance(stage, JoinStage) else "left"
        if how in ("left", "right"):
            return left if how == "left" else right
        if how == "full":
            return _together(left, right)
        if how in ("semi", "anti"):
            return left.reduced(min(right.kept, EXISTS_SHARE) if how == "semi" else EXISTS_SHARE)
        large, small = (left, right) if left.before >= right.before else (right, left)
        return large.reduced(small.kept)


def row_bytes(schema: pa.Schema) -> float:
    """About the bytes of a row."""
    return sum(_value_bytes(kind) for kind in schema.types)


def _value_bytes(kind: pa.DataType) -> float:
    if types.is_struct(kind):
        return sum(_value_bytes(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return float(kind.list_size) * _value_bytes(kind.value_type)
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return TEXT_BYTES


def _together(one: ExpectedRows, other: ExpectedRows) -> ExpectedRows:
    rows, before = one.rows + other.rows, one.before + other.before
    return ExpectedRows(rows, rows / before if rows else 1.0)


def _after(stage: Stage, given: ExpectedRows) -> ExpectedRows:
    if isinstance(stage, FilterStage):
        return given.reduced(kept_share(stage.expression))
    if isinstance(stage, TableJoinStage) and stage.plan.how in ("semi", "anti"):
        return given.reduced(EXISTS_SHARE)
    if isinstance(stage, LimitStage | TopStage):
        return given.at_most(stage.rows)
    return given
