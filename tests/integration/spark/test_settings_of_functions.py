"""Functions get rows by the settings of the moment in which their plan runs, not of that in which it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.spark_rows import content

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = """
    select 1 as k, id, timestamp'2024-01-31 10:00:00Z' as t, 'text' as s, if(id = 0, null, id) as n,
        array(timestamp'2024-01-31 10:00:00Z') as ts, map('k', timestamp'2024-01-31 10:00:00Z') as m
    from range(0, 2, 1, 1)
"""
SEEN = "a decimal(10, 0), b int, c string"
SETTINGS = {
    "spark.sql.session.timeZone": ("Europe/Vienna", "Asia/Tokyo"),
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": ("false", "true"),
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": ("false", "true"),
    "spark.sql.execution.pandas.convertToArrowArraySafely": ("true", "false"),
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": ("true", "false"),
    "spark.sql.execution.arrow.useLargeVarTypes": ("false", "true"),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("10000", "1"),
}


def seen(frame: pd.DataFrame, *others: pd.DataFrame) -> pd.DataFrame:
    """What the settings change: hours, types, and which results are accepted."""
    told = [
        f"{each['t'].dt.hour.tolist()} {each['n'].dtype} {each['ts'].tolist()}" for each in (frame, *others)
    ]
    return pd.DataFrame({"a": [7], "b": [1.5], "c": ["|".join(told)]})


def swapped(frame: pd.DataFrame) -> pd.DataFrame:
    """By name the columns would be other ones."""
    return seen(frame).rename(columns={"a": "b", "b": "a"})


def seen_of_each(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return map(seen, frames)


def types(batch: Any) -> str:
    return f"{batch.num_rows} {batch.schema.types}"


def types_of_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"c": [types(batch)]})


def types_of_group(keys: tuple[Any, ...], *tables: pa.Table) -> pa.Table:
    told = f"{[key.type for key in keys]} {list(map(types, tables))}"
    return pa.table({"c": pa.array([told], tables[0].schema.field("s").type)})


def types_of_both(keys: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    return types_of_group(keys, left, right)


METHODS: dict[str, tuple[Callable[[Any], Any], Callable[[DataFrame], DataFrame]]] = {
    "mapInPandas": (
        lambda rows: rows.mapInPandas(seen_of_each, SEEN),
        lambda df: df.mapInPandas(seen_of_each, SEEN),
    ),
    "applyInPandas": (
        lambda rows: rows.repartition(1, "k").groupBy("k").applyInPandas(swapped, SEEN),
        lambda df: df.groupBy("k").applyInPandas(swapped, SEEN),
    ),
    "mapInArrow": (
        lambda rows: rows.repartition(1).mapInArrow(types_of_each, "c string"),
        lambda df: df.mapInArrow(types_of_each, "c string"),
    ),
    "cogroup in Arrow": (
        lambda rows: (
            rows.repartition(1, "k", "s")
            .groupBy("k", "s")
            .cogroup(rows.filter(rows_of_none()).repartition(1, "k", "s").groupBy("k", "s"))
            .applyInArrow(types_of_both, "c string")
        ),
        lambda df: (
            df.groupBy("k", "s")
            .cogroup(df.where("false").groupBy("k", "s"))
            .applyInArrow(types_of_both, "c string")
        ),
    ),
}


def rows_of_none() -> Any:
    return pa.compute.field("id") < 0


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """One with the first value of each setting."""
    found = spark.newSession()
    for name, (before, _) in SETTINGS.items():
        found.conf.set(name, before)
    return found


def change(session: SparkSession) -> None:
    for name, (_, after) in SETTINGS.items():
        session.conf.set(name, after)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[pytest.mark.long] if number % 2 else [])
        for number, name in enumerate(METHODS)
    ],
)
def test_functions_get_rows_by_the_settings_of_the_run(
    client: ShuffleClient, session: SparkSession, method: str
) -> None:
    ours, theirs = METHODS[method]
    df = session.sql(ROWS)
    plan, expected = ours(client.pipeline(df)), theirs(df)
    change(session)
    assert content(plan.toDF()) == content(expected)


def test_functions_over_a_scan_do_so_too(
    client: ShuffleClient, session: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "rows")
    session.sql(ROWS).write.parquet(path)
    plan = client.scan(path, spark=session).mapInPandas(seen_of_each, SEEN)
    expected = session.read.parquet(path).mapInPandas(seen_of_each, SEEN)
    change(session)
    assert content(plan.toDF()) == content(expected)
