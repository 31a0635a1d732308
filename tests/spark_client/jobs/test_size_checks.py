"""Spark does not measure batches that cannot be too large, and measures all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as of
from pyspark.sql.types import DataType, StructType

from spark_client import ShuffleClient
from spark_client.jobs.size_checks import stays_below
from spark_client.steps import BatchLimits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"


def struct(*kinds: DataType) -> StructType:
    found = StructType()
    for number, kind in enumerate(kinds):
        found = found.add(f"c{number}", kind)
    return found


@pytest.mark.parametrize(
    ("limits", "kinds", "stays"),
    [
        (BatchLimits(10_000, 64 << 20), [of.LongType(), of.DecimalType(38, 2), of.BooleanType()], True),
        (BatchLimits(10_000, 64 << 20), [of.LongType()] * 800, True),
        (BatchLimits(10_000, 64 << 20), [of.LongType()] * 850, False),
        (BatchLimits(10_000, 64 << 20), [of.LongType(), of.StringType()], False),
        (BatchLimits(10_000, 64 << 20), [of.ArrayType(of.LongType())], False),
        (BatchLimits(10_000, 64 << 20), [struct(of.StringType())], False),
        (BatchLimits(0, 64 << 20), [of.LongType()], False),
        (BatchLimits(10_000_000, 64 << 20), [of.LongType()], False),
        (BatchLimits(10_000, 80_000), [of.LongType()], False),
        (BatchLimits(10_000, 0), [of.LongType()], False),
    ],
)
def test_rows_of_fixed_width_are_known_to_stay_below_the_limit(
    limits: BatchLimits, kinds: list[DataType], stays: bool
) -> None:
    assert stays_below(limits, struct(*kinds)) is stays


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def limit_of_task(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    limit = context.getLocalProperty(LIMIT)
    for batch in batches:
        yield pa.record_batch(
            [pa.array([limit], pa.string()), pa.array([len(batch)])], names=["limit", "rows"]
        )


def cached(spark: SparkSession, _: Path) -> DataFrame:
    return spark.range(25).mapInArrow(same, "id long").cache()


def of_files(spark: SparkSession, path: Path) -> DataFrame:
    spark.range(0, 25, 1, 1).write.mode("overwrite").parquet(str(path / "python arrow rdd"))
    return spark.read.parquet(str(path / "python arrow rdd"))


def of_a_subquery(spark: SparkSession, _: Path) -> DataFrame:
    spark.range(3).mapInArrow(same, "id long").createOrReplaceTempView("in_a_subquery")
    return spark.sql("SELECT id FROM range(25) WHERE id <= (SELECT 99 + max(id) FROM in_a_subquery)")


FRAMES: dict[str, tuple[Callable[[SparkSession, Path], DataFrame], bool]] = {
    "a range": (lambda spark, _: spark.range(0, 25, 1, 1), True),
    "files": (of_files, True),
    "groups": (lambda spark, _: spark.range(25).groupBy("id").count(), True),
    "text": (lambda spark, _: spark.range(25).selectExpr("string(id) as id"), False),
    "a function": (lambda spark, _: spark.range(25).mapInArrow(same, "id long"), False),
    "a function in a subquery": (of_a_subquery, False),
    "cached": (cached, False),
    "an RDD": (lambda spark, _: spark.createDataFrame(spark.range(25).rdd, "id long"), False),
}


# What may be too large is found in a plan, whatever makes it.
ALIKE = {"files", "groups", "cached", "an RDD"}


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in ALIKE else []) for name in FRAMES],
)
def test_jobs_whose_batches_cannot_be_too_large_run_without_the_limit(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path, name: str
) -> None:
    make, lifted = FRAMES[name]
    df = make(spark, tmp_path)
    context: Any = spark.sparkContext
    context.setLocalProperty(LIMIT, None)
    pipeline = client.pipeline(df).mapInArrow(limit_of_task, "limit string, rows long").repartition(2)
    found = pipeline.toDF().collect()
    assert sum(row.rows for row in found) == 25
    assert {row.limit for row in found} == {"2147483647" if lifted else None}
    assert context.getLocalProperty(LIMIT) is None


@pytest.mark.spark
def test_a_job_of_two_inputs_keeps_the_limit_if_one_needs_it(
    spark: SparkSession, client: ShuffleClient
) -> None:
    """They are written by one job."""
    numbers = client.pipeline(spark.range(25)).mapInArrow(limit_of_task, "limit string, rows long")
    texts = client.pipeline(spark.range(25).selectExpr("string(id) as id"))
    both = numbers.union(texts.mapInArrow(limit_of_task, "limit string, rows long")).repartition(2)
    assert {row.limit for row in both.toDF().collect()} == {None}


@pytest.mark.spark
def test_it_does_not_matter_how_much_of_a_plan_is_shown(spark: SparkSession, client: ShuffleClient) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.maxPlanStringLength", "20")
    df = session.range(0, 25, 1, 1)
    found = (
        client.pipeline(df.mapInArrow(same, "id long"))
        .mapInArrow(limit_of_task, "limit string, rows long")
        .repartition(2)
        .toDF()
        .collect()
    )
    assert {row.limit for row in found} == {None}


@pytest.mark.spark
def test_a_limit_that_the_session_has_set_is_kept(spark: SparkSession, client: ShuffleClient) -> None:
    session = spark.newSession()
    session.conf.set(LIMIT, "1m")
    df = session.range(0, 25, 1, 1)
    pipeline = client.pipeline(df).mapInArrow(limit_of_task, "limit string, rows long").repartition(2)
    assert {row.limit for row in pipeline.toDF().collect()} == {"1m"}
