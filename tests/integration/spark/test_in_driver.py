"""Small jobs that the driver runs: their rows are those of tasks and of Spark, no function of a user's is among them,
and they end as jobs do.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from spark_client import Reading, ShuffleClient, Writing
from spark_client.jobs import tasks
from spark_client.pipeline import in_driver
from tests.support.server_process import ServerProcess
from tests.support.spark_status import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_client.pipeline import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
LEFT = pa.table({"k": pa.array([*range(40), None, 7], pa.int64()), "v": np.arange(42.0), "s": ["ab"] * 42})
RIGHT = pa.table({"k": pa.array([*range(20, 60), None, 25], pa.int64()), "w": np.arange(42)})


RowsByTasks = Callable[[str], pa.Table]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    pq.write_table(LEFT, folder / "left.parquet")
    pq.write_table(RIGHT, folder / "right.parquet")
    return folder


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ShuffleClient]:
    """A client whose driver runs what is small; in the end no exchange is left, before it is closed."""
    with ShuffleClient(server.location) as found:
        yield found
        assert found.datasets("exchange/") == []


@pytest.fixture
def by_tasks(server: ServerProcess) -> Iterator[ShuffleClient]:
    """A client whose driver runs nothing."""
    with ShuffleClient(server.location, reading=Reading(driver_bytes=0)) as found:
        yield found


@pytest.fixture(scope="module")
def rows_by_tasks(spark: SparkSession, server: ServerProcess, folder: Path) -> RowsByTasks:
    """What a plan gives where tasks run all of it."""

    @cache
    def rows(name: str) -> pa.Table:
        with ShuffleClient(server.location, reading=Reading(driver_bytes=0)) as client:
            return of(client, folder, PLANS[name]).toArrow()

    return rows


Plan = Callable[["Pipeline", "Pipeline"], "Pipeline"]


def join(how: Any, left: Pipeline, right: Pipeline) -> Pipeline:
    return left.join(right, on="k", how=how)


PLANS: dict[str, Plan] = {
    **{f"join {how}": partial(join, how) for how in ("inner", "full", "anti")},
    "join as of": lambda a, b: a.join(b, on="k", how="asof", as_of=("v", "w")),
    "select and filter": lambda a, _: a.filter(pc.field("k") > 3).select("k", d=pc.field("v") * 2),
    "aggregate": lambda a, _: a.groupBy("s").agg(total=("v", "sum"), n=("*", "count"), m=("v", "median")),
    "aggregate without keys": lambda a, _: a.agg(total=("v", "sum"), n=("*", "count")),
    "distinct": lambda a, b: a.select("k").union(b.select("k")).distinct(),
    "sort": lambda a, _: a.repartition(1).sortWithinPartitions("v desc"),
    "sort by hash": lambda a, _: a.repartition(3, "k").sortWithinPartitions("v desc").select("v", "k"),
    "top": lambda a, _: a.repartition(1).sortWithinPartitions("v desc").limit(5),
    "limit": lambda a, _: a.repartition(3, "k").limit(7),
    "union": lambda a, b: a.select("k", x="v").union(b.select("k", x="w")).repartition(2, "k"),
    "in turn": lambda a, b: a.select("k").union(b.select("k")).repartition(5).select("k"),
    "in turn twice": lambda a, _: a.repartition(4, "k").repartition(5).select("k", "v"),
    "ranges": lambda a, _: (
        a.repartitionByRange("k", boundaries=[10, 20]).sortWithinPartitions("k").select("k")
    ),
    "sampled ranges": lambda a, _: a.repartitionByRange(3, "k", seed=1).sortWithinPartitions("k").select("k"),
    "order": lambda a, _: a.orderBy("v desc").select("v", "k"),
    "top of an order": lambda a, _: a.orderBy("v desc").limit(5),
    "groups": lambda a, _: a.groupBy("k", numPartitions=3).max("v").orderBy("k"),
    "nothing": lambda a, _: a.filter(pc.field("k") > 1000).groupBy("k").agg(n=("*", "count")),
    "nothing without keys": lambda a, _: a.filter(pc.field("k") > 1000).agg(n=("*", "count")),
}


def of(client: ShuffleClient, folder: Path, plan: Plan) -> Pipeline:
    return plan(client.scan(folder / "left.parquet"), client.scan(folder / "right.parquet"))


@pytest.mark.parametrize("name", PLANS)
def test_the_driver_gives_the_rows_of_tasks_in_their_order_and_runs_no_job(
    spark: SparkSession, client: ShuffleClient, rows_by_tasks: RowsByTasks, folder: Path, name: str
) -> None:
    expected = rows_by_tasks(name)
    before = jobs(spark)
    pipeline = of(client, folder, PLANS[name])
    found = pipeline.toArrow()
    assert jobs(spark) == before
    assert found.equals(expected)
    assert all(not each.tasks and not each.reading_tasks for each in pipeline.statistics().exchanges)
    assert client.datasets("exchange/") == []
    assert pipeline.count() == expected.num_rows
    assert jobs(spark) == before


@pytest.mark.parametrize("name", ["join inner", "in turn twice", "ranges", "sampled ranges", "nothing"])
def test_exchanges_that_the_driver_wrote_have_the_same_rows_in_the_same_partitions(
    client: ShuffleClient, by_tasks: ShuffleClient, folder: Path, name: str
) -> None:
    def partitions(client: ShuffleClient) -> list[list[Any]]:
        with client.scope():
            return of(client, folder, PLANS[name]).toDF().rdd.map(tuple).glom().collect()

    assert partitions(client) == partitions(by_tasks)


def where(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield pa.record_batch({"pid": [os.getpid()] * batch.num_rows})


def test_a_users_function_runs_in_tasks_however_small_its_input_is(
    client: ShuffleClient, folder: Path
) -> None:
    def group(table: pa.Table) -> pa.Table:
        return pa.table({"pid": [os.getpid()]})

    def cogroup(left: pa.Table, right: pa.Table) -> pa.Table:
        return group(left)

    scanned = client.scan(folder / "left.parquet")
    exchanged = scanned.repartition(2, "k")
    for pipeline in (
        scanned.mapInArrow(where, "pid int"),
        exchanged.mapInArrow(where, "pid int"),
        exchanged.groupBy("k").applyInArrow(group, "pid int"),
        exchanged.groupBy("k").cogroup(exchanged.groupBy("k")).applyInArrow(cogroup, "pid int"),
        exchanged.select(pid=pc.field("k").cast(pa.int32())).union(exchanged.mapInArrow(where, "pid int")),
        exchanged.mapInArrow(where, "pid int").groupBy("pid").agg(n=("*", "count")),
        exchanged.select("k").mapInArrow(where, "pid int").repartition(1).sortWithinPartitions("pid"),
    ):
        pids = pipeline.toArrow()["pid"].to_pylist()
        assert pids
        assert os.getpid() not in pids
    first, *_ = pipeline.statistics().exchanges
    assert first.tasks == 0  # what came before the function


def test_rows_of_a_dataframe_do_not_come_through_the_driver(
    spark: SparkSession, client: ShuffleClient
) -> None:
    pipeline = client.pipeline(spark.range(10)).filter(pc.field("id") > 3).repartition(2, "id").select("id")
    assert sorted(pipeline.toArrow()["id"].to_pylist()) == [*range(4, 10)]
    (written,) = pipeline.statistics().exchanges
    assert written.tasks > 0
    assert written.reading_tasks == 0
    assert pipeline.statistics().result_seconds is not None


def test_what_is_larger_than_the_limit_is_for_tasks(
    spark: SparkSession, server: ServerProcess, folder: Path
) -> None:
    with ShuffleClient(server.location, reading=Reading(driver_bytes=70_000)) as client:
        pipeline = client.scan(folder / "left.parquet").groupBy("s").agg(n=("*", "count"))
        assert pipeline.toArrow().to_pylist() == [{"s": "ab", "n": 42}]
        assert [each.tasks for each in pipeline.statistics().exchanges] == [0]
        before = jobs(spark)
        both = of(client, folder, PLANS["distinct"])  # each file is below, but not both
        assert both.toArrow().num_rows == 61
        assert jobs(spark) > before


def test_a_result_that_is_large_though_its_input_is_small_comes_by_the_server(
    client: ShuffleClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_driver, "GATHERED_BYTES", 100)
    pipeline = client.scan(folder / "left.parquet").repartition(3, "k").select("v")
    assert sorted(pipeline.toArrow()["v"].to_pylist()) == [*np.arange(42.0)]
    assert client.datasets("exchange/") == []


def test_a_join_that_makes_many_rows_of_few_is_left_to_tasks(server: ServerProcess, tmp_path: Path) -> None:
    """Also where a later step makes few of them again."""
    pq.write_table(pa.table({"k": [1] * 1000, "v": range(1000)}), tmp_path / "x.parquet")
    with ShuffleClient(server.location, reading=Reading(driver_bytes=300_000)) as client:
        one = client.scan(tmp_path / "x.parquet")
        joined = one.join(one.select("k", w="v"), on="k", numPartitions=2)
        pipeline = joined.groupBy("w").agg(n=("*", "count"))
        rows = pipeline.toArrow()
        assert rows.num_rows == 1000
        assert {*rows["n"].to_pylist()} == {1000}
        assert any(each.tasks for each in pipeline.statistics().exchanges)
        assert client.datasets("exchange/") == []


def test_an_error_of_a_row_is_that_of_a_task(client: ShuffleClient, folder: Path) -> None:
    scanned = client.scan(folder / "left.parquet").select(x=pc.scalar(1) / pc.field("k"))
    for run in (scanned.toArrow, scanned.count, scanned.repartition(2).toArrow):
        with pytest.raises(PySparkException, match="divide by zero"):
            run()
    assert client.datasets("exchange/") == []


def test_rows_that_came_by_grpc_are_computed_with_without_a_word_of_arrow(
    spark: SparkSession, server: ServerProcess, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = Reading(lane="grpc"), Writing(lane="grpc")
    with ShuffleClient(server.location, reading=reading, writing=writing) as client:
        before = jobs(spark)
        for name in ("sort by hash", "in turn twice"):
            pipeline = (
                of(client, folder, PLANS[name]).filter(pc.field("v") >= 0).select("k", x=pc.field("v") + 1)
            )
            assert pipeline.toArrow().num_rows == 42
            groups = pipeline.groupBy("x").agg(n=("*", "count"), k=("k", "count_distinct"))
            assert sum(groups.toArrow()["n"].to_pylist()) == 42
        assert jobs(spark) == before
    assert "aligned" not in capfd.readouterr().err


def test_explain_says_where_each_step_ran(
    spark: SparkSession, client: ShuffleClient, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = (
        client.scan(folder / "left.parquet")
        .repartition(2, "k")
        .mapInArrow(lambda batches: batches, "k long, v double, s string")
        .repartition(3, "k")
        .select("k")
    )
    pipeline.toArrow()
    capsys.readouterr()
    pipeline.explain()
    lines = capsys.readouterr().out.splitlines()
    (select,) = (line for line in lines if "(select" in line)
    assert select.endswith(", in the driver")
    written = [line for line in lines if "written by" in line]
    assert "2 tasks" in written[0]
    assert "written by the driver" in written[1]
    assert any(line.endswith("in the driver") and line.startswith("scan(") for line in lines)
    (function,) = (line for line in lines if "mapInArrow" in line)
    assert not function.endswith("in the driver")
    assert "of them in the driver" in lines[-1]


def test_the_driver_sorts_rows_that_it_has_without_writing_them(
    client: ShuffleClient, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = client.scan(folder / "left.parquet").groupBy("k").agg(v=("v", "sum"))
    ordered = groups.orderBy("v desc").select("v")
    assert ordered.toArrow()["v"].to_pylist()[:3] == [48.0, 40.0, 39.0]
    (of_groups,) = ordered.statistics().exchanges
    assert "'k'" in of_groups.exchange
    capsys.readouterr()
    ordered.explain()
    lines = capsys.readouterr().out.splitlines()
    (not_written,) = (line for line in lines if "ranges of" in line)
    assert not_written.endswith("not written, because the driver has all rows")
    kept = groups.orderBy("v desc").persist()
    assert kept.toArrow().num_rows == 41
    assert len(kept.statistics().exchanges) == 2
    kept.unpersist()


def test_ctrl_c_ends_a_job_in_the_driver_and_leaves_nothing(
    client: ShuffleClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()
    put = tasks.WriteTask.write

    def slow(self: Any, destination: Any, batches: Iterator[Any], *given: Any) -> Any:
        def held() -> Iterator[Any]:
            for batch in batches:
                began.set()
                time.sleep(5)
                yield batch

        return put(self, destination, held(), *given)

    monkeypatch.setattr(tasks.WriteTask, "write", slow)

    def interrupt() -> None:
        assert began.wait(30)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.scan(folder / "left.parquet").repartition(2, "k").toArrow()
    thread.join()
    assert client.datasets("exchange/") == []
    monkeypatch.undo()
    assert client.scan(folder / "left.parquet").repartition(2, "k").count() == 42


@pytest.mark.long
def test_several_threads_run_their_jobs_in_the_driver_at_once(
    spark: SparkSession, client: ShuffleClient, rows_by_tasks: RowsByTasks, folder: Path
) -> None:
    names = [name for name in PLANS if not name.startswith("nothing")]
    expected = {name: rows_by_tasks(name) for name in names}
    before = jobs(spark)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda name: of(client, folder, PLANS[name]).toArrow(), names * 3))
    assert jobs(spark) == before
    for name, table in zip(names * 3, found, strict=True):
        assert table.equals(expected[name]), name


def test_a_persisted_exchange_that_the_driver_wrote_is_read_again(
    spark: SparkSession, client: ShuffleClient, folder: Path
) -> None:
    before = jobs(spark)
    kept = client.scan(folder / "left.parquet").groupBy("k").agg(total=("v", "sum")).persist()
    (total,) = kept.agg(total=("total", "sum")).toArrow()["total"].to_pylist()
    assert total == sum(range(42))
    again = kept.filter(pc.field("total") > 30)
    assert again.toArrow().num_rows == 11
    assert [each.is_reused for each in again.statistics().exchanges] == [True]
    assert len(client.datasets("exchange/")) == 1
    kept.unpersist()
    assert client.datasets("exchange/") == []
    assert jobs(spark) == before


@pytest.fixture
def three() -> Iterator[list[ServerProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ServerProcess.start(http_port=0)) for _ in range(3)]


def test_the_driver_writes_to_several_servers_and_again_when_one_is_lost(
    spark: SparkSession, three: list[ServerProcess], folder: Path
) -> None:
    with ShuffleClient(",".join(each.location for each in three)) as client:
        before = jobs(spark)
        joined = of(client, folder, PLANS["join inner"])
        expected = sorted(joined.toArrow()["v"].to_pylist())
        assert len(expected) == 21
        kept = client.scan(folder / "left.parquet").repartition(3, "k").persist().select("v")
        assert kept.toArrow().num_rows == 42
        assert jobs(spark) == before
        (holder,) = kept.statistics().exchanges[0].servers
        (server,) = (each for each in three if each.location == holder)
        server.kill()
        assert sorted(kept.toArrow()["v"].to_pylist()) == [*np.arange(42.0)]
        assert not kept.statistics().exchanges[0].is_reused
        assert sorted(joined.toArrow()["v"].to_pylist()) == expected
