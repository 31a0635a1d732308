"""Runs of a plan that lose servers: what is written again, what stays, and what is left after an error."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from flight_server.protocol import NotFound
from spark_client.arrow import Declared
from spark_client.jobs import SealedDataset
from spark_client.jobs.persisting import Persisted
from spark_client.jobs.results import Results
from spark_client.pipeline.execution import Execution
from spark_client.pipeline.nodes import Exchange, Input, Leg, PlanPart
from spark_client.servers import (
    RERUNS,
    DriverLoop,
    Holder,
    PlannedDataset,
    Report,
    RunJob,
    ServerList,
    ServerStart,
)

SCHEMA = pa.schema([pa.field("k", pa.int64())])
DECLARED = Declared("rows", SCHEMA)


class _Session:
    """Has no settings: no function of a user's is in these plans."""


SESSION: Any = _Session()


class Server:
    """Seals and renews what a test does not lose. It opens no connection."""

    location = "grpc://a:1"

    def __init__(self) -> None:
        self.reading = SimpleNamespace(driver_bytes=0)
        self.lost: set[str] = set()

    def at(self, _: str) -> Server:
        return self

    def action(self, name: str, body: bytes = b"", *_: Any, **__: Any) -> dict[str, Any]:
        if name == "renew" and json.loads(body)["dataset"] in self.lost:
            raise NotFound("it is lost")
        totals = {"rows": 2, "frames": 2, "bytes": 2, "partition_bytes": {"0": 1, "1": 1}}
        return {"start": "a", "read_locations": [self.location], **totals}


class Driver:
    """Stands for ``Shuffles``: its loop is the real one, over a server that holds no rows, and each job is one task."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.labels: dict[str, str] = {}
        self.at_write: Callable[[str], object] = lambda _: None
        self.server: Any = Server()
        self.executors = None
        first: Any = self.server
        self.loop = DriverLoop(ServerList(first), 300.0)
        self.results = Results(self.loop)
        self.persisted = Persisted(self.loop, self.results)

    def write(self, targets: Sequence[Any], holder: Holder, *, here: bool) -> list[SealedDataset]:
        assert not here
        sealed = []
        for target in targets:
            dataset = target.task.dataset
            self.labels[dataset] = target.label

            def run(call: RunJob, label: str = target.label) -> list[Report]:
                self.at_write(label)
                self.written.append(label)
                (name,) = call.generations
                return [Report(name, 0, "1", ServerStart(Server.location, "a"), (Server.location,), 2, 2)]

            self.loop.write({dataset: PlannedDataset(2)}, run, holder, candidates=[Server.location])
            source: Any = SimpleNamespace(dataset=dataset)
            sealed.append(SealedDataset(source, SCHEMA, (1, 1), rows=2))
        return sealed

    @property
    def held(self) -> list[str]:
        """The exchanges that are held, and not lost."""
        with self.loop.machine() as machine:
            return [self.labels[each] for each in machine.datasets if each not in self.server.lost]

    def lose(self, label: str) -> None:
        """The server loses the exchange."""
        self.server.lost |= {dataset for dataset, each in self.labels.items() if each == label}

    def execution(self) -> Execution:
        shuffles: Any = self
        return Execution(shuffles, SESSION)


def leg(*origins: Exchange) -> Leg:
    if not origins:
        rows: Any = SimpleNamespace(columns=["k"])
        return Leg((PlanPart(Input(rows, "rows")),), StructType([]), DECLARED)
    return Leg(tuple(PlanPart(origin) for origin in origins), StructType([]), DECLARED)


def sent(label: str, *origins: Exchange) -> Exchange:
    return Exchange(leg(*origins), 2, tasks=2, label=label)


def losing(driver: Driver, label: str, when: str, times: int = 1) -> None:
    """The exchange is lost while the one named ``when`` is written, which fails, so many times."""
    left = [None] * times

    def fail(writes: str) -> None:
        if writes == when and left:
            left.pop()
            driver.lose(label)
            raise RuntimeError("a task could not read")

    driver.at_write = fail


def rows(execution: Execution, exchange: Exchange) -> int:
    return execution.sealed(exchange).rows


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.loop.close()


def test_what_was_lost_is_written_again_and_what_is_whole_stays(driver: Driver) -> None:
    one, two = sent("one"), sent("two")
    last = sent("last", one, sent("three", two))
    losing(driver, "one", when="last")
    execution = driver.execution()
    assert execution.result_of(lambda run: rows(run, last)) == 2
    assert driver.written == ["two", "one", "three", "one", "last"]
    assert driver.held == [], "what nothing else holds is dropped"
    statistics = execution.ran(last.leg).statistics
    assert statistics is not None
    assert statistics.losses == ("one, a server that held a part of it is gone",)


def test_a_persisted_exchange_that_is_lost_is_written_again_by_the_same_run(driver: Driver) -> None:
    kept = sent("kept")
    middle = sent("middle", kept)
    last = sent("last", middle)
    driver.persisted.keep(kept)
    driver.execution().result_of(lambda run: rows(run, kept))
    losing(driver, "kept", when="middle")
    assert driver.execution().result_of(lambda run: rows(run, last)) == 2
    assert driver.written == ["kept", "kept", "middle", "last"]
    persisted = driver.persisted.find(kept)
    assert persisted is not None
    sealed = persisted.claim(None)
    assert sealed is not None, "the next run finds it"
    assert driver.held == ["kept"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_waits_for_a_persisted_exchange_and_writes_it_if_the_first_has_failed(
    driver: Driver, *, fails: bool
) -> None:
    kept = sent("kept")
    driver.persisted.keep(kept)
    begun, goes_on = threading.Event(), threading.Event()

    def write(_: str) -> None:
        driver.at_write = lambda _: None
        begun.set()
        assert goes_on.wait(20)
        if fails:
            raise RuntimeError("the first try")

    driver.at_write = write
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: driver.execution().result_of(lambda run: rows(run, kept)))
        assert begun.wait(20)
        second = threads.submit(lambda: driver.execution().result_of(lambda run: rows(run, kept)))
        assert not wait([second], 0.05).done
        goes_on.set()
        assert second.result() == 2
        assert isinstance(first.exception(), RuntimeError) is fails
    assert driver.written == ["kept"]
    driver.persisted.forget(kept)
    assert driver.held == []


def test_what_was_made_of_a_lost_exchange_is_written_again_with_it(driver: Driver) -> None:
    first = sent("first")
    one, two = sent("one", first), sent("two", first)
    last = sent("last", one, two)
    losing(driver, "two", when="last")
    driver.execution().result_of(lambda run: rows(run, last))
    assert driver.written == ["first", "one", "two", "first", "one", "two", "last"]


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_begins_again_at_most_twice_and_leaves_nothing(driver: Driver, *, kept: bool) -> None:
    one = sent("one")
    last = sent("last", one)
    if kept:
        driver.persisted.keep(one)
    losing(driver, "one", when="last", times=10)
    with pytest.raises(RuntimeError, match="could not read"):
        driver.execution().result_of(lambda run: rows(run, last))
    assert driver.written == ["one"] * (1 + RERUNS)
    assert driver.held == []


def test_another_error_is_raised_at_once_and_what_was_written_is_dropped(driver: Driver) -> None:
    one, other = sent("one"), sent("other")
    calls = []

    def use(run: Execution) -> None:
        calls.append(rows(run, one))
        calls.append(rows(run, other))
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        driver.execution().result_of(use)
    assert calls == [2, 2]
    assert driver.held == []


def test_a_loss_after_the_last_job_makes_the_run_begin_again(driver: Driver) -> None:
    last = sent("last")
    calls = []

    def read(run: Execution) -> int:
        calls.append(rows(run, last))
        if len(calls) == 1:
            driver.lose("last")
            raise RuntimeError("the reader lost its server")
        return calls[-1]

    assert driver.execution().result_of(read) == 2
    assert driver.written == ["last", "last"]
