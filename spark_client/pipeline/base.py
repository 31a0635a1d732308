"""What every step of a pipeline stands on: its state, and the checks of functions, schemas and columns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import Shuffles, arrow_schema, declared_struct, is_on, spark_setting
from spark_client.steps import SortStage, Stage, TopStage

from .nodes import Exchange, Leg, Pair, PlanPart, steps
from .spark_names import instead


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps over DataFrames and scans: the last leg of a plan. Each method returns a new object."""

    shuffles: Shuffles
    spark: SparkSession
    leg: Leg

    def __repr__(self) -> str:
        return f"<Pipeline {steps(self.leg)}>"

    if not TYPE_CHECKING:  # which would take any name for a step

        def __getattr__(self, name: str) -> NoReturn:
            found = instead(name)
            if found is None:
                raise AttributeError(f"a pipeline has no {name!r}", name=name, obj=self)
            raise AttributeError(f"a pipeline has no {name!r}: {found}")

    @property
    def schema(self) -> StructType:
        """The schema of the rows after the last step."""
        return self.leg.struct

    # Inside, for the modules that add steps.

    @property
    def _schema(self) -> pa.Schema:
        return self.leg.declared.schema

    @property
    def _last(self) -> Exchange | None:
        """The exchange that the current leg reads; None if it reads a DataFrame, a scan, or more than one exchange."""
        part = self.leg.single
        return part.origin if part is not None and isinstance(part.origin, Exchange) else None

    @property
    def _stage_count(self) -> int:
        return _stages(self.leg)

    @property
    def _case_sensitive(self) -> bool:
        return is_on(self.spark, "spark.sql.caseSensitive")

    def _declare(
        self, method: str, fn: Callable[..., Any], schema: StructType | str, *, by_name: bool
    ) -> tuple[StructType, Declared]:
        if not callable(fn):
            raise InvalidRequest(f"{self._stage_name(method)}: {fn!r} is not a function")
        name = self._stage_name(f"{method} {getattr(fn, '__name__', type(fn).__name__)}")
        struct = declared_struct(self.spark, schema, name)
        return struct, Declared(name, arrow_schema(self.spark, struct, name), by_name)

    def _stage_name(self, what: str) -> str:
        """The next stage's name in messages."""
        return f"stage {1 + self._stage_count} ({what})"

    def _with(self, stage: Stage, struct: StructType) -> Self:
        return replace(self, leg=self.leg.with_stage(stage, struct))

    def _keys(self, keys: tuple[str, ...], where: str) -> tuple[str, ...]:
        """The names of the keys' columns, as Spark resolves them."""
        return find_columns(
            keys, where, self._schema.names, f"after {self.leg.declared.stage}", exact=self._case_sensitive
        )

    def _named(self, key: str) -> list[str]:
        """The columns that a name may stand for."""
        exact = self._case_sensitive
        return _by_name(self._schema.names, exact=exact).get(key if exact else key.casefold(), [])


def _stages(leg: Leg) -> int:
    """The functions on the longest way to the leg."""
    return max(_stages_of(part) for part in leg.parts)


def _stages_of(part: PlanPart) -> int:
    origin, before = part.origin, 0
    if isinstance(origin, Exchange):
        before = _stages(origin.leg)
    elif isinstance(origin, Pair):
        before = max(_stages_of(origin.left), _stages_of(origin.right))
    return before + sum(not isinstance(stage, SortStage | TopStage) for stage in part.stages)


def integer(value: Any) -> int:
    """The value as an int; 0, which every caller refuses, if it is no integer or a bool."""
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0


def default_partitions(spark: SparkSession) -> int:
    """The partitions of an exchange for which the user has given no number."""
    return int(spark_setting(spark, "spark.sql.shuffle.partitions"))


def find_columns(
    keys: Sequence[str], where: str, names: Sequence[str], place: str, *, exact: bool
) -> tuple[str, ...]:
    """The columns that these keys name, as Spark resolves them; ``exact`` if case counts.

    Args:
        place: where the columns with these ``names`` are, for messages.

    Raises:
        InvalidRequest: a key is no name, names no column, or names more than one.
    """
    found: list[str] = []
    missing: list[str] = []
    named = _by_name(names, exact=exact)
    for key in keys:
        if not isinstance(key, str):
            raise InvalidRequest(
                f"{where}: a column is given by its name, not by {type(key).__name__}; make an expression a column "
                "by select first, and give several names one by one"
            )
        same = named.get(key if exact else key.casefold(), [])
        if len(same) > 1:
            raise InvalidRequest(
                f"{where}: {key!r} could be any of {', '.join(map(repr, same))}; rename one, or set "
                "spark.sql.caseSensitive",
                column=key,
            )
        (found if same else missing).append(same[0] if same else key)
    if missing:
        raise InvalidRequest(
            f"{where}: no column {', '.join(map(repr, missing))} {place}; it has {', '.join(map(repr, names))}",
            column=missing[0],
        )
    return tuple(found)


def _by_name(names: Sequence[str], *, exact: bool) -> dict[str, list[str]]:
    """The columns that a name may stand for; without ``exact`` by the name without case."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name if exact else name.casefold(), []).append(name)
    return found
