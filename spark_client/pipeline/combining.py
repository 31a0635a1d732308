"""Steps over whole rows: those of two pipelines together, the first ones, and how many there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Self, SupportsIndex

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import arrow_schema
from spark_client.steps import AlignStage, CountStage, LimitStage, SelectStage, SortStage, TopStage

from .base import Steps
from .exchanging import Exchanging
from .execution import Execution
from .finishing import Finishing
from .nodes import Exchange, Input, Leg
from .wider_types import wider

_SAME_COUNT = (AlignStage, SelectStage, SortStage)
_TOP_ROWS = 100_000
"""The most rows of which each task keeps its first ones."""


class Combining(Exchanging, Finishing):
    """See the module."""

    def union(self, other: Steps) -> Self:
        """The rows of both, with duplicates, as Spark's ``union``: columns are matched by position, and have this
        side's names. Numbers of different types widen to Spark's common type.

        Raises:
            InvalidRequest: ``other`` is no pipeline of this client, has another number of columns, or a column of a
                type that has no common type with this side's.
        """
        stage = self._stage_name("union")
        if not isinstance(other, Steps):
            raise InvalidRequest(
                f"{stage}: it takes a pipeline, not {type(other).__name__}; client.pipeline(df) makes one"
            )
        if other.shuffles is not self.shuffles or other.spark is not self.spark:
            raise InvalidRequest(f"{stage}: both pipelines must be of one ShuffleClient and Spark session")
        left, right = self.leg.struct, other.leg.struct
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
                    f"{another.dataType.simpleString()} ({another.name!r}) on the other; cast one, for example with "
                    "select",
                    column=one.name,
                )
            fields.append(StructField(one.name, kind, one.nullable or another.nullable, one.metadata))
        struct = StructType(fields)
        declared = Declared(stage, arrow_schema(self.spark, struct, stage))
        parts = [part for leg in (self.leg, other.leg) for part in _aligned(leg, struct, declared).parts]
        return replace(self, leg=Leg(tuple(parts), struct, declared))

    def limit(self, rows: SupportsIndex) -> Self:
        """At most ``rows`` rows, any of them; after an exchange to one partition the first ones, so that
        ``exchange(1, sort=["revenue desc"]).limit(10)`` gives the top ten in order.

        Before a sorted exchange to one partition that is not persisted, each task then sends its own first rows only.
        Elsewhere each task stops reading after as many rows, and one more exchange brings those together.

        Raises:
            InvalidRequest: ``rows`` is no integer of 0 or more.
        """
        stage = self._stage_name("limit")
        count = _natural(rows)
        if count is None:
            raise InvalidRequest(f"{stage}: the number of rows is an integer from 0 on, not {rows!r}")
        stage = self._stage_name(f"limit {count}")
        declared = replace(self.leg.declared, stage=stage, by_name=False)
        last = self._last
        if last is not None and last.partitions == 1:
            first = replace(self, leg=self._top(last, count))
            return first._with(LimitStage(count, declared, divisible=False), self.leg.struct)
        partial = replace(declared, stage=f"{stage}, partial")
        some = self._with(LimitStage(count, partial, divisible=True), self.leg.struct)
        return some.exchange(1)._with(LimitStage(count, declared, divisible=False), self.leg.struct)

    def _top(self, last: Exchange, rows: int) -> Leg:
        """The leg, whose sorted exchange gets only rows that may be among the first, if few are wanted."""
        (part,) = self.leg.parts
        order = part.stages[0] if part.stages else None
        if (
            not 0 < rows <= _TOP_ROWS
            or not isinstance(order, SortStage)
            or not all(isinstance(stage, SelectStage) for stage in part.stages[1:])
            or self.shuffles.persisted.find(last) is not None
        ):
            return self.leg
        name = f"top {rows} by {', '.join(map(str, order.keys))}"
        top = TopStage(rows, order.keys, replace(last.leg.declared, stage=name, by_name=False))
        origin = replace(last, leg=last.leg.with_stage(top, last.leg.struct))
        return replace(self.leg, parts=(replace(part, origin=origin),))

    def count(self) -> int:
        """Run all steps; how many rows they give. Each task counts its own. A last exchange is not run, because it
        changes no count, unless it is persisted: then the server knows it. Raises as :meth:`toDF`.
        """
        leg, part = self.leg, self.leg.single
        while part is not None and all(isinstance(stage, _SAME_COUNT) for stage in part.stages):
            origin = part.origin
            if isinstance(origin, Input) and origin.source is None:
                return int(origin.rows.count())
            if not isinstance(origin, Exchange):
                break
            if self.shuffles.persisted.find(origin) is not None:
                execution = Execution(self.shuffles, self.spark)
                execution.sealed(origin)
                return execution.statistics()[1][origin].rows
            leg, part = origin.leg, origin.leg.single
        struct = StructType([StructField("count", LongType(), nullable=False)])
        declared = Declared("count", pa.schema([pa.field("count", pa.int64(), nullable=False)]))
        with replace(self, leg=leg.with_stage(CountStage(declared), struct)).result() as counts:
            return sum(row[0] for row in counts.collect())


def _aligned(leg: Leg, struct: StructType, declared: Declared) -> Leg:
    """The leg's rows with these columns."""
    if leg.declared.schema.equals(declared.schema, check_metadata=True) and leg.struct == struct:
        return leg
    return leg.with_stage(AlignStage(declared), struct)


def _natural(value: SupportsIndex) -> int | None:
    try:
        number = None if isinstance(value, bool) else value.__index__()
    except (AttributeError, TypeError):
        return None
    return number if number is not None and number >= 0 else None
