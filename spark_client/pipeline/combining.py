"""Steps over whole rows: those of two pipelines together, and the first ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, SupportsIndex

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from flight_server.keys import compute
from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import arrow_schema, find_columns
from spark_client.steps import AlignStage, LimitStage, SelectStage, SortStage, TopStage

from .base import (
    AnySteps,
    Steps,
    case_sensitive,
    columns_named,
    integer,
    one_reading,
    second_side,
    stage_name,
    with_stage,
)
from .exchanging import exchanged
from .mapping import select_columns
from .nodes import Leg
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


@one_reading
def union_by_name(steps: AnySteps, other: Steps, allowMissingColumns: bool = False) -> AnySteps:  # noqa: FBT001, FBT002 - Spark's arguments
    """As :meth:`union`, with columns matched by their names.

    Args:
        allowMissingColumns: a column that one side has not is null in its rows; those of ``other`` alone come last.

    Raises:
        InvalidRequest: as :meth:`union`, or one side has a column that the other has not.
    """
    stage = stage_name(steps, "unionByName")
    other = second_side(steps, other, stage)
    if allowMissingColumns:
        steps, other = _with_columns_of(steps, other), _with_columns_of(other, steps)
    ours, theirs = steps.leg.schema.names, other.leg.schema.names
    exact = case_sensitive(steps)
    in_order = find_columns(ours, f"{stage}, other side", theirs, "on it", exact=exact)
    find_columns(theirs, f"{stage}, this side", ours, "on it", exact=exact)
    return union(steps, other if [*in_order] == theirs else select_columns(other, *in_order))


def _with_columns_of(steps: AnySteps, other: Steps) -> AnySteps:
    """All columns, and of those that only ``other`` has nulls."""
    schema = other.leg.schema
    nulls: dict[str, Any] = {
        field.name: compute().scalar(pa.scalar(None, field.type))
        for field in schema
        if not columns_named(steps, field.name)
    }
    return select_columns(steps, "*", **nulls) if nulls else steps


def limit(steps: AnySteps, num: SupportsIndex) -> AnySteps:
    """At most ``num`` rows; after ``orderBy``, or after one partition that is sorted, the first ones, so that
    ``orderBy("revenue desc").limit(10)`` gives the top ten in order. Elsewhere any rows.

    After one of these that is not persisted, each task sends its own first rows only, up to 100,000. Elsewhere each
    task stops reading after as many rows, and one more exchange brings those together.

    Raises:
        InvalidRequest: ``num`` is no integer of 0 or more.
    """
    count = row_count(num, stage_name(steps, "limit"))
    stage = stage_name(steps, f"limit {count}")
    declared = replace(steps.leg.declared, stage=stage, by_name=False)
    top, last = _top(steps, count), steps.leg.last
    if top is not None or (last is not None and last.partitions == 1):
        first = steps if top is None else replace(steps, leg=top)
        return with_stage(first, LimitStage(count, declared, divisible=False), steps.leg.struct)
    partial = replace(declared, stage=f"{stage}, partial")
    some = with_stage(steps, LimitStage(count, partial, divisible=True), steps.leg.struct)
    together = exchanged(some, 1)
    return with_stage(together, LimitStage(count, declared, divisible=False), steps.leg.struct)


def first_rows(steps: AnySteps, count: int, where: str) -> AnySteps:
    """Rows of which the first ``count``, partition by partition, are those of :meth:`limit`."""
    top = _top(steps, count)
    declared = replace(steps.leg.declared, stage=where, by_name=False)
    first = steps if top is None else replace(steps, leg=top)
    return with_stage(first, LimitStage(count, declared, divisible=top is None), steps.leg.struct)


def row_count(num: SupportsIndex, where: str) -> int:
    """The number of rows. Raises InvalidRequest: it is no integer of 0 or more."""
    count = integer(num, -1)
    if count < 0:
        raise InvalidRequest(f"{where}: the number of rows is an integer from 0 on, not {num!r}")
    return count


def _top(steps: Steps, rows: int) -> Leg | None:
    """The leg, whose sorted exchange to one partition gets only rows that may be among the first; None if it has none,
    or many rows are wanted.
    """
    part, last = steps.leg.single, steps.leg.last
    if part is None or last is None or not 0 < rows <= _TOP_ROWS:
        return None
    order = part.stages[0] if part.stages else None
    if (
        not isinstance(order, SortStage)
        or not (last.partitions == 1 or last.orders == order.keys)
        or not all(isinstance(stage, SelectStage) for stage in part.stages[1:])
        or steps.shuffles.persisted.find(last) is not None
    ):
        return None
    name = f"top {rows} by {', '.join(map(str, order.keys))}"
    top = TopStage(rows, order.keys, replace(last.leg.declared, stage=name, by_name=False))
    origin = replace(last, leg=last.leg.with_stage(top, last.leg.struct), partitions=1, ranges=None)
    return replace(steps.leg, parts=(replace(part, origin=origin),))


def _align(leg: Leg, struct: StructType, declared: Declared) -> Leg:
    if leg.declared.schema.equals(declared.schema, check_metadata=True) and leg.struct == struct:
        return leg
    return leg.with_stage(AlignStage(declared), struct)
