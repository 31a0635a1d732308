"""Placement against real Spark, row for row: its hash function, and where its exchange really puts the rows."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from spark_client.placement.hashing import partition_ids
from tests.support.edge_values import COLUMNS, with_nulls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def assert_placed_as_by_spark(
    spark: SparkSession, batch: pa.RecordBatch, keys: list[str], partitions: int
) -> None:
    from pyspark.sql import functions as f

    table = pa.table(batch.columns, names=batch.schema.names)
    rows = spark.createDataFrame(table.append_column("row", pa.array(range(batch.num_rows), pa.int64())))
    by_hash = rows.select("row", f.pmod(f.hash(*keys), f.lit(partitions)).alias("id"))
    by_exchange = rows.repartition(partitions, *keys).select("row", f.spark_partition_id().alias("id"))
    ours = partition_ids(batch, keys, partitions).tolist()
    for theirs in (by_hash, by_exchange):
        placed = theirs.toArrow().sort_by("row")
        assert placed["row"].to_pylist() == list(range(batch.num_rows))
        assert placed["id"].to_pylist() == ours


def test_every_type_is_placed_as_by_spark(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    columns, hashed = dict[str, pa.Array](), []
    for name, values in COLUMNS.items():
        array = values()
        rows = spark.createDataFrame(pa.table({"key": array, "row": range(len(array))}))
        columns[name] = pa.concat_arrays(rows.select("key").toArrow()["key"].chunks)
        ids = f.pmod(f.hash("key"), f.lit(200))
        hashed.append(rows.select(f.lit(name).alias("type"), "row", ids.alias("id")))
    theirs = (
        reduce(DataFrame.unionAll, hashed)
        .toArrow()
        .sort_by([(name, "ascending") for name in ("type", "row")])
    )
    for name, values in columns.items():
        ours = partition_ids(pa.record_batch([values], names=["key"]), ["key"], 200)
        assert theirs.filter(pc.field("type") == name)["id"].to_pylist() == ours.tolist(), name


@pytest.mark.parametrize("partitions", [7, 60])
def test_several_keys_are_placed_as_by_spark(spark: SparkSession, partitions: int) -> None:
    names = ["int64", "string", "decimal(38,10)", "timestamp", "float64", "array of int", "boolean"]
    columns = [pa.array(with_nulls(COLUMNS[name]().to_pylist() * 3), COLUMNS[name]().type) for name in names]
    batch = pa.record_batch([column.slice(0, 300) for column in columns], names=list("abcdefg"))
    assert_placed_as_by_spark(spark, batch, ["c", "a", "b"], partitions)
    assert_placed_as_by_spark(spark, batch, list("abcdefg"), partitions)


def test_spark_refuses_maps_and_so_do_we(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    batch = pa.record_batch([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], names=["m"])
    with pytest.raises(AnalysisException, match="HASH_MAP_TYPE"):
        spark.createDataFrame(pa.table(batch.columns, names=["m"])).selectExpr("hash(m)")
    with pytest.raises(TypeError, match="'m' contains a map"):
        partition_ids(batch, ["m"], 4)
