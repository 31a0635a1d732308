"""Every type of Spark through exchanges: its values as from Spark's own mapInArrow, or Spark's refusal in our words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client import ShuffleClient
from tests.support.spark_rows import EVERY_TYPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {
    "sql__session__timeZone": "Europe/Berlin",
    "sql__timeType__enabled": "true",
    # Off in Spark 4.1.
    "sql__geospatial__enabled": "true",
}

REFUSED = {
    "year-month": "interval '1-2' year to month",
    "year": "interval '3' year",
    "calendar": "make_interval(1, 2, 3)",
    "array of years": "array(interval '3' year)",
    "struct of years": "named_struct('y', interval '3' year)",
    "repeated field": "named_struct('a', 1, 'a', 2)",
    "array of nothing": "array()",
}
NOT_REFUSED_BY_SPARK_4_1 = "repeated field"


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def whole(table: pa.Table) -> pa.Table:
    return table


def texts(df: DataFrame) -> list[str]:
    """Each row's text, which also tells -0.0 and NaN; in the order of the ids."""
    return [str(row) for row in sorted(df.collect(), key=lambda row: int(row.id))]


@pytest.fixture(scope="module")
def every_type(spark: SparkSession) -> DataFrame:
    return spark.range(0, 5, 1, 2).selectExpr(
        "id", *(f"{sql} as `{name}`" for name, sql in EVERY_TYPE.items())
    )


@pytest.mark.parametrize("stages", ["none", "map and group"])
def test_every_type_comes_back_as_from_sparks_own_map_in_arrow(
    client: ShuffleClient, every_type: DataFrame, stages: str
) -> None:
    schema = every_type.schema
    pipeline = client.pipeline(every_type)
    if stages == "none":
        pipeline = pipeline.repartition(3, "id")
    else:
        pipeline = (
            pipeline.mapInArrow(same, schema).repartition(3, "id").groupBy("id").applyInArrow(whole, schema)
        )
        pipeline = pipeline.repartition(2).mapInArrow(same, schema)
    ours = pipeline.toDF()
    assert ours.schema == schema
    expected = texts(every_type.mapInArrow(same, schema))
    assert len(expected) == 5
    assert texts(ours) == expected == texts(every_type)


def placed(df: DataFrame) -> list[tuple[int, int]]:
    """The partition of each row."""
    from pyspark.sql import functions as sql

    rows = df.select(sql.col("id").cast("int"), sql.spark_partition_id()).collect()
    assert len(rows) == 5
    return sorted((row[0], row[1]) for row in rows)


def test_keys_of_a_dataframe_are_placed_as_by_spark(client: ShuffleClient, every_type: DataFrame) -> None:
    no_key = ("variant", "collat", "map", "geo", "struct")
    keys = [name for name in every_type.columns if not any(no in name for no in no_key)]
    keys += ["struct of all widths"]
    pipeline = client.pipeline(every_type).repartition(97, *keys)
    expected = every_type.repartition(97, *(f"`{key}`" for key in keys))
    assert placed(pipeline.toDF()) == placed(expected)


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_spark_cannot_give_to_arrow_is_refused_before_any_job(
    client: ShuffleClient, spark: SparkSession, name: str
) -> None:
    df = spark.range(2).selectExpr("id", f"{REFUSED[name]} as v")
    if name != NOT_REFUSED_BY_SPARK_4_1 or not spark.version.startswith("4.1."):
        with pytest.raises(Exception, match=r"NOT_IMPLEMENTED|UNSUPPORTED|DUPLICATED|null"):
            df.mapInArrow(same, df.schema).collect()
    why = "Spark has no Arrow type for column 'v' of type"
    if name == "repeated field":
        why = "a struct in column 'v' has two fields of the name 'a'; rename one"
    with pytest.raises(InvalidRequest, match=f"the DataFrame: {why}"):
        client.pipeline(df)
    with pytest.raises(InvalidRequest, match=rf"stage 1 \(mapInArrow same\): {why}"):
        client.pipeline(spark.range(2)).mapInArrow(same, df.schema)


def test_user_defined_types_come_back_as_objects(client: ShuffleClient, spark: SparkSession) -> None:
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import ArrayType, LongType, StructType

    schema = StructType().add("id", LongType()).add("v", VectorUDT()).add("vs", ArrayType(VectorUDT()))
    vectors = [Vectors.dense([1.0, -0.0]), Vectors.sparse(3, {1: 2.0}), None]
    df = spark.createDataFrame([(i, vector, [vector, None]) for i, vector in enumerate(vectors)], schema)
    ours = (
        client.pipeline(df)
        .mapInArrow(same, schema)
        .repartition(2, "id")
        .groupBy("id")
        .applyInArrow(whole, schema)
        .toDF()
    )
    assert ours.schema == schema
    assert texts(ours) == texts(df)
    assert sorted(ours.collect(), key=lambda row: row.id)[1].v == vectors[1]


def test_names_that_spark_cannot_tell_apart_are_named(spark: SparkSession, client: ShuffleClient) -> None:
    alike = spark.sql("select 1 as id, 2 as ID, 3 as Id, 4 as k")
    uses: list[Callable[[], object]] = [
        lambda: client.pipeline(alike).repartition(2, "k").toDF(),
        lambda: client.pipeline(alike).mapInArrow(same, alike.schema).toDF(),
        lambda: client.collect(alike),
        lambda: client.broadcast(alike),
    ]
    for use in uses:
        with pytest.raises(
            InvalidRequest, match="the columns 'id', 'ID', 'Id' apart, which differ by case only; rename"
        ):
            use()
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert client.collect(alike).read_all().column("ID").to_pylist() == [2]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
