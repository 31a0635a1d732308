"""The base of every step of a pipeline: the steps before it, of which the first leg has the rows of a DataFrame or
scan, and the checks of functions, schemas and columns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from flight_server.protocol import MAX_PARTITIONS, InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import (
    Shares,
    Shuffles,
    TaskNumbers,
    arrow_schema,
    check_frame,
    columns_by_name,
    declared_struct,
    find_columns,
    is_on,
    same_session,
    settings_once,
    spark_setting,
)
from spark_client.scan import Scan
from spark_client.steps import Stage

from .nodes import Input, Leg, PlanPart, steps_text
from .spark_names import no_attribute, no_column, public_names


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps over DataFrames and scans: the last leg of a plan."""

    shuffles: Shuffles
    spark: SparkSession
    leg: Leg

    def __repr__(self) -> str:
        return f"<Pipeline {steps_text(self.leg)}>"

    if not TYPE_CHECKING:  # which would take any name for a step

        def __getattr__(self, name: str) -> NoReturn:
            # A copy that is being made has no leg yet.
            columns = self.leg.struct.names if "leg" in vars(self) else ()
            raise AttributeError(no_attribute(name, columns, public_names(type(self))), name=name)

    def __getitem__(self, name: object) -> NoReturn:
        raise TypeError(no_column(name))

    def __dir__(self) -> list[str]:
        return public_names(type(self))

    @property
    def schema(self) -> StructType:
        return self.leg.struct


AnySteps = TypeVar("AnySteps", bound=Steps)
P = ParamSpec("P")
T = TypeVar("T")


def one_reading(step: Callable[P, T]) -> Callable[P, T]:
    """The function, which adds a step to its first argument, and reads the session's settings once."""

    @wraps(step)
    def in_block(*args: P.args, **kwargs: P.kwargs) -> T:
        steps: Any = args[0]
        with settings_once(steps.spark):
            return step(*args, **kwargs)

    return in_block


def leg_of_frame(shuffles: Shuffles, df: DataFrame) -> Leg:
    """The rows of a DataFrame.

    Raises:
        InvalidRequest: as :func:`check_frame` and :func:`arrow_schema`.
    """
    check_frame(df, "the DataFrame")
    spark = df.sparkSession
    shuffles.sessions.used(spark)
    struct, result = declared(spark, df.schema, "the DataFrame")

    def with_columns(names: Sequence[str]) -> Input:
        columns = [sql.col(f"`{name.replace('`', '``')}`") for name in names]
        label = f"DataFrame, {len(names)} of {len(struct)} columns: {', '.join(map(repr, names))}"
        schema = pa.schema([result.schema.field(name) for name in names])
        return Input(df.select(*columns), label, schema=schema)

    # Of two names that differ by case only, Spark may find either.
    are_apart = len({name.casefold() for name in struct.names}) == len(struct)
    start = Input(df, "DataFrame", schema=result.schema, with_columns=with_columns if are_apart else None)
    return Leg((PlanPart(start),), struct, result)


def leg_of_scan(spark: SparkSession, scan: Scan) -> Leg:
    """The rows that the first tasks read."""
    return Leg((PlanPart(_input_of_scan(spark, scan)),), scan.struct, scan.declared)


def _input_of_scan(spark: SparkSession, scan: Scan) -> Input:
    splits = scan.splits

    def with_filter(expression: Any, name: str) -> Input | None:
        made = scan.with_filter(spark, expression, name)
        return None if made is None else _input_of_scan(spark, made)

    return Input(
        TaskNumbers(spark, len(splits)),
        str(scan),
        splits,
        Shares.each(len(splits)),
        scan.driver_bytes,
        scan.rows,
        scan.kept,
        scan.declared.schema,
        lambda names: _input_of_scan(spark, scan.with_columns(spark, names)),
        with_filter,
    )


def case_sensitive(steps: Steps) -> bool:
    """Whether the names of columns differ by case."""
    return is_on(steps.spark, "spark.sql.caseSensitive")


def declared(
    spark: SparkSession, schema: StructType | str, stage: str, *, by_name: bool = False
) -> tuple[StructType, Declared]:
    """The declared result of a stage of this name. Raises as ``declared_struct`` and ``arrow_schema``."""
    struct = declared_struct(spark, schema, stage)
    return struct, Declared(stage, arrow_schema(spark, struct, stage), by_name)


def declare(
    steps: Steps, method: str, func: Callable[..., Any], schema: StructType | str, *others: Leg, by_name: bool
) -> tuple[StructType, Declared]:
    """The declared result of a stage of the function, over the rows of ``others``, too."""
    if not callable(func):
        raise InvalidRequest(f"{stage_name(steps, method, *others)}: {func!r} is not a function")
    name = stage_name(steps, f"{method} {getattr(func, '__name__', type(func).__name__)}", *others)
    return declared(steps.spark, schema, name, by_name=by_name)


def second_side(steps: Steps, other: Any, where: str, kinds: str = "a Pipeline") -> Steps:
    """The second pipeline of a step; ``kinds`` says for messages what the step takes. Raises InvalidRequest: it is
    none, or of another client or session.
    """
    if not isinstance(other, Steps):
        raise InvalidRequest(
            f"{where}: the other side is {kinds}, not {type(other).__name__}; shuffle.pipeline(df) makes one"
        )
    if other.shuffles is not steps.shuffles or not same_session(other.spark, steps.spark):
        raise InvalidRequest(f"{where}: both pipelines must be of one ShuffleClient and Spark session")
    return other


def stage_name(steps: Steps, what: str, *others: Leg) -> str:
    """The name in messages of the next stage, after the steps and ``others``."""
    return f"stage {1 + max(leg.stage_count for leg in (steps.leg, *others))} ({what})"


def with_stage(steps: AnySteps, stage: Stage, struct: StructType) -> AnySteps:
    """The same rows after one more stage."""
    return replace(steps, leg=steps.leg.with_stage(stage, struct))


def find_keys(steps: Steps, keys: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The names of the keys' columns, as Spark resolves them."""
    leg = steps.leg
    place = f"after {leg.declared.stage}"
    return find_columns(keys, where, leg.schema.names, place, exact=case_sensitive(steps))


def columns_named(steps: Steps, key: str) -> list[str]:
    """The columns that a name may stand for."""
    exact = case_sensitive(steps)
    return columns_by_name(steps.leg.schema.names, exact=exact).get(key if exact else key.casefold(), [])


def integer(value: Any, otherwise: int = 0) -> int:
    """The value as an int; ``otherwise``, which every caller refuses, if it is no integer or a bool."""
    try:
        return otherwise if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return otherwise


def default_partitions(spark: SparkSession) -> int:
    """The partitions of an exchange for which the user has given no number."""
    return int(spark_setting(spark, "spark.sql.shuffle.partitions"))


def partition_count(steps: Steps, numPartitions: Any, where: str) -> int:
    """How many partitions an exchange has; None is the session's default. Raises InvalidRequest: it is no number that
    an exchange may have.
    """
    count = integer(default_partitions(steps.spark) if numPartitions is None else numPartitions)
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidRequest(f"{where}: numPartitions is 1 to {MAX_PARTITIONS}, not {numPartitions!r}")
    return count
