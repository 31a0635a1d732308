"""One of two servers stands still for some seconds, in each phase of a job on a real cluster of two workers.

Every row comes once. A server that answers again before a job has waited its deadline for it is not lost: no job fails,
none runs again, and the server is used as before. Deadlines are longer than the silences, but where a test says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import Reading, ShuffleClient, Timeouts
from spark_client.connection import RemoteServer
from tests.support.executor_processes import TaskHost, servers_of
from tests.support.failing_tasks import FATE_SECONDS, waits_for_its_fate
from tests.support.polling import eventually
from tests.support.processes import wait_for_end
from tests.support.server_process import ServerProcess
from tests.support.silence import Silence
from tests.support.sums import ROWS, expected, grouped, ids_of, numbered, sums_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"master": "cluster", "sql__execution__arrow__maxRecordsPerBatch": "500"}

PATIENT = Timeouts(call_seconds=90, first_message_seconds=90)
HASTY = Timeouts(call_seconds=4, first_message_seconds=4, stall_seconds=4, connect_seconds=2, tries=2)
READING = Reading(driver_bytes=0)
WHERE = ("executors", "given")


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So that one executor does not run all tasks."""
    time.sleep(0.3)
    yield from batches


@dataclass(frozen=True)
class Service:
    """A client of two servers that tasks have written to, their processes, and their starts by their locations."""

    client: ShuffleClient
    spark: SparkSession
    pids: Sequence[int]
    starts: Mapping[str, str]

    @property
    def rows(self) -> DataFrame:
        """Long enough that a task does not send or receive its share of them at once."""
        return numbered(self.spark).selectExpr("*", "repeat('x', 500) AS s")

    def check(self) -> None:
        """Return when all servers that there were answer, under their starts: gRPC may pause before it connects."""
        eventually(lambda: {*self.starts.items()} - {*_starts(self.client).items()}, set[tuple[str, str]]())


def _starts(client: ShuffleClient) -> dict[str, str]:
    """The start of each server that answers, by its location; of each other one the reason why it is gone."""
    return {each["location"]: each["gone"] or each["start"] for each in client.statistics()["servers"]}


@contextmanager
def two_servers(spark: SparkSession, where: str, timeouts: Timeouts) -> Iterator[Service]:
    """Servers in the two executors, or two given ones. Those in executors end with the client, whatever it has thought
    of them.
    """
    pids: Sequence[int] = ()
    with ExitStack() as stack:
        if where == "given":
            given = [stack.enter_context(ServerProcess.start()) for _ in range(2)]
            location = ",".join(each.location for each in given)
            client = stack.enter_context(ShuffleClient(location, timeouts=timeouts, reading=READING))
            pids = [each.pid for each in given]
        else:
            options: dict[str, Any] = {"memory_limit": "64MiB", "drain_grace_seconds": 0}
            client = ShuffleClient.in_executors(spark, timeouts=timeouts, reading=READING, **options)
            stack.callback(lambda: wait_for_end(pids))
            stack.enter_context(client)
        rows = numbered(spark)
        warm = client.pipeline(rows).mapInArrow(slowly, rows.schema).repartition(4)
        assert ids_of(warm.toArrow()) == [*range(ROWS)]
        pids = servers_of(client) if where == "executors" else pids
        assert len(pids) == 2, "one in each executor"
        yield Service(client, spark, pids, _starts(client))


class Phase:
    """Jobs of which each is given the ``silence`` to begin at its own moment, and then ends with the right rows."""

    def __init__(self, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._service = service
        self._directory = tmp_path
        self._patch = monkeypatch
        self._rows = service.client.pipeline(service.rows)
        self._victim = service.pids[1]
        self.pipelines: list[Any] = []
        """Those that may not have lost a server."""

    def run(self, name: str, silence: Silence) -> None:
        getattr(self, f"_{name}")(silence)

    def _fated(self, pipeline: Any) -> Any:
        """With a stage whose first task waits."""
        return pipeline.mapInArrow(partial(waits_for_its_fate, self._directory), self._service.rows.schema)

    def _written(self, silence: Silence) -> None:
        """While map tasks write."""
        pipeline = grouped(self._fated(self._rows).repartition(8, "id").repartition(8, "k"))
        self._run_with_fate(pipeline, silence)

    def _read(self, silence: Silence) -> None:
        """While reduce tasks read, of which most have not begun."""
        pipeline = grouped(self._fated(self._rows.repartition(8, "id", tasks=8)).repartition(8, "k"))
        self._run_with_fate(pipeline, silence)

    def _run_with_fate(self, pipeline: Any, silence: Silence) -> None:
        waits, goes_on = self._directory / "waits", self._directory / "goes on"
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(pipeline.toArrow)
            try:
                eventually(lambda: waits.exists() or running.done(), expected=True)
                silence.begin(self._victim)
            finally:
                goes_on.touch()
            assert sums_of(running.result(FATE_SECONDS)) == expected()
        self.pipelines.append(pipeline)

    def _sealed(self, silence: Silence) -> None:
        """Between the end of the tasks and the seals."""
        action = RemoteServer.action

        def stopping(server: RemoteServer, name: str, *how: Any, **named: Any) -> Any:
            if name == "seal":
                silence.begin(self._victim)
            return action(server, name, *how, **named)

        pipeline = grouped(self._rows.repartition(8, "k"))
        with self._patch.context() as patch:
            patch.setattr(RemoteServer, "action", stopping)
            assert sums_of(pipeline.toArrow()) == expected()
        self.pipelines.append(pipeline)

    def _opened(self, silence: Silence) -> None:
        """Before the driver asks for the first row."""
        pipeline = self._rows.repartition(48, "id")
        reader = pipeline.toLocalIterator()
        silence.begin(self._victim)
        assert ids_of(reader.read_all()) == [*range(ROWS)]
        self.pipelines.append(pipeline)

    def _collected(self, silence: Silence) -> None:
        """While the driver reads the result."""
        pipeline = self._rows.repartition(48, "id")
        reader = pipeline.toLocalIterator()
        first = reader.read_next_batch()
        silence.begin(self._victim)
        table = pa.Table.from_batches([first, *reader])
        assert ids_of(table) == [*range(ROWS)]
        self.pipelines.append(pipeline)

    def _frame(self, silence: Silence) -> None:
        """Before Spark's tasks read what ``toDF`` has returned."""
        frame = self._rows.repartition(8, "k").toDF()
        silence.begin(self._victim)
        assert frame.selectExpr("sum(id)", "count(*)").collect() == [(sum(range(ROWS)), ROWS)]

    def _persisted(self, silence: Silence) -> None:
        """Between two jobs that read a persisted exchange; the second begins meanwhile."""
        with closing(_Kept(self._rows)) as kept:
            silence.begin(self._victim)
            kept.check()
            self.pipelines.append(kept.last)

    def _asked(self, silence: Silence) -> None:
        """Between two jobs that read a persisted exchange; meanwhile the driver asks all servers, and another job runs,
        in the executor whose server answers.
        """
        client = self._service.client
        asks = [client.datasets, client.why, client.staged, client.statistics]
        with closing(_Kept(self._rows)) as kept, self._one_executor(), ThreadPoolExecutor() as threads:
            silence.begin(self._victim)
            asked = [threads.submit(ask) for ask in asks]
            other = self._rows.repartition(4, "id")
            assert ids_of(other.toArrow()) == [*range(ROWS)]
            self.pipelines.append(other)
            silence.wait()
            for each in asked:
                each.result(FATE_SECONDS)
            self._service.check()
            kept.check()
            self.pipelines.append(kept.last)

    @contextmanager
    def _one_executor(self) -> Iterator[None]:
        """In the block a task keeps one of the two executors busy, of which the server is the victim, if it has one."""
        client, context = self._service.client, self._service.spark.sparkContext
        waits, goes_on = self._directory / "waits", self._directory / "goes on"
        task = partial(waits_for_its_fate, self._directory, first=0)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(context.parallelize([0], 1).mapPartitions(task).collect)
            try:
                eventually(lambda: waits.exists() or running.done(), expected=True)
                if client.location == "executors":
                    self._victim = TaskHost.of(client, int(waits.read_text())).server
                yield
            finally:
                goes_on.touch()


class _Kept:
    """A persisted exchange that a job has written and read."""

    def __init__(self, rows: Any) -> None:
        self._kept = rows.repartition(8, "k").persist()
        self.check()

    def check(self) -> None:
        """A job of several tasks reads all of it."""
        self.last = grouped(self._kept).repartition(2)
        assert sums_of(self.last.toArrow()) == expected()

    def close(self) -> None:
        self._kept.unpersist()


PHASES = ("written", "sealed", "read", "opened", "collected", "frame", "persisted", "asked")
NEEDS = {*PHASES} - {"written", "asked"}
"""The phases in which a job needs rows, or the seal, of each server, and so waits for the silent one."""
CASES = [
    pytest.param(("executors", "asked", 5), id="executors-asked-5"),
    *(
        pytest.param(case, marks=pytest.mark.long, id="-".join(map(str, case)))
        # For longer than a silent server is asked nothing that can wait; two for much longer.
        for case in (
            *product(WHERE, PHASES, (15,)),
            ("given", "collected", 60),
            ("executors", "persisted", 60),
        )
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_a_server_that_answers_again_in_time_is_not_lost(
    spark: SparkSession, case: tuple[str, str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, phase, seconds = case
    with two_servers(spark, where, PATIENT) as service:
        phases = Phase(service, tmp_path, monkeypatch)
        with Silence(seconds) as silence, service.client.scope():
            phases.run(phase, silence)
            assert silence.is_over or phase not in NEEDS
            silence.wait()
        service.check()
        assert service.client.datasets() == []
    assert [each.statistics().losses for each in phases.pipelines] == [() for _ in phases.pipelines]


@pytest.mark.long
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("phase", ["written", "sealed", "read", "opened", "persisted"])
def test_a_server_that_a_job_has_given_up_costs_a_rerun_and_is_there_again_when_it_answers(
    spark: SparkSession, where: str, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_servers(spark, where, HASTY) as service:
        with Silence(20) as silence, service.client.scope():
            Phase(service, tmp_path, monkeypatch).run(phase, silence)
            silence.wait()
        service.check()
        with service.client.scope():
            pipeline = grouped(service.client.pipeline(service.rows).repartition(8, "k"))
            assert sums_of(pipeline.toArrow()) == expected()
