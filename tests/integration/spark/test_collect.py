"""Results that the driver reads from the server: in Spark's order, of accepted attempts, and nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.errors import PySparkException

from flight_server.protocol.errors import InvalidRequest, NotFound
from spark_client import Reading, ShuffleClient
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spark_status import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ShuffleClient]:
    with ShuffleClient(server.location, reading=Reading(budget_bytes=1 << 20)) as found:
        yield found
    with ShuffleClient(server.location) as after:
        assert after.datasets() == []


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def test_rows_come_in_the_order_of_sparks_partitions(client: ShuffleClient, spark: SparkSession) -> None:
    found = client.collect(spark.range(0, 10_000, 1, 7)).read_all()
    assert found["id"].to_pylist() == list(range(10_000))
    descending = spark.range(0, 1000, 1, 3).orderBy("id", ascending=False)
    assert client.collect(descending).read_all()["id"].to_pylist() == list(range(999, -1, -1))


def test_a_result_may_be_larger_than_what_spark_gives_to_the_driver(
    client: ShuffleClient, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    text = "array_join(transform(sequence(1, 8), n -> sha2(concat(id, '/', n), 512)), '') as text"
    df = spark.range(0, 10_000, 1, 4).selectExpr("id", text)
    settings: Any = spark.sparkContext._jsc.sc().conf()
    settings.set("spark.driver.maxResultSize", "1m")  # as each job finds it
    request.addfinalizer(lambda: settings.remove("spark.driver.maxResultSize"))
    with pytest.raises(Exception, match="maxResultSize"):
        df.collect()
    rows = size_bytes = 0
    for batch in client.collect(df):
        assert batch["id"][0].as_py() == rows
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
    assert rows == 10_000
    assert size_bytes > 10_000_000


def test_a_pipeline_is_collected_without_a_data_frame(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    def total(table: pa.Table) -> pa.Table:
        return pa.table({"k": table["k"][:1], "n": [table.num_rows]})

    pq.write_table(pa.table({"k": [number % 5 for number in range(1000)]}), tmp_path / "x.parquet")
    scan = client.scan(tmp_path, spark=spark)
    assert client.collect(scan).read_all()["k"].to_pylist() == [number % 5 for number in range(1000)]
    counted = (
        scan.mapInArrow(same, "k long").repartition(3, "k").groupBy("k").applyInArrow(total, "k long, n long")
    )
    assert client.collect(counted).schema == pa.schema([("k", pa.int64()), ("n", pa.int64())])
    expected = [row.asDict() for row in counted.toDF().collect()]
    assert client.collect(counted).read_all().to_pylist() == expected
    assert sorted(row["k"] for row in expected) == [0, 1, 2, 3, 4]


def test_what_an_exchange_wrote_is_read_without_another_job(
    client: ShuffleClient, spark: SparkSession
) -> None:
    rows = spark.range(0, 3000, 1, 2).selectExpr("id", "repeat(sha2(cast(id as string), 256), 2) as text")
    pipeline = client.pipeline(rows).repartition(40, "id", tasks=1)
    df = pipeline.toDF()
    in_order = df.select("id").toArrow()["id"].to_pylist()
    before = jobs(spark)
    assert client.collect(pipeline).read_all()["id"].to_pylist() == in_order
    assert jobs(spark) == before + 1
    assert len(client.datasets()) == 1
    found = client.collect(df).read_all()
    assert found["id"].to_pylist() == in_order
    assert sum(batch.num_rows for batch in client.collect(df)) == 3000
    assert jobs(spark) == before + 1
    assert found.schema == client.collect(df.select("*")).schema
    client.release(df)
    with pytest.raises(PySparkException, match="what this DataFrame reads is gone"):
        client.collect(df)


def test_two_readers_of_one_frame_do_not_end_each_other(client: ShuffleClient, spark: SparkSession) -> None:
    df = client.pipeline(spark.range(0, 100_000, 1, 1)).repartition(20, "id", tasks=1).toDF()
    first, second = client.collect(df), client.collect(df)
    assert first.read_next_batch().num_rows > 0
    del first
    gc.collect()
    assert sum(batch.num_rows for batch in second) == 100_000
    assert df.count() == 100_000
    client.release(df)


def test_stages_after_the_last_exchange_run_before_the_driver_reads(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def doubled(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"id": [2 * id_.as_py() for id_ in batch["id"]]})

    exchanged = client.pipeline(spark.range(0, 100, 1, 1)).repartition(3, "id", tasks=1)
    pipeline = exchanged.mapInArrow(doubled, "id long")
    df = pipeline.toDF()
    expected = df.toArrow()["id"].to_pylist()
    assert client.collect(pipeline).read_all()["id"].to_pylist() == expected
    assert client.collect(df).read_all()["id"].to_pylist() == expected
    assert sorted(expected) == list(range(0, 200, 2))
    client.release(df)


def test_an_empty_result_has_its_schema(client: ShuffleClient, spark: SparkSession) -> None:
    found = client.collect(spark.range(10).where("id > 10")).read_all()
    assert found.schema.names == ["id"]
    assert found.num_rows == 0


def test_a_job_that_fails_raises_and_leaves_nothing(client: ShuffleClient, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        client.collect(spark.range(10).selectExpr("id / (id - 5) as x"))
    assert client.datasets() == []


def test_the_last_batch_drops_the_result(client: ShuffleClient, spark: SparkSession) -> None:
    reader = client.collect(spark.range(10))
    assert len(client.datasets()) == 1
    assert sum(batch.num_rows for batch in reader) == 10
    assert client.datasets() == []


def test_a_reader_that_is_given_up_drops_its_result(client: ShuffleClient, spark: SparkSession) -> None:
    big = spark.range(0, 500_000, 1, 2).selectExpr("id", "repeat('x', 100) as text")
    reader = client.collect(big)
    unread = client.collect(spark.range(3))
    assert reader.read_next_batch().num_rows > 0
    assert len(client.datasets()) == 2
    del reader, unread
    gc.collect()
    eventually(lambda: len(client.datasets()), 0)


def test_a_scope_drops_a_result_that_was_not_read_to_its_end(
    client: ShuffleClient, spark: SparkSession
) -> None:
    with client.scope():
        reader = client.collect(spark.range(10))
        assert len(client.datasets()) == 1
    assert client.datasets() == []
    with pytest.raises(
        NotFound, match="what this reader reads is gone: it was released, or its client closed"
    ):
        reader.read_all()


def test_something_else_is_refused(client: ShuffleClient) -> None:
    with pytest.raises(InvalidRequest, match="not a DataFrame of Spark"):
        client.collect([1])  # type: ignore[arg-type]  # what the test is about


def test_a_path_or_a_pipeline_for_a_frame_is_refused_with_what_makes_one(
    client: ShuffleClient, spark: SparkSession
) -> None:
    pipeline: Any = client.pipeline
    with pytest.raises(
        InvalidRequest, match=r"is builtins\.str, not .*; ShuffleClient\.scan\('/lake/events'\)"
    ):
        pipeline("/lake/events")
    with pytest.raises(InvalidRequest, match=r"its toDF\(\)"):
        pipeline(client.pipeline(spark.range(1)))
