"""Steps over whole rows: those of two pipelines together, and the first ones."""

from __future__ import annotations

from dataclasses import replace
from typing import SupportsIndex

from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import arrow_schema
from spark_client.steps import AlignStage, LimitStage, SelectStage, SortStage, TopStage

from .base import AnySteps, Steps, integer, second_side, stage_name, with_stage
from .exchanging import add_exchange
from .nodes import Exchange, Leg
from .wider_types import wider

_TOP_ROWS = 100_000
"""The most rows of which each task keeps its first ones."""


def union(steps: AnySteps, other: Steps) -> AnySteps:
    """The rows of both, with duplicates, as Spark's ``union``: columns are matched by position, and have this
    side's names. Numbers of different types widen to Spark's common type.

    Raises:
        InvalidRequest: ``other`` is no pipeline of this client, has another number of columns, or a column of a
            type that has no common type with this side's.
    """
    stage = stage_name(steps, "union")
    other = second_side(steps, other, stage)
    left, right = steps.leg.struct, other.leg.struct
    if len(left) != len(right):
        raise InvalidRequest(
            f"{stage}: one side has {len(left)} columns ({', '.join(left.names)}), the other {len(right)} "
            f"({', '.join(right.names)}); select the same number"
        )
    fields = []
    for one, another in zip(left, right, strict=True):
        kind = wider(one.dataType, another.dataType)
        if kind is None:
            raise InvalidRequest(
                f"{stage}: column {one.name!r} is {one.dataType.simpleString()} on one side and "
                f"{another.dataType.simpleString()} ({another.name!r}) on the other; cast one, or make it of "
                "its parts, with select",
                column=one.name,
            )
        fields.append(StructField(one.name, kind, one.nullable or another.nullable, one.metadata))
    struct = StructType(fields)
    declared = Declared(stage, arrow_schema(steps.spark, struct, stage))
    parts = [part for leg in (steps.leg, other.leg) for part in _align(leg, struct, declared).parts]
    return replace(steps, leg=Leg(tuple(parts), struct, declared))


def limit(steps: AnySteps, rows: SupportsIndex) -> AnySteps:
    """At most ``rows`` rows, any of them; after an exchange to one partition the first ones, so that
    ``exchange(1, sort=["revenue desc"]).limit(10)`` gives the top ten in order.

    Before a sorted exchange to one partition that is not persisted, each task then sends its own first rows only.
    Elsewhere each task stops reading after as many rows, and one more exchange brings those together.

    Raises:
        InvalidRequest: ``rows`` is no integer of 0 or more.
    """
    stage = stage_name(steps, "limit")
    count = integer(rows, -1)
    if count < 0:
        raise InvalidRequest(f"{stage}: the number of rows is an integer from 0 on, not {rows!r}")
    stage = stage_name(steps, f"limit {count}")
    declared = replace(steps.leg.declared, stage=stage, by_name=False)
    last = steps.leg.last
    if last is not None and last.partitions == 1:
        first = replace(steps, leg=_top(steps, last, count))
        return with_stage(first, LimitStage(count, declared, divisible=False), steps.leg.struct)
    partial = replace(declared, stage=f"{stage}, partial")
    some = with_stage(steps, LimitStage(count, partial, divisible=True), steps.leg.struct)
    together = add_exchange(some, 1)
    return with_stage(together, LimitStage(count, declared, divisible=False), steps.leg.struct)


def _top(steps: Steps, last: Exchange, rows: int) -> Leg:
    """The leg, whose sorted exchange gets only rows that may be among the first, if few are wanted."""
    (part,) = steps.leg.parts
    order = part.stages[0] if part.stages else None
    if (
        not 0 < rows <= _TOP_ROWS
        or not isinstance(order, SortStage)
        or not all(isinstance(stage, SelectStage) for stage in part.stages[1:])
        or steps.shuffles.persisted.find(last) is not None
    ):
        return steps.leg
    name = f"top {rows} by {', '.join(map(str, order.keys))}"
    top = TopStage(rows, order.keys, replace(last.leg.declared, stage=name, by_name=False))
    origin = replace(last, leg=last.leg.with_stage(top, last.leg.struct))
    return replace(steps.leg, parts=(replace(part, origin=origin),))


def _align(leg: Leg, struct: StructType, declared: Declared) -> Leg:
    if leg.declared.schema.equals(declared.schema, check_metadata=True) and leg.struct == struct:
        return leg
    return leg.with_stage(AlignStage(declared), struct)
