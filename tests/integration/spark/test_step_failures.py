"""Tasks that die in the midst of joins, cogroups, sorts, aggregates and the like leave the rows exactly right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import Pipeline, ShuffleClient
from tests.support.failing_tasks import fails_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
# Each task may fail once, so that Spark tries again.
SPARK_SETTINGS = {"master": "local[2, 2]"}

ROWS, KEYS = 3000, 50
ALL = [(number, number % KEYS) for number in range(ROWS)]


def weigh(rows: pa.Table, weights: pa.Table) -> pa.Table:
    return pa.table({"k": rows["k"][:1], "rows": [len(rows)], "w": weights["w"]})


def count(rows: pa.Table) -> pa.Table:
    return pa.table({"k": rows["k"][:1], "rows": [len(rows)]})


def joined(rows: Pipeline, weights: Pipeline) -> Pipeline:
    return rows.join(weights, on="k", numPartitions=3).select("id", "k", "w")


def cogrouped(rows: Pipeline, weights: Pipeline) -> Pipeline:
    pair = rows.groupBy("k", numPartitions=3).cogroup(weights.groupBy("k"))
    return pair.applyInArrow(weigh, "k long, rows long, w long")


def grouped(rows: Pipeline, weights: Pipeline) -> Pipeline:
    return rows.repartition(3, "k").groupBy("k").applyInArrow(count, "k long, rows long")


def sorted_by_id(rows: Pipeline, weights: Pipeline) -> Pipeline:
    return rows.repartition(1).sortWithinPartitions("id desc")


def aggregated(rows: Pipeline, weights: Pipeline) -> Pipeline:
    return rows.groupBy("k", numPartitions=3).agg(rows=("*", "count"), total=("id", "sum"))


def limited(rows: Pipeline, weights: Pipeline) -> Pipeline:
    return rows.repartition(3, "k").limit(100)


def united(rows: Pipeline, weights: Pipeline) -> Pipeline:
    return rows.repartition(3, "k").union(weights.select(id="w", k="k"))


STEPS: dict[Any, Any] = {
    joined: [(number, key, 10 * key) for number, key in ALL],
    cogrouped: [(key, ROWS // KEYS, 10 * key) for key in range(KEYS)],
    grouped: [(key, ROWS // KEYS) for key in range(KEYS)],
    sorted_by_id: ALL[::-1],
    aggregated: [(key, ROWS // KEYS, sum(range(key, ROWS, KEYS))) for key in range(KEYS)],
    united: ALL + [(10 * key, key) for key in range(KEYS)],
    limited: None,
}
PLACES = ("before", "after, then an exchange", "after, in the result")
CASES = [
    pytest.param((step, PLACES[number % 3], how), id=f"{step.__name__}, {PLACES[number % 3]}, {how}")
    for number, step in enumerate(STEPS)
    for how in [("exit", "raise")[number % 2]]
]


@pytest.mark.parametrize("case", CASES)
def test_a_task_that_dies_leaves_the_rows_exactly_right(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, case: tuple[Any, str, str]
) -> None:
    step, place, how = case
    fails = fails_first(tmp_path / "failed", how)
    rows = client.pipeline(spark.range(0, ROWS, 1, 3).selectExpr("id", f"id % {KEYS} as k"))
    weights = client.pipeline(spark.range(0, KEYS, 1, 2).selectExpr("id as k", "id * 10 as w"))
    if place == "before":
        result = step(rows.mapInArrow(fails, "id long, k long"), weights)
    else:
        result = step(rows, weights)
        result = result.mapInArrow(fails, result.schema)
        if "exchange" in place:
            result = result.repartition(1)
    found = [tuple(row) for row in result.toDF().collect()]
    assert (tmp_path / "failed").exists()
    if step is limited:
        assert len(set(found)) == len(found) == 100
        assert set(found) <= set(ALL)
    elif step is sorted_by_id:
        assert found == STEPS[step]
    else:
        assert sorted(found) == sorted(STEPS[step])
