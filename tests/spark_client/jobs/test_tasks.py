"""What Spark's tasks do, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest, Kind, PutCommand, PutCreate, SealRequest
from spark_client.arrow import Declared
from spark_client.connection import RemoteServer
from spark_client.executors.executor_servers import RunningServers
from spark_client.jobs import ByKeys, InTurn, ReadTask, WriteTask, tasks
from spark_client.jobs.tasks import UNSEEN_LEASE_SECONDS, Destination
from spark_client.lanes import PutStream
from spark_client.merge import DatasetRef
from spark_client.steps import MapStage, run
from tests.support.python_program import output_of
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[3]

# As a fresh worker: batches come from Arrow, as Spark's do, and not by pa.array.
JOB = """
import sys
import numpy as np, pyarrow as pa
from flight_server.protocol import CreateRequest, Kind, SealRequest
from spark_client.arrow import Declared, array_over
from spark_client.connection import RemoteServer
from spark_client.jobs.placements import ByKeys
from spark_client.jobs.shares import Shares
from spark_client.jobs.sealed import TaskWork, report, work_of
from spark_client.jobs.tasks import Destination, ReadTask, WriteTask
from spark_client.merge import DatasetRef
from spark_client.steps import NO_LIMITS, GroupedSide, GroupStage, reported, reports_of

schema = pa.schema([("k", pa.int64()), ("v", pa.float64())])
rows = pa.RecordBatch.from_arrays([array_over(np.arange(90) % 30), array_over(np.arange(90) * 0.5)], schema=schema)
server = RemoteServer(sys.argv[1])
generation = server.action("create", CreateRequest("d", Kind.SHUFFLE, partitions=3).encode())["generation"]
task = WriteTask("d", 3, Declared("rows", schema), ByKeys(("k",), 3))
destination = Destination(server, generation, (server.location,))
made = report("d", 0, "17", task.write(destination, iter([rows]), 0, "17"), TaskWork(1, 2, 3))
(row,) = reports_of(reported([made]).column(0).to_pylist())
assert work_of([row, row]) == TaskWork(2, 4, 6)
assert [row[name] for name in ("dataset", "producer", "attempt", "rows")] == ["d", 0, "17", 90]
server.action("seal", SealRequest("d", generation, {0: "17"}).encode())
side = GroupedSide.alone(("k",), schema)
stage = GroupStage(lambda table: table, Declared("groups", schema, by_name=True), (side,), False, False)
read = ReadTask(DatasetRef.find(server, "d", generation), Shares((0, 1, 3)), (stage,), NO_LIMITS)
shares = pa.RecordBatch.from_arrays([array_over(np.arange(2))], names=["id"])
assert sum(batch.num_rows for batch in read.run(iter([shares]))) == 90
server.close()
assert "pandas" not in sys.modules
"""


def test_large_batches_may_be_overwritten_when_the_next_one_is_asked_for() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.float32()))])
    rows, width = 3000, 128
    keys, values = np.zeros(rows, np.int64), np.zeros(rows * width, np.float32)
    starts = np.arange(rows + 1, dtype=np.int32) * width
    numbers_and_rows = [(number, count) for number, count in enumerate([rows, 10, rows, rows, 500, rows])]

    def reuses(_: Iterator[Any]) -> Iterator[Any]:
        for number, count in numbers_and_rows:
            keys[:count] = np.arange(count) + number * rows
            values[:] = np.repeat(np.arange(rows) + number * rows, width)
            lists = pa.ListArray.from_arrays(pa.array(starts[: count + 1]), pa.array(values))
            yield pa.record_batch([pa.array(keys[:count]), lists], schema=schema)
            keys[:], values[:] = -1, -1

    declared = Declared("rows", schema)
    with ServerProcess.start() as process, closing(RemoteServer(process.location)) as server:
        created = server.action("create", CreateRequest("d", Kind.SHUFFLE, partitions=3).encode())
        destination = Destination(server, created["generation"], (server.location,))
        stages = (MapStage(reuses, declared),)
        task = WriteTask("d", 3, declared, ByKeys(("k",), 3), ReadTask(stages=stages))
        task.write(destination, run(stages, iter([])), 0, "17")
        server.action("seal", SealRequest("d", created["generation"], {0: "17"}).encode())
        source = DatasetRef.find(server, "d", created["generation"])
        table = pa.Table.from_batches([batch for each in range(3) for batch in source.read(each)], schema)
    table = table.sort_by("k")
    assert table["k"].to_pylist() == [
        at + number * rows for number, count in numbers_and_rows for at in range(count)
    ]
    assert all(row["v"] == [row["k"]] * width for row in table.to_pylist())


@pytest.mark.parametrize("placement", [ByKeys(("k",), 3), InTurn(3)], ids=["by keys", "in turn"])
def test_small_batches_are_placed_together_and_to_the_same_partitions(
    placement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also around a large one, which is not joined."""
    sizes = [1, 10_000, 30_000, 200_000, 7, 3]
    numbers = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    batches = [pa.record_batch([pa.array(each)], names=["k"]) for each in numbers]
    frames: dict[int, list[int]] = {}
    placed = []

    class Put:
        frames = 0

        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, batch: Any, partition: int) -> None:
            frames.setdefault(partition, []).extend(batch.column(0).to_pylist())

        def commit(self) -> dict[str, Any]:
            return {"start": "s", "locations": []}

    class Noting:
        def place(self, batch: Any, producer: int, first_row: int) -> Any:
            placed.append(batch.num_rows)
            return placement.place(batch, producer, first_row)

    monkeypatch.setattr(tasks, "PutStream", Put)
    noting: Any = Noting()
    task = WriteTask("d", 3, Declared("rows", batches[0].schema), noting)
    task.write(Destination(RemoteServer(A), "g", (A,)), iter(batches), 5, "17")
    assert placed == [40_001, 200_000, 10]
    ids = placement.place(pa.concat_batches(batches), 5, 0)
    assert frames == {each: np.flatnonzero(ids == each).tolist() for each in range(3)}


def test_tasks_import_no_pandas_which_takes_a_fresh_worker_a_third_of_a_second() -> None:
    with ServerProcess.start() as process:
        output_of(JOB, process.location)


A, B = "grpc://a:1", "grpc://b:1"


class OwnServers:
    """Those of the task's executor. It notes how often the task was tried, and what is new ``once``."""

    def __init__(self, locations: tuple[str, ...] = (B,)) -> None:
        self.tries: list[int] = []
        self.news: list[list[str]] = []
        self._locations = locations

    def here(self, tries: int) -> RunningServers:
        self.tries.append(tries)
        return RunningServers(self._locations, 1, 1)

    @contextmanager
    def once(self, things: Iterable[str]) -> Iterator[list[str]]:
        self.news.append([each for each in things if not any(each in news for news in self.news)])
        yield self.news[-1]


def test_a_task_takes_the_next_server_in_the_place_of_one_that_accepts_no_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    destination = Destination(RemoteServer(A), "g", (A, B))
    chosen = {destination.choose("d", producer, 0) for producer in range(8)}
    assert chosen == {A, B}, "tasks are spread over all"
    monkeypatch.setattr(tasks, "refuses", lambda locations: A in locations)
    assert {destination.choose("d", producer, 0) for producer in range(8)} == {B}
    # The only one is not asked: its put says why it cannot be reached.
    assert Destination(RemoteServer(A), "g", (A,)).choose("d", 0, 0) == A


def test_a_task_takes_the_server_of_its_executor_and_its_lease_lasts_until_the_driver_knows_of_it() -> None:
    servers: Any = OwnServers()
    destination = Destination(RemoteServer(A), "g", (), 5.0, executors=servers)
    assert destination.choose("d", 3, 2) == B
    assert servers.tries == [2]
    assert destination.create(4) == PutCreate(4, UNSEEN_LEASE_SECONDS)
    assert Destination(RemoteServer(A), "g", (A,), 5.0).create(4) == PutCreate(4, 5.0)


def test_a_task_drops_what_failed_jobs_have_left_in_its_executor_once_there() -> None:
    command = PutCommand("left", producer=0, attempt="1", generation="0123456789abcdef", create=PutCreate(1))
    with ServerProcess.start(workers=2) as process, closing(RemoteServer(process.location)) as client:
        locations = tuple(process.location.split(","))
        servers: Any = OwnServers(locations)
        for each in map(client.at, locations):
            with PutStream(each, command, pa.schema([("n", pa.int64())])) as stream:
                stream.commit()

        def datasets() -> list[str]:
            return [name for each in locations for name in client.at(each).action("statistics")["datasets"]]

        assert datasets() == ["left", "left"]
        Destination(client, "g", locations, left=(("left", "0123456789abcdef"),)).drop_left(0)
        assert datasets() == ["left", "left"], "they are not the executor's own"
        left = (("absent", "0123456789abcdef"), ("left", "0123456789abcdef"))
        destination = Destination(client, "g", (), executors=servers, left=left)
        for _ in range(2):
            destination.drop_left(0)
            assert datasets() == []
        assert servers.news == [["absent 0123456789abcdef", "left 0123456789abcdef"], []]
