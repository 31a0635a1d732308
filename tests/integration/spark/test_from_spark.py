"""The page *From Spark*: both sides of each row give the same, in the same order where one is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_client import Pipeline, ShuffleClient
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__shuffle__partitions": "3"}
PAGE = ROOT / "spark_client" / "pipeline" / "from_spark.md"
ROWS: list[tuple[str, str]] = re.findall(r"(?m)^\| `([^`]+)` \| `([^`]+)` \|$", PAGE.read_text())


def tripled(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield pa.record_batch({"k": batch["k"], "v": pc.multiply(batch["v"], 3)})


def counted(frames: Iterator[Any]) -> Iterator[Any]:
    yield pd.DataFrame({"n": [sum(map(len, frames))]})


def first(table: pa.Table) -> pa.Table:
    return table.select(["k", "t"]).sort_by("t").slice(0, 1)


def longest(frame: Any) -> Any:
    return frame.sort_values(["s", "t"])[["k", "s"]].tail(1)


def sizes(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"a": [left.num_rows], "b": [right.num_rows]})


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.range(0, 60, 1, 3).selectExpr(
        "cast(id % 7 as int) as k", "nullif(id % 11, 3) as v", "id as t", "concat('n', id % 5) as s"
    )


def names(spark: SparkSession, df: DataFrame, client: ShuffleClient) -> dict[str, Any]:
    from pyspark.sql import functions

    other = spark.range(0, 20, 1, 2).selectExpr("id as u", "cast(id % 5 as int) as k")
    pipelines = {"p": client.pipeline(df), "q": client.pipeline(other)}
    return {**globals(), "F": functions, "df": df, "other": other, "shuffle": client, **pipelines}


def rows_of(result: Any, code: str) -> Any:
    """What a result has, in its order if the code asks for one."""
    from pyspark.sql import DataFrame

    if isinstance(result, Pipeline):
        result = result.toDF()
    if isinstance(result, DataFrame):
        rows = [*map(tuple, result.collect())]
        ordered = "orderBy(" in code or "sortWithinPartitions(" in code
        return result.columns, rows if ordered else sorted(rows, key=repr)
    # As text, in which NaN is itself.
    return repr(result.to_dict("list")) if isinstance(result, pd.DataFrame) else result


@pytest.mark.parametrize("row", ROWS, ids=[ours for _, ours in ROWS])
def test_both_sides_of_a_row_give_the_same(
    spark: SparkSession, df: DataFrame, client: ShuffleClient, tmp_path: Path, row: tuple[str, str]
) -> None:
    known, results = names(spark, df, client), []
    for side, code in zip(("theirs", "ours"), row, strict=True):
        path = known["path"] = str(tmp_path / side)
        result = eval(code, known)
        results.append(rows_of(spark.read.parquet(path) if ".write." in code else result, code))
    assert results[0] == results[1]


def test_each_method_of_a_pipeline_that_spark_has_is_on_the_page() -> None:
    elsewhere = {"agg", "explain", "persist", "unpersist", "printSchema", "show", "toDF", "toLocalIterator"}
    synonyms = {"groupby", "sort", "unionAll", "drop_duplicates"}
    with_plural = {"withColumns", "withColumnsRenamed"}
    public = {name for name in dir(Pipeline) if not name.startswith(("_", "of_"))}
    missing = {name for name in public if not any(re.search(rf"\bp\b.*\.{name}\b", row) for _, row in ROWS)}
    assert missing <= elsewhere | synonyms | with_plural | {"statistics", "toPolars"}
