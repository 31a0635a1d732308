"""Exchanges whose tasks fail: accepted attempts only, nothing left over, and the server's own words."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flight_server.protocol.errors import FlightShuffleError
from spark_client import ShuffleClient
from spark_client.connection import RemoteServer
from tests.support.failing_tasks import first_time
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
# Each task may fail once, so that Spark tries again.
TASKS = 8
LEASE_SECONDS = 6.0
SPARK_SETTINGS = {"master": "local[2, 2]"}


# Attempts.


@pytest.mark.parametrize(("how", "then"), [("raise", "collect"), ("kill", "exchange")])
def test_a_reading_task_that_fails_between_two_of_its_partitions_gives_the_rows_of_each_once(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, how: str, then: str
) -> None:
    def fails_at_its_third(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        (tmp_path / f"{context.taskAttemptId()} read {context.partitionId()}").touch()
        for batch in batches:
            yield batch
            if context.partitionId() == 2 and first_time(tmp_path / "failed"):
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("first try")

    pipeline = client.pipeline(spark.range(0, 3000, 1, 3)).repartition(5, "id", tasks=1)
    pipeline = pipeline.mapInArrow(fails_at_its_third, "id long")
    rows = (pipeline if then == "collect" else pipeline.repartition(2, "id")).toDF().collect()
    assert sorted(row.id for row in rows) == list(range(3000))
    reads = sorted(path.name.split(" read ")[1] for path in tmp_path.glob("* read *"))
    assert reads == sorted("01201234"), "the second try reads all of the task's partitions again"


def test_a_function_that_reads_none_or_part_of_its_rows_holds_back_no_other_partition(
    client: ShuffleClient, spark: SparkSession
) -> None:
    def some(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() % 3:
            yield next(batches).slice(0, 1)

    df = spark.range(0, 400_000, 1, 2).selectExpr("id", "repeat('x', 100) as s")
    out = client.pipeline(df).repartition(9, "id", tasks=1).mapInArrow(some, df.schema).toDF()
    assert out.count() == 6


def test_a_stage_that_is_run_again_counts_once(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    """The files of the stage before are lost while tasks run, so that Spark runs both stages again."""
    deleted, runs = tmp_path / "deleted", tmp_path / "runs"
    runs.mkdir()

    def lose_shuffle_files(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        (runs / f"{context.partitionId()}-{context.taskAttemptId()}").touch()
        yield from batches
        # Whichever has its rows first; the other slot is held until the files are gone, so that the tasks
        # which have not begun by then find nothing.
        if first_time(tmp_path / "deleting"):
            for local_dir in os.environ["SPARK_LOCAL_DIRS"].split(","):
                for path in Path(local_dir).rglob("shuffle_*.data"):
                    path.unlink(missing_ok=True)
            deleted.touch()
        while not deleted.exists():
            time.sleep(0.01)

    df = spark.range(0, 4000, 1, 4).repartition(6, "id")
    out = client.pipeline(df).mapInArrow(lose_shuffle_files, "id long").repartition(3, "id").toDF()
    assert sorted(row.id for row in out.collect()) == list(range(4000))
    assert len(list(runs.iterdir())) > 6, "no task was run again"


def test_a_task_may_compute_for_one_batch_for_longer_than_a_server_waits_for_a_put(
    spark: SparkSession, tmp_path: Path
) -> None:
    computed = tmp_path / "computed"

    def computes(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        (tmp_path / f"attempt-{context.taskAttemptId()}").touch()
        for batch in batches:
            yield from [batch] * 50
            while not computed.exists():
                time.sleep(0.01)

    with (
        ServerProcess.start(http_port=0, put_idle_seconds=1) as server,
        ShuffleClient(server.location, lease_seconds=LEASE_SECONDS) as client,
        closing(RemoteServer(server.location)) as remote,
        ThreadPoolExecutor() as threads,
    ):

        def held_by_the_driver() -> int:
            """The puts that are silent for longer than the lease with which they began."""
            waits = [each for each in remote.action("why")["waits"] if each["waiting_for"] == "writer"]
            return sum(each["deadline_seconds"] > 2 * LEASE_SECONDS for each in waits)

        rows = spark.range(0, 40_000, 1, 2).selectExpr("id", "repeat('x', 100) AS s")
        pipeline = client.pipeline(rows).mapInArrow(computes, rows.schema).repartition(2, "id")
        running = threads.submit(lambda: pipeline.toDF().count())
        try:
            eventually(held_by_the_driver, 2)
        finally:
            computed.touch()
        assert running.result() == 50 * 40_000
        assert len(list(tmp_path.glob("attempt-*"))) == 2, "no task was tried again"


# Errors.


def test_a_server_that_is_not_there_is_an_error_before_any_job(spark: SparkSession) -> None:
    with ShuffleClient("grpc://127.0.0.1:1") as nowhere:
        pipeline = nowhere.pipeline(spark.range(10)).repartition(2, "id")
        with pytest.raises(FlightShuffleError, match=r"127\.0\.0\.1:1"):
            pipeline.toDF()


def test_a_server_that_is_restarted_in_mid_job_is_a_clear_error_and_serves_the_next_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        (tmp_path / f"attempt-{context.taskAttemptId()}").touch()
        for batch in batches:
            yield from [batch] * 50
            (tmp_path / "begun").touch()
            while not (tmp_path / "restarted").exists():
                time.sleep(0.01)

    server = ServerProcess.start(http_port=0)
    with ShuffleClient(server.location) as client:
        # More tasks than cores: the last ones begin after the restart.
        pipeline = client.pipeline(spark.range(0, 4000, 1, 4)).repartition(TASKS, "id", tasks=TASKS)
        pipeline = pipeline.mapInArrow(waits, "id long")
        with ThreadPoolExecutor() as threads:
            running = threads.submit(lambda: pipeline.toDF().collect())
            eventually((tmp_path / "begun").exists, True)
            again = server.restart()
            (tmp_path / "restarted").touch()
            error = running.exception()
        try:
            assert "a server that is gone, or was started again; run the pipeline again" in str(error), str(
                error
            )
            assert "exchange/" in str(error)
            assert 1 <= len(list(tmp_path.glob("attempt-*"))) <= 4 * TASKS, "four tries of each task"
            out = client.pipeline(spark.range(1000)).repartition(3, "id").toDF()
            assert sorted(row.id for row in out.collect()) == list(range(1000))
            client.release(out)
            assert client.datasets() == []
        finally:
            again.terminate()
            again.close()
