"""Exchanges on local Spark and a real server: Spark's answers, accepted attempts only, the server's own words."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_client import ShuffleClient
from spark_client.jobs import cores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin"}


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    return spark.range(0, 2000, 1, 5).selectExpr(
        "id",
        "if(id % 11 = 0, null, cast(id % 7 as int)) as k",
        "if(id % 13 = 0, null, concat('name-', id % 5)) as s",
        "cast(id as decimal(12, 2)) / 4 as d",
        "timestamp_seconds(id * 1000) as t",
        "array(id, id + 1) as a",
        "named_struct('x', cast(id as double), 'y', cast(id as string)) as st",
        "map(cast(id as string), id) as m",
    )


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def placed(df: DataFrame) -> set[tuple[int, int]]:
    from pyspark.sql import functions as sql

    return {(row.id, row.p) for row in df.select("id", sql.spark_partition_id().alias("p")).collect()}


def test_rows_after_a_stage_are_in_the_partitions_of_sparks_repartition(
    client: ShuffleClient, events: DataFrame
) -> None:
    """There tasks hash all keys; ``test_types`` has those of a DataFrame, of which Spark hashes some."""
    keys = ("k", "s", "d", "t", "a", "st")
    pipeline = client.pipeline(events).mapInArrow(same, events.schema)
    assert placed(pipeline.repartition(7, *keys).toDF()) == placed(events.repartition(7, *keys))


def test_without_keys_rows_are_dealt_out_evenly(client: ShuffleClient, events: DataFrame) -> None:
    sizes: dict[int, int] = {}
    found = placed(client.pipeline(events).repartition(8).toDF())
    for _, partition in found:
        sizes[partition] = sizes.get(partition, 0) + 1
    assert len(found) == 2000
    assert sorted(sizes) == list(range(8))
    assert max(sizes.values()) - min(sizes.values()) <= 5


def test_groups_equal_sparks_apply_in_arrow(client: ShuffleClient, events: DataFrame) -> None:
    def total(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return pa.table(
            {
                "k": pa.array([keys[0].as_py()], pa.int32()),
                "s": pa.array([keys[1].as_py()], pa.string()),
                "rows": pa.array([table.num_rows], pa.int64()),
                "ids": pa.array([pc.sum(table.column("id")).as_py()], pa.int64()),
            }
        )

    ddl = "k int, s string, rows long, ids long"
    ours = client.pipeline(events).repartition(4, "k", "s").groupBy("k", "s").applyInArrow(total, ddl).toDF()
    theirs = events.groupBy("k", "s").applyInArrow(total, ddl)
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


def test_a_tasks_worker_neither_delays_acknowledgements_nor_results_nor_collects_what_it_has_imported(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def options(batches: Iterator[Any]) -> Iterator[Any]:
        import socket

        from spark_client.pyspark_parts import worker_connection

        connection = worker_connection()
        assert connection is not None
        found = [
            connection.getsockopt(socket.IPPROTO_TCP, each)
            for each in (socket.TCP_NODELAY, socket.TCP_QUICKACK)
        ]
        for _ in batches:
            facts = [bool(found[0]), bool(found[1]), gc.get_freeze_count() > 1000]
            yield pa.record_batch([[fact] for fact in facts], names=["nodelay", "quickack", "frozen"])

    ddl = "nodelay boolean, quickack boolean, frozen boolean"
    for _ in range(2):  # the kernel delays only from a connection's second answer on
        pipeline = client.pipeline(spark.range(0, 4, 1, 2)).mapInArrow(options, ddl)
        assert {tuple(row) for row in pipeline.repartition(2).toDF().collect()} == {(True, True, True)}


def test_stages_between_exchanges_run_in_one_python_process(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def first(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.append_column("first", pa.array([os.getpid()] * len(batch), pa.int64()))

    def second(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.append_column("second", pa.array([os.getpid()] * len(batch), pa.int64()))

    out = (
        client.pipeline(spark.range(100))
        .mapInArrow(first, "id long, first long")
        .mapInArrow(second, "id long, first long, second long")
        .repartition(2, "id")
        .toDF()
    )
    rows = out.collect()
    assert len(rows) == 100
    assert all(row.first == row.second for row in rows)


def calls(batches: Iterator[Any]) -> Iterator[Any]:
    """One row for each call: the partition and task that Spark says, and the rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition, task = context.partitionId(), context.taskAttemptId()
    ids = [number for batch in batches for number in batch.column("id").to_pylist()]
    yield pa.record_batch([[partition], pa.array([task]), [sorted(ids)]], CALLS)


CALLS = pa.schema([("partition", pa.int32()), ("task", pa.int64()), ("ids", pa.list_(pa.int64()))])
CALLS_DDL = "partition int, task long, ids array<long>"


@pytest.mark.parametrize(("tasks", "expected"), [(None, 2), (5, 5)])
def test_a_reading_task_calls_a_function_once_for_each_of_its_partitions(
    client: ShuffleClient, spark: SparkSession, tasks: int | None, expected: int
) -> None:
    df = spark.range(500)
    placed_by_spark: dict[int, list[int]] = {}
    for number, partition in placed(df.repartition(7, "id")):
        placed_by_spark.setdefault(partition, []).append(number)
    by_partition = {partition: sorted(numbers) for partition, numbers in placed_by_spark.items()}

    exchanged = client.pipeline(df).repartition(7, "id", tasks=tasks).mapInArrow(calls, CALLS_DDL)
    read = exchanged.toDF()
    assert read.rdd.getNumPartitions() == expected
    # The second time the tasks that read also write the next exchange.
    for result in (read, exchanged.repartition(2, "partition").toDF()):
        rows = result.collect()
        assert {row.partition: list(row.ids) for row in rows} == by_partition
        assert len(rows) == 7
        assert len({row.task for row in rows}) == expected
        if result is read:
            assert [row.partition for row in rows] == list(range(7))


def test_spark_says_how_many_cores_it_has(spark: SparkSession) -> None:
    assert cores(spark) == spark.sparkContext.defaultParallelism == 2


def test_several_exchanges_in_one_pipeline_keep_only_the_last_dataset(
    client: ShuffleClient, events: DataFrame
) -> None:
    def count(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return pa.table({"k": [keys[0].as_py()], "n": [table.num_rows]})

    def by_count(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return pa.table({"n": [keys[0].as_py()], "keys": [table.num_rows]})

    out = (
        client.pipeline(events)
        .mapInArrow(same, events.schema)
        .repartition(5, "k")
        .groupBy("k")
        .applyInArrow(count, "k int, n long")
        .repartition(3, "n")
        .groupBy("n")
        .applyInArrow(by_count, "n long, keys long")
        .toDF()
    )
    expected = events.groupBy("k").count().groupBy("count").count().collect()
    assert sorted((row.n, row["keys"]) for row in out.collect()) == sorted(
        (row[0], row[1]) for row in expected
    )
    assert len(client.datasets("exchange/")) == 1
    client.release(out)
    assert client.datasets("exchange/") == []


def test_groups_of_a_changed_key_are_refused_and_of_an_unchanged_one_are_whole(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def halves(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.set_column(0, "k", pc.divide(batch.column("k"), 2))

    def count(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return pa.table({"k": [str(keys[0])], "n": [table.num_rows]})

    df = spark.range(0, 1000, 1, 4).selectExpr("if(id % 50 = 0, null, id % 50) as k", "id")
    placed = client.pipeline(df).mapInArrow(same, df.schema).repartition(7, "k")
    whole = (
        placed.mapInArrow(same, "k int, id long").groupBy("k").applyInArrow(count, "k string, n long").toDF()
    )
    assert [row.n for row in whole.collect()] == [20] * 50
    split = placed.mapInArrow(halves, df.schema).groupBy("k").applyInArrow(count, "k string, n long").toDF()
    with pytest.raises(
        Exception, match=r"stage . \(applyInArrow count\).*'k' = .*repartition\(7, 'k'\) places it"
    ):
        split.collect()


def test_a_pipeline_without_an_exchange_is_one_pass(client: ShuffleClient, spark: SparkSession) -> None:
    out = client.pipeline(spark.range(10)).mapInArrow(same, "id long").mapInArrow(same, "id long").toDF()
    assert sorted(row.id for row in out.collect()) == list(range(10))
    df = spark.range(3)
    assert client.pipeline(df).toDF() is df


@pytest.mark.parametrize("partitions", [0, 2])
def test_no_rows_stay_no_rows(client: ShuffleClient, spark: SparkSession, partitions: int) -> None:
    df = spark.range(10).where("false") if partitions else spark.createDataFrame([], "id long")
    out = (
        client.pipeline(df)
        .repartition(3, "id")
        .groupBy("id")
        .applyInArrow(lambda table: table, "id long")
        .toDF()
    )
    assert out.collect() == []
    assert out.schema.simpleString() == "struct<id:bigint>"


def test_large_var_types_are_sparks_choice_and_kept(client: ShuffleClient, spark: SparkSession) -> None:
    def types(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pa.record_batch({"s": pa.array([str(batch.schema.field("s").type)], pa.large_string())})

    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        df = spark.range(10).selectExpr("concat('a', id) as s")
        out = client.pipeline(df).repartition(2, "s").mapInArrow(types, "s string").toDF()
        assert {row.s for row in out.collect()} == {"large_string"}
        assert placed(client.pipeline(df.selectExpr("s as id")).repartition(3, "id").toDF()) == placed(
            df.selectExpr("s as id").repartition(3, "id")
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_a_result_outlives_the_client_object_that_made_it(spark: SparkSession) -> None:
    def build() -> tuple[DataFrame, Any]:
        client = ShuffleClient.embedded()
        return client.pipeline(spark.range(100)).repartition(3, "id").toDF(), client._owned()

    out, owner = build()
    gc.collect()
    assert out.count() == 100
    server = owner.loop._host
    owner.close()
    server.close()


def test_columns_may_have_any_names(client: ShuffleClient, spark: SparkSession) -> None:
    df = spark.range(20).selectExpr("string(id) as id", "id % 3 as `a b/ü`")
    out = client.pipeline(df).repartition(4, "a b/ü", "ID").toDF()
    assert out.columns == df.columns
    assert placed(out) == placed(df.repartition(4, "a b/ü", "ID"))
