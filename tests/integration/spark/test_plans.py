"""What a run reads and keeps: partitions in pieces, persisted exchanges, results with an end, names and statistics."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException

from flight_server.protocol import InvalidRequest
from spark_client import ShuffleClient
from spark_client.jobs import shares
from spark_client.pipeline import execution
from tests.support.spark_status import jobs, status_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_client.pipeline import Pipeline

pytestmark = pytest.mark.spark
SEEN = "id long, k long, partition int, call long"


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small frames, and pieces of a few, so that little data is much."""
    monkeypatch.setattr(shares, "TASK_BYTES", 200_000)
    monkeypatch.setattr(shares, "TASK_BYTES", 200_000)
    monkeypatch.setattr(execution, "WRITE_BUDGET_BYTES", 1 << 20)


def skewed_rows(spark: SparkSession) -> DataFrame:
    """200,000 rows, of which all but 1,000 have the key 0."""
    return spark.range(0, 200_000, 1, 4).selectExpr("id", "if(id % 200 = 0, id % 1600, 0) as k")


def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each row, with the number of its partition and a number of this call."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition, call = context.partitionId(), int(np.random.default_rng().integers(1 << 60))
    for batch in batches:
        rows = batch.num_rows
        yield pa.record_batch(
            [
                *batch.columns[:2],
                pa.array([partition] * rows, pa.int32()),
                pa.array([call] * rows, pa.int64()),
            ],
            names=["id", "k", "partition", "call"],
        )


def calls(table: pa.Table) -> dict[int, int]:
    """How many calls saw rows of each partition."""
    found: dict[int, set[int]] = {}
    for partition, call in zip(table["partition"].to_pylist(), table["call"].to_pylist(), strict=True):
        found.setdefault(partition, set()).add(call)
    return {partition: len(each) for partition, each in found.items()}


def ids(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


@pytest.mark.usefixtures("small_tasks")
def test_a_large_partition_is_read_in_pieces_that_have_its_number_and_each_row_once(
    spark: SparkSession, client: ShuffleClient
) -> None:
    exchanged = client.pipeline(skewed_rows(spark)).repartition(8, "k", split=True)
    pipeline = exchanged.mapInArrow(seen, SEEN)
    table = pipeline.toArrow()
    assert ids(table) == list(range(200_000))
    found = calls(table)
    large = max(found, key=lambda partition: found[partition])
    assert found[large] > 3
    assert all(count == 1 for partition, count in found.items() if partition != large)
    # The order of the partitions and of each one's rows is that of an uncut run.
    whole = client.pipeline(skewed_rows(spark)).repartition(8, "k")
    uncut = whole.mapInArrow(seen, SEEN).toArrow()
    assert set(calls(uncut).values()) == {1}
    assert table["partition"].to_pylist() == uncut["partition"].to_pylist()
    first, last = pipeline.statistics().exchanges
    assert (first.cut_partitions, first.rows, last.rows) == (1, 200_000, 200_000)
    assert first.skew > 4
    assert last.pieces > 8
    assert first.reading_tasks == last.tasks
    # Groups need a whole partition, and so does Spark's own number of partitions.
    groups = exchanged.groupBy("k").applyInArrow(lambda group: group.slice(0, 1), "id long, k long").toArrow()
    assert sorted(groups["k"].to_pylist()) == [0, 200, 400, 600, 800, 1000, 1200, 1400]
    with client.scope():
        df = exchanged.toDF()
        assert df.rdd.getNumPartitions() == 8


@pytest.mark.usefixtures("small_tasks")
def test_a_function_sees_all_rows_of_a_key_in_one_call_where_cutting_was_not_asked_for(
    spark: SparkSession, client: ShuffleClient
) -> None:
    rows = client.pipeline(skewed_rows(spark))
    keyed = rows.repartition(8, "k")
    ranged = rows.repartitionByRange("k", boundaries=[400, 800])
    joined = keyed.join(client.pipeline(spark.range(0, 1600, 200).selectExpr("id as k")), on="k", how="left")
    for pipeline in (keyed, ranged, joined, keyed.filter(pc.field("id") >= 0)):
        table = pipeline.mapInArrow(seen, SEEN).toArrow()
        assert len(table) == 200_000
        assert set(calls(table).values()) == {1}
    # Where only steps of Arrow follow, no call sees the cut.
    counts = keyed.filter(pc.field("id") >= 0).repartition(2)
    assert len(counts.toArrow()) == 200_000
    assert counts.statistics().exchanges[0].cut_partitions == 1


@pytest.mark.usefixtures("small_tasks")
def test_a_large_side_of_a_join_is_cut_and_the_other_read_by_each_piece(
    spark: SparkSession, client: ShuffleClient
) -> None:
    left = client.pipeline(skewed_rows(spark)).repartition(8, "k", split=True)
    right = client.pipeline(spark.range(0, 1600, 200).selectExpr("id as k", "id * 2 as v")).repartition(
        8, "k"
    )
    joined = left.join(right, on="k").mapInArrow(seen, SEEN)
    table = joined.toArrow()
    assert len(table) == 200_000
    assert max(calls(table).values()) > 3
    assert [each.cut_partitions for each in joined.statistics().exchanges] == [1, 0, 0]
    full = left.join(right, on="k", how="full").mapInArrow(seen, SEEN).toArrow()
    assert set(calls(full).values()) == {1}


def counted(spark: SparkSession, client: ShuffleClient) -> tuple[Pipeline, Any]:
    """An exchange of 100 rows, and how many rows its stage has seen over all runs."""
    total = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            total.add(batch.num_rows)
            yield batch

    pipeline = client.pipeline(spark.range(100).selectExpr("id", "id % 3 as k"))
    return pipeline.mapInArrow(count, "id long, k long").repartition(4, "k"), total


def test_a_persisted_exchange_runs_once_for_all_plans_and_threads_until_it_is_unpersisted(
    spark: SparkSession, client: ShuffleClient
) -> None:
    exchanged, total = counted(spark, client)
    before = exchanged.mapInArrow(seen, SEEN)
    assert exchanged.persist() is exchanged
    results: list[list[int]] = []
    pipelines = [exchanged, before, exchanged.mapInArrow(lambda batches: batches, "id long, k long")]
    threads = [
        threading.Thread(target=lambda each=each: results.append(ids(each.toArrow()))) for each in pipelines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(100))] * 3
    assert total.value == 100
    assert len(client.datasets()) == 1
    df = exchanged.toDF()
    with client.scope():
        other = before.toDF()
        assert (df.count(), other.count()) == (100, 100)
    client.release(df)
    assert df.count() == 100
    assert [each.is_reused for each in before.statistics().exchanges] == [True]
    # One that the server has lost is written again.
    client.drop(client.datasets()[0].name)
    assert ids(before.toArrow()) == list(range(100))
    assert total.value == 200
    assert exchanged.unpersist().unpersist() is exchanged
    assert client.datasets() == []
    assert ids(exchanged.toArrow()) == list(range(100))
    assert total.value == 300
    with pytest.raises(InvalidRequest, match=r"persist: .* has no exchange"):
        client.pipeline(spark.range(1)).persist()


def test_what_is_persisted_in_a_scope_ends_with_it(spark: SparkSession, client: ShuffleClient) -> None:
    exchanged, total = counted(spark, client)
    second = (
        exchanged.persist().mapInArrow(lambda batches: batches, "id long, k long").repartition(2).persist()
    )
    with client.scope():
        assert len(second.toArrow()) == 100
        assert len(client.datasets()) == 2
        assert len(second.toArrow()) == 100
    assert client.datasets() == []
    assert len(second.toArrow()) == 100
    assert total.value == 200
    second.unpersist()
    exchanged.unpersist()


def test_both_sides_of_a_join_run_in_one_job_and_one_that_fails_leaves_nothing(
    spark: SparkSession, client: ShuffleClient
) -> None:
    left, total = counted(spark, client)
    right = client.pipeline(spark.range(0, 3, 1, 3).selectExpr("id as k", "id * 2 as v")).repartition(4, "k")
    before = jobs(spark)
    joined = left.join(right, on="k")
    with client.scope():
        df = joined.toDF()
        assert jobs(spark) - before == 1
        assert sorted(row.v for row in df.collect()) == [0] * 34 + [2] * 33 + [4] * 33
    assert total.value == 100
    assert [(each.rows, each.tasks) for each in joined.statistics().exchanges] == [(100, 2), (3, 3)]

    # One side of a union is made of the other: two jobs, one after the other.
    second = left.mapInArrow(lambda batches: batches, "id long, k long").repartition(2)
    before = jobs(spark)
    with client.scope():
        df = left.union(second).toDF()
        assert jobs(spark) - before == 2
        assert df.count() == 200

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ZeroDivisionError("this side")
        yield from batches

    wrong = (
        client.pipeline(spark.range(3).withColumnRenamed("id", "k"))
        .mapInArrow(fails, "k long")
        .repartition(4, "k")
    )
    with pytest.raises(PySparkException, match="this side"):
        left.join(wrong, on="k").toDF()
    assert client.datasets() == []


def test_a_result_ends_with_its_scope_and_has_statistics(
    spark: SparkSession, client: ShuffleClient, caplog: pytest.LogCaptureFixture
) -> None:
    exchanged, _ = counted(spark, client)
    with pytest.raises(InvalidRequest, match="this pipeline has not run"):
        exchanged.statistics()
    with client.scope():
        with caplog.at_level(logging.INFO, "spark_client.pipeline"):
            df = exchanged.toDF()
        assert df.count() == 100
    assert client.datasets() == []
    statistics = exchanged.statistics()
    (found,) = statistics.exchanges
    assert (found.rows, found.partitions, found.tasks) == (100, 4, 2)
    assert found.size_bytes == statistics.size_bytes > 0
    assert found.exchange == "repartition(4, 'k')"
    assert 0 < found.job_seconds <= statistics.seconds
    (line,) = caplog.messages
    assert line.startswith(
        "DataFrame → stage 1 (mapInArrow count) → repartition(4, 'k'): 1 exchange, 100 rows"
    )
    with pytest.raises(ZeroDivisionError), client.scope():
        _ = exchanged.toDF().count() // 0
    assert client.datasets() == []


def test_explain_shows_the_plan_and_what_ran(
    spark: SparkSession, client: ShuffleClient, capsys: pytest.CaptureFixture[str]
) -> None:
    exchanged, _ = counted(spark, client)
    other = client.pipeline(spark.range(10).withColumnRenamed("id", "k")).repartition(4, "k", name="few")
    joined = exchanged.join(other, on="k", how="left").mapInArrow(seen, SEEN)
    both = joined.union(joined)
    both.explain()
    before = capsys.readouterr().out.splitlines()
    assert before[0] == "union"
    assert before[1].startswith("├─ stage 3 (mapInArrow seen)")
    assert "│  ├─ repartition(4, 'k') #1: by the hash of 'k'" in before
    assert "│  └─ repartition(4, 'k', name='few') #2: by the hash of 'k'" in before
    assert "   ├─ repartition(4, 'k') #1, see above" in before
    assert not any("partitions, " in line for line in before)
    assert len(both.toArrow()) == 200
    both.explain()
    after = capsys.readouterr().out
    assert "4 partitions, 100 rows, " in after
    assert "(skew " in after
    assert after.splitlines()[-1].startswith("3 exchanges, 310 rows, ")


def test_explain_tells_partial_from_final(
    spark: SparkSession, client: ShuffleClient, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = client.pipeline(spark.range(100)).groupBy("id", numPartitions=200).agg({"id": "sum"})
    with client.scope():
        pipeline.toDF()
        pipeline.explain()
    after = capsys.readouterr().out
    assert re.search(r"(?m)^stage 1 \(agg\), partial$", after)
    assert re.search(
        r"(?m)^    200 partitions, 100 rows, .* \(skew [1-9][0-9.]*\), [0-9]+ without rows$", after
    )


def test_a_name_is_in_the_dataset_and_in_sparks_job(spark: SparkSession, client: ShuffleClient) -> None:
    context: Any = spark.sparkContext
    context.setJobDescription("mine")
    try:
        named = client.pipeline(spark.range(10)).repartition(2, name="a b: ../é")
        with client.scope():
            df = named.toDF()
            df.collect()
    finally:
        assert context.getLocalProperty("spark.job.description") == "mine"
        context.setLocalProperty("spark.job.description", None)
    (found,) = named.statistics().exchanges
    assert found.dataset.startswith("exchange/a-b-----/")
    assert found.name == "a b: ../é"
    listed = status_of(spark).jobsList(None)
    described = [listed.apply(number).description() for number in range(listed.size())]
    assert [each.get() for each in described if each.isDefined()][:2] == ["mine", "a b: ../é"]
    for wrong in ("", "x" * 101, "a\nb"):
        with pytest.raises(InvalidRequest, match="name is 1 to 100 printable"):
            named.repartition(2, name=wrong)
