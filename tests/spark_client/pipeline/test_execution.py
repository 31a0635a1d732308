"""Runs of a plan that lose servers: what is written again, what stays, and what is left after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_client.arrow import Declared
from spark_client.jobs import SealedDataset
from spark_client.jobs.persisting import AfterCollection, Persisted
from spark_client.pipeline.execution import Execution
from spark_client.pipeline.nodes import Exchange, Input, Leg, PlanPart
from spark_client.servers import RERUNS

SCHEMA = pa.schema([pa.field("k", pa.int64())])
DECLARED = Declared("rows", SCHEMA)


class _Session:
    """Has no settings: no function of a user's is in these plans."""


SESSION: Any = _Session()


class Driver:
    """Stands for ``Shuffles``: jobs write at once, and a test says of which datasets a server loses a part. It holds no
    rows, and has no results.
    """

    def __init__(self) -> None:
        self.written: list[str] = []
        self.held: dict[str, str] = {}
        self.lost: set[str] = set()
        self.at_write: Callable[[str], object] = lambda _: None
        self.server = SimpleNamespace(reading=SimpleNamespace(driver_bytes=0))
        self.servers = SimpleNamespace(several=True, lost=list)
        self.results = SimpleNamespace(add=lambda *_, **__: None, forget=lambda _: None)
        self.executors = None
        self.after_collection = AfterCollection()
        self.persisted = Persisted(self.is_whole, self.discard, lambda _: False, self.after_collection)

    def write(self, targets: Sequence[Any], *, here: bool) -> list[SealedDataset]:
        assert not here
        sealed = []
        for target in targets:
            self.at_write(target.label)
            dataset = target.task.dataset
            self.written.append(target.label)
            self.held[dataset] = target.label
            source: Any = SimpleNamespace(dataset=dataset)
            sealed.append(SealedDataset(source, SCHEMA, (1, 1), rows=2))
        return sealed

    def is_whole(self, sealed: SealedDataset) -> bool:
        return sealed.source.dataset in self.held and sealed.source.dataset not in self.lost

    def discard(self, dataset: str) -> None:
        self.held.pop(dataset, None)

    def lose(self, label: str) -> None:
        """A server loses its part of the exchange."""
        self.lost |= {dataset for dataset, held in self.held.items() if held == label}

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
    made.after_collection.close()


def test_what_was_lost_is_written_again_and_what_is_whole_stays(driver: Driver) -> None:
    one, two = sent("one"), sent("two")
    last = sent("last", one, sent("three", two))
    losing(driver, "one", when="last")
    execution = driver.execution()
    assert execution.result_of(lambda run: rows(run, last)) == 2
    assert driver.written == ["two", "one", "three", "one", "last"]
    assert [*driver.held.values()] == ["last"], "what jobs have read is dropped"
    statistics = execution.ran().statistics
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
    assert driver.is_whole(sealed)


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
    assert [label for dataset, label in driver.held.items() if dataset not in driver.lost] == []


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
    assert driver.held == {}


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
