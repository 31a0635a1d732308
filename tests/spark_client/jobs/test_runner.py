"""The tasks that the driver runs itself: their producers, and what it leaves to Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_client.arrow import Declared
from spark_client.connection import Reading, RemoteServer
from spark_client.jobs import InTurn, ReadTask, Shares, TaskNumbers, WriteTask
from spark_client.jobs.job import Job, Target
from spark_client.jobs.runner import reports_of_driver, start_ahead
from spark_client.jobs.tasks import DECODED_TIMES, Destination

SCHEMA = pa.schema({"n": pa.int64()})
A = "grpc://a:1"
EXECUTORS: Any = "servers in executors"


@dataclass(frozen=True)
class Parts:
    """A batch of one row, which has its number, for each part."""

    def read(self, number: int, _: Any) -> Iterator[Any]:
        yield pa.record_batch({"n": [number]})


class Session:
    """Of which only one setting is asked."""

    def __init__(self, allocates: str = "false") -> None:
        self.conf = SimpleNamespace(get=lambda _: allocates)


Written = list[tuple[str, int, str, list[int]]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """What tasks have written: dataset, producer, attempt and the rows."""
    found: Written = []

    def write(
        task: WriteTask, destination: Destination, batches: Any, producer: int, attempt: str
    ) -> dict[str, Any]:
        assert destination.executors is None
        rows = [row for batch in batches for row in batch.column(0).to_pylist()]
        found.append((task.dataset, producer, attempt, rows))
        return {"rows": len(rows), "frames": 1, "bytes": 8 * len(rows)}

    monkeypatch.setattr(WriteTask, "write", write)
    return found


def target(*tasks: int, dataset: str = "d", allocates: str = "false", **options: Any) -> Target:
    """A dataset of so many parts of a union, each of so many tasks."""
    session: Any = Session(allocates)
    writes = []
    for part, count in enumerate(tasks):
        reading = ReadTask(Parts(), Shares.each(count), options=Reading(**options))
        task = WriteTask(dataset, 4, Declared("d", SCHEMA), InTurn(4), reading, part, len(tasks))
        writes.append((TaskNumbers(session, count), task))
    return Target(writes, dataset)


def run(*targets: Target, servers: tuple[str, ...] = (A,), executors: Any = None) -> list[Any] | None:
    destination = Destination(RemoteServer(A), "g", servers, executors=executors)
    return reports_of_driver(Job(targets), {each.task.dataset: destination for each in targets})


def test_tasks_of_a_union_have_the_numbers_that_spark_gives_them(written: Written) -> None:
    assert run(target(2, 1), target(1, dataset="e")) is not None
    assert [(dataset, producer) for dataset, producer, _, _ in written] == [
        ("d", 0),
        ("d", 2),
        ("d", 5),
        ("e", 3),
    ]
    written.clear()
    # Spark runs such parts in one task.
    assert run(target(1, 1)) is not None
    assert [producer for _, producer, _, _ in written] == [0, 1]


def test_what_takes_far_more_memory_than_the_driver_reads_is_left_to_tasks(written: Written) -> None:
    """A batch has 8 bytes, and all of the job's tasks count."""
    most = DECODED_TIMES * 2 // 8
    assert run(target(most, driver_bytes=2)) is not None
    assert run(target(most, driver_bytes=2), target(1, driver_bytes=2)) is None


def test_the_driver_writes_to_servers_of_executors_that_it_knows(written: Written) -> None:
    assert run(target(1), servers=(), executors=EXECUTORS) is None
    assert written == []
    assert run(target(1), executors=EXECUTORS) is not None
    assert len(written) == 1


def test_where_executors_come_and_go_tasks_write(written: Written) -> None:
    assert run(target(1, allocates="true"), executors=EXECUTORS) is None
    assert written == []


def test_a_session_without_its_jvm_stops_no_server_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Any:
        raise ConnectionError("the JVM has ended")

    monkeypatch.setattr(SparkSession, "getActiveSession", gone)
    start_ahead()
