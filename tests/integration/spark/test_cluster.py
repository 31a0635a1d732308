"""The same on a real standalone cluster of two workers, where tasks are speculated and executors die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from spark_client import FlightDataSource, ShuffleClient
from tests.support.polling import eventually
from tests.support.server_holdings import held
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import QUANTILE
from tests.support.spark_source import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"master": "cluster"}

PATIENCE_SECONDS = 90


@pytest.fixture
def client() -> Iterator[ShuffleClient]:
    server = ServerProcess.start(http_port=0)
    with ShuffleClient(server.location) as found:
        before = held(found)
        yield found
    with ShuffleClient(server.location) as after:
        for name in {dataset.name for dataset in after.datasets()}:
            assert not name.startswith("exchange/"), "a closed client leaves no exchange"
            after.drop(name)
        eventually(lambda: held(after), before)
    server.terminate()
    server.close()


def executor() -> int:
    """The process id of the JVM that this task's Python belongs to."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            path.with_name("gave-up").touch()
            raise TimeoutError(f"{path.name} did not come")
        time.sleep(0.02)


@pytest.fixture
def speculating(spark: SparkSession) -> Iterator[None]:
    settings: Any = spark.sparkContext._jsc.sc().conf()
    before = settings.get(QUANTILE)
    settings.set(QUANTILE, "0.5")
    yield
    settings.set(QUANTILE, before)


@pytest.mark.usefixtures("speculating")
@pytest.mark.parametrize(
    "side",
    ["map", *(pytest.param(each, marks=pytest.mark.long) for each in ("result", "files", "data source"))],
)
def test_of_speculated_attempts_one_counts(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, side: str
) -> None:
    def slow_at_first(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        # A reading task comes here once for each of its partitions: with some of its rows given, and more to read.
        waits = context.partitionId() == (1 if side == "result" else 0)
        for batch in batches:
            yield from [batch] * 50
            if waits:
                # Neither try may end before the other has made rows: the first one may start last.
                (tmp_path / f"try-{context.attemptNumber()}").touch()
                wait_until(tmp_path / "try-0")
                wait_until(tmp_path / "try-1")

    df = spark.range(0, 400, 1, 4)
    pipeline = client.pipeline(df)
    if side == "data source":
        spark.dataSource.register(FlightDataSource)
        Tables(spark, client.location).save(df.mapInArrow(slow_at_first, "id long"), "d", "overwrite")
        rows = client.get("d").read_all()["id"].to_pylist()
    elif side == "files":
        with TemporaryDirectory() as path:
            pipeline.mapInArrow(slow_at_first, "id long").write.parquet(path)
            rows = pq.read_table(path)["id"].to_pylist()
            assert {each.name.partition("-")[0] for each in Path(path).iterdir()} == {"_SUCCESS", "part"}
    elif side == "map":
        pipeline = pipeline.mapInArrow(slow_at_first, "id long").repartition(3, "id")
        rows = [row.id for row in pipeline.toDF().collect()]
    else:
        pipeline = pipeline.repartition(6, "id", tasks=2).mapInArrow(slow_at_first, "id long")
        rows = [row.id for row in pipeline.toDF().collect()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["try-0", "try-1"]
    assert sorted(rows) == sorted([*range(400)] * 50)


@pytest.mark.long
@pytest.mark.parametrize("side", ["map", "after Spark's own shuffle", "reduce", "result"])
def test_rows_are_whole_when_an_executor_is_killed_in_mid_stream(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, side: str
) -> None:
    marker = tmp_path / "killed"

    def kills_its_executor(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                os.kill(executor(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

    df = spark.range(0, 2000, 1, 4)
    if side == "after Spark's own shuffle":
        # What the executor has shuffled is lost with it: Spark runs the stage before again, too.
        df = df.repartition(4, "id")
    pipeline = client.pipeline(df)
    if side in {"reduce", "result"}:
        pipeline = pipeline.repartition(4, "id", tasks=2).mapInArrow(kills_its_executor, "id long")
    else:
        pipeline = pipeline.mapInArrow(kills_its_executor, "id long").repartition(4, "id")
    if side == "reduce":
        pipeline = pipeline.repartition(2, "id")
    assert sorted(row.id for row in pipeline.toDF().collect()) == list(range(2000))
    assert marker.exists()
