"""Jobs whose tasks read no rows of Spark's make no query, and are otherwise as if they did."""

from __future__ import annotations

import importlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PythonException

from spark_client import ShuffleClient
from spark_client.jobs import runner
from tests.support.polling import DEADLINE_SECONDS, eventually
from tests.support.spark_status import queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_client.pipeline import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
ROWS = 40
TAGS = "spark.job.tags"
Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbered")
    for part in range(2):
        pq.write_table(pa.table({"k": [*range(part, ROWS, 2)]}), folder / f"{part}.parquet")
    return folder


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def keys(client: ShuffleClient, scan: Pipeline, function: Stage = same) -> list[int]:
    exchanged = scan.mapInArrow(function, "k long").repartition(3, "k")
    return sorted(client.collect(exchanged).read_all()["k"].to_pylist())


def test_no_query_is_made(spark: SparkSession, client: ShuffleClient, folder: Path) -> None:
    before = queries(spark)
    assert keys(client, client.scan(folder, spark=spark)) == [*range(ROWS)]
    assert queries(spark) == before


def test_several_inputs_of_a_job_have_their_own_rows(
    spark: SparkSession, client: ShuffleClient, folder: Path
) -> None:
    scans = [client.scan(folder, spark=spark).mapInArrow(same, "k long") for _ in range(3)]
    before = queries(spark)
    assert keys(client, scans[0].union(scans[1]).union(scans[2])) == sorted([*range(ROWS)] * 3)
    with client.scope():
        held = client.pipeline(spark.range(ROWS).selectExpr("id as k")).repartition(2, "k").toDF()
        assert queries(spark) == before + 1
        beside = client.pipeline(held)
        assert keys(client, scans[0].union(beside)) == sorted([*range(ROWS)] * 2)
        assert queries(spark) > before + 1


def test_workers_have_the_environment_of_those_of_queries(
    spark: SparkSession, client: ShuffleClient, folder: Path
) -> None:
    def environment(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Of the daemon that has forked the worker: other functions have another one.
        own = "PYTHON_WORKER_FACTORY_SECRET"
        variables = str(sorted((name, value) for name, value in os.environ.items() if name != own))
        for batch in batches:
            yield pa.record_batch([batch["k"], [variables] * batch.num_rows], names=["k", "variables"])

    before = queries(spark)
    exchanged = (
        client.scan(folder, spark=spark)
        .mapInArrow(environment, "k long, variables string")
        .repartition(2, "k")
    )
    of_tasks = {row["variables"] for row in client.collect(exchanged).read_all().to_pylist()}
    assert queries(spark) == before
    of_query = (
        spark.range(0, 2, 1, 2).selectExpr("id as k").mapInArrow(environment, "k long, variables string")
    )
    assert of_tasks == {row["variables"] for row in of_query.collect()}


def test_an_error_is_that_of_a_query(spark: SparkSession, client: ShuffleClient, folder: Path) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise ValueError("of the user")
        yield from ()

    with pytest.raises(PythonException) as caught:
        keys(client, client.scan(folder, spark=spark), fails)
    lines = str(caught.value).partition("Traceback (most recent call last):\n")[2].splitlines()
    assert "in fails" in lines[0]
    assert lines[-2] == "ValueError: of the user"


def test_a_function_may_be_larger_than_spark_sends_with_each_task(
    spark: SparkSession, client: ShuffleClient, folder: Path
) -> None:
    large = os.urandom(2 << 20)

    def holds(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert len(large) == 2 << 20
        yield from batches

    before = queries(spark)
    assert keys(client, client.scan(folder, spark=spark), holds) == [*range(ROWS)]
    assert queries(spark) == before


def test_tasks_have_what_the_session_added(
    spark: SparkSession, client: ShuffleClient, folder: Path, tmp_path: Path
) -> None:
    def importing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert importlib.import_module("numbered_module").here
        assert variable.value == 7
        yield from batches

    (tmp_path / "numbered_module.py").write_text("here = True\n")
    session = spark.newSession()
    session.addArtifacts(str(tmp_path / "numbered_module.py"), pyfile=True)
    variable = spark.sparkContext.broadcast(7)
    assert keys(client, client.scan(folder, spark=session), importing) == [*range(ROWS)]


def test_a_thread_with_tags_which_only_queries_have_makes_one(
    spark: SparkSession, client: ShuffleClient, folder: Path
) -> None:
    before = queries(spark)
    spark.addTag("of-the-user")
    try:
        assert keys(client, client.scan(folder, spark=spark)) == [*range(ROWS)]
    finally:
        spark.removeTag("of-the-user")
    assert queries(spark) > before


def test_ctrl_c_that_py4j_hides_in_an_error_runs_no_query(
    spark: SparkSession, client: ShuffleClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise Py4JError("Gateway must be connected to send cancel cmd.")  # noqa: B904  # as Py4J

    monkeypatch.setattr(runner, "numbers_rdd", interrupted)
    before = queries(spark)
    with pytest.raises(KeyboardInterrupt):
        keys(client, client.scan(folder, spark=spark))
    assert queries(spark) == before


@pytest.mark.parametrize("name", runner._OF_QUERIES[1:2])
def test_a_session_that_asks_more_of_the_workers_of_queries_makes_one(
    spark: SparkSession, client: ShuffleClient, folder: Path, name: str
) -> None:
    session = spark.newSession()
    session.conf.set(name, "true")
    before = queries(spark)
    assert keys(client, client.scan(folder, spark=session)) == [*range(ROWS)]
    assert queries(spark) > before


@pytest.mark.parametrize("name", ["numbers_rdd"])
def test_a_platform_that_allows_no_more_makes_a_query(
    spark: SparkSession, client: ShuffleClient, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("the constructor is not allowed")

    monkeypatch.setattr(runner, name, refused)
    before = queries(spark)
    assert keys(client, client.scan(folder, spark=spark)) == [*range(ROWS)]
    assert queries(spark) > before


@pytest.mark.parametrize("given", ["of-another"])
def test_interrupting_all_cancels_the_job_whose_tags_end_with_it(
    spark: SparkSession, client: ShuffleClient, folder: Path, tmp_path: Path, given: str | None
) -> None:
    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / uuid.uuid4().hex).touch()
        time.sleep(DEADLINE_SECONDS)
        yield from batches

    def interrupt() -> None:
        eventually(lambda: any(tmp_path.iterdir()), expected=True)
        spark.interruptAll()

    context: Any = spark.sparkContext
    context.setLocalProperty(TAGS, given)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(Exception, match=r"(?i)cancelled"):
            keys(client, client.scan(folder, spark=spark), waits)
        assert context.getLocalProperty(TAGS) == given
    finally:
        thread.join()
        context.setLocalProperty(TAGS, None)
