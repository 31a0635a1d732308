"""Looking at a pipeline's rows on local Spark and a real server: as Spark shows them, and nothing stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_client import Pipeline, ShuffleClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin", "sql__shuffle__partitions": "3"}


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.range(0, 50, 1, 4).selectExpr(
        "id",
        "if(id % 7 = 0, null, cast(id % 5 as int)) as k",
        "repeat('long text ', 4) as s",
        "timestamp_seconds(id * 86400) as t",
        "named_struct('a', id, 'b', array(id, null)) as st",
    )


def steps(pipeline: Pipeline) -> list[Pipeline]:
    """The same rows, before and after exchanges."""
    return [
        pipeline,
        pipeline.repartition(3, "k").orderBy("id"),
        pipeline.mapInArrow(lambda batches: batches, pipeline.schema).repartitionByRange(4, "id", seed=1)
        .sortWithinPartitions("id"),
    ]  # fmt: skip


LOOKS: dict[str, Callable[[Any], Any]] = {
    "head": lambda rows: rows.head(),
    "take(0)": lambda rows: rows.take(0),
    "take(60)": lambda rows: rows.take(60),
    "first": lambda rows: rows.first(),
    "isEmpty": lambda rows: rows.isEmpty(),
}


def test_first_rows_are_those_of_spark_and_nothing_stays(df: DataFrame, client: ShuffleClient) -> None:
    expected = {name: look(df) for name, look in LOOKS.items()}
    for plan in steps(client.pipeline(df)):
        assert {name: look(plan) for name, look in LOOKS.items()} == expected
    assert client.datasets("exchange/") == []
    nothing = client.pipeline(df).filter(pc.field("id") < 0).repartition(2)
    assert (nothing.isEmpty(), nothing.first(), nothing.head(), nothing.head(1)) == (True, None, None, [])


def test_rows_are_shown_as_spark_shows_them(
    df: DataFrame, client: ShuffleClient, capsys: pytest.CaptureFixture[str]
) -> None:
    shows: list[Callable[[Any], None]] = [
        lambda rows: rows.show(),
        lambda rows: rows.show(3, truncate=False),
        lambda rows: rows.show(2, 5, vertical=True),
        lambda rows: rows.show(60),
    ]
    for show in shows:
        show(df)
        expected = capsys.readouterr().out
        for plan in steps(client.pipeline(df))[:2]:
            show(plan)
            assert capsys.readouterr().out == expected


def test_a_result_is_a_table_and_a_frame_of_pandas_and_of_polars(
    df: DataFrame, client: ShuffleClient
) -> None:
    import polars as pl
    from pandas.testing import assert_frame_equal

    ordered = client.pipeline(df).orderBy("id")
    table = ordered.toArrow()
    assert table["id"].to_pylist() == [*range(50)]
    reader = ordered.toLocalIterator()
    assert isinstance(reader, pa.RecordBatchReader)
    assert pa.Table.from_batches(list(reader), reader.schema) == table
    # Spark's own has rows for structs.
    plain = ordered.drop("st")
    assert_frame_equal(plain.toPandas(), df.drop("st").toPandas())
    assert plain.filter(pc.field("id") < 0).toPandas().columns.tolist() == plain.columns
    assert ordered.select("id", "k").toPolars().equals(pl.DataFrame(table.select(["id", "k"])))
    assert client.datasets("exchange/") == []


def test_columns_of_the_result_may_have_other_names(df: DataFrame, client: ShuffleClient) -> None:
    with client.scope():
        renamed = client.pipeline(df).select("id", "k").repartition(2, "id").toDF("one", "two")
        assert renamed.columns == ["one", "two"]
        assert renamed.agg({"one": "sum"}).first() == (sum(range(50)),)


@pytest.mark.long
def test_rows_are_in_order_also_where_ranges_are_many(spark: SparkSession, client: ShuffleClient) -> None:
    """More rows than one range, which the driver would not write alone, in an order with ties and nulls."""
    df = spark.range(0, 100_000, 1, 4).selectExpr("id", "nullif(hash(id) % 1000, 7) as k")
    expected = df.orderBy("k", "id").toArrow()
    ordered = client.pipeline(df).mapInArrow(lambda batches: batches, df.schema).orderBy("k", "id")
    assert ordered.toArrow() == expected
    (exchange,) = ordered.statistics().exchanges[-1:]
    assert exchange.empty_partitions == 0
    assert exchange.largest_bytes < 2 * exchange.median_bytes
    assert ordered.limit(1 << 18).toArrow() == expected
    assert ordered.filter(pc.field("id") >= 0).limit(7).toArrow() == expected.slice(0, 7)
    with client.scope():
        assert ordered.toDF().toArrow() == expected
