"""The loop that makes the machine's calls, and its thread; over servers that only count what they are asked."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from flight_server.protocol import NotFound
from spark_client.connection import TimedOut, Unreachable
from spark_client.servers import (
    DriverLoop,
    Holder,
    HolderKind,
    PlannedDataset,
    Report,
    RunJob,
    ServerList,
    ServerStart,
)
from spark_client.servers.server_table import ServerTable
from tests.support.polling import eventually

A, B = "grpc://a:1", "grpc://b:1"
RUN = Holder(HolderKind.RUN)


class Server:
    """It holds everything, but at ``silent`` it does not answer, and at ``breaks`` once. It opens no connection."""

    def __init__(
        self,
        asked: Counter[tuple[str, str]],
        silent: set[str],
        location: str = A,
        breaks: set[str] | None = None,
    ) -> None:
        self.asked = asked
        self.silent = silent
        self.breaks = set[str]() if breaks is None else breaks
        self.location = location

    def at(self, location: str) -> Server:
        return Server(self.asked, self.silent, location, self.breaks)

    def action(self, name: str, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked[name, self.location] += 1
        if self.location in self.silent:
            raise TimedOut("no answer")
        if self.location in self.breaks:
            self.breaks.remove(self.location)
            raise Unreachable("the connection failed")
        answer = {"start": self.location, "rows": 1, "frames": 1, "bytes": 8}
        return {**answer, "partition_bytes": {"0": 8}, "read_locations": [self.location]}


class Thing:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def server() -> Server:
    return Server(Counter(), set())


@pytest.fixture
def loop(server: Any) -> Iterator[DriverLoop]:
    loop = DriverLoop(ServerList(server, [A, B]), 300.0)
    yield loop
    loop.close()


def write(loop: DriverLoop, *datasets: str, on: tuple[str, ...] = (A, B)) -> None:
    def run(call: RunJob) -> list[Report]:
        return [
            Report(dataset, producer, "1", ServerStart(location, location), (location,), 1, 8)
            for dataset in call.generations
            for producer, location in enumerate(on)
        ]

    loop.write(dict.fromkeys(datasets, PlannedDataset(1)), run, RUN, candidates=[A, B])


def test_a_close_waits_for_a_server_that_does_not_answer_once_and_drops_everything_elsewhere(
    loop: DriverLoop, server: Server
) -> None:
    write(loop, *(f"d{number}" for number in range(4)))
    write(loop, "d4", on=(A,))
    server.silent.add(B)
    server.asked.clear()
    loop.close()
    loop.close()
    assert server.asked == {("drop", A): 5, ("drop", B): 1}


def test_a_release_that_no_server_answers_is_an_error_and_one_that_some_do_not_is_none(
    loop: DriverLoop, server: Server
) -> None:
    write(loop, "both")
    write(loop, "silent", on=(B,))
    server.silent.add(B)
    loop.release(lambda machine: machine.release("both"))
    with pytest.raises(TimedOut):
        loop.release(lambda machine: machine.release("silent"))
    loop.release(lambda machine: machine.release("silent"))


def test_what_a_dataset_needs_is_kept_until_it_is_released(loop: DriverLoop) -> None:
    thing, gone = Thing(), threading.Event()
    write(loop, "d")
    loop.keep_alive("d", thing)
    loop.after_collection(thing, gone.set)
    del thing
    gc.collect()
    write(loop, "e")
    assert not gone.wait(0.05)
    loop.end(RUN, ["d"])
    gc.collect()
    assert gone.wait(60)


def test_a_call_is_made_by_another_thread_so_that_the_collecting_one_may_hold_its_lock(
    loop: DriverLoop,
) -> None:
    lock, made = threading.Lock(), threading.Event()

    def call() -> None:
        with lock:
            made.set()

    thing = Thing()
    loop.after_collection(thing, call)
    with lock:
        del thing
        gc.collect()
    assert made.wait(60)


def test_a_call_that_was_taken_back_or_comes_after_the_close_is_not_made(loop: DriverLoop) -> None:
    made = list[str]()
    taken_back, late, waiting = Thing(), Thing(), Thing()
    loop.after_collection(taken_back, lambda: made.append("taken back")).detach()
    loop.after_collection(late, lambda: made.append("late"))
    loop.after_collection(waiting, lambda: made.append("waiting"))
    del taken_back, waiting
    gc.collect()
    loop.close()
    del late
    gc.collect()
    assert made == ["waiting"]


def test_a_call_that_fails_ends_neither_the_thread_nor_the_calls_after_it(loop: DriverLoop) -> None:
    made = threading.Event()

    def failing() -> None:
        raise SystemExit

    first, second = Thing(), Thing()
    loop.after_collection(first, failing)
    loop.after_collection(second, made.set)
    del first
    gc.collect()
    del second
    gc.collect()
    assert made.wait(60)


def test_leases_are_renewed_while_a_collected_reader_waits_for_a_server(server: Any) -> None:
    loop = DriverLoop(ServerList(server, [A, B]), 0.03)
    waiting, may_end = threading.Event(), threading.Event()

    def end() -> None:
        waiting.set()
        may_end.wait(60)

    try:
        write(loop, "d", on=(A,))
        thing = Thing()
        loop.after_collection(thing, end)
        del thing
        gc.collect()
        assert waiting.wait(60)
        before = server.asked["renew", A]
        eventually(lambda: server.asked["renew", A] > before + 2, expected=True)
    finally:
        may_end.set()
        loop.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_connection_that_breaks_loses_a_server_only_if_it_refuses_the_next_one(
    loop: DriverLoop, server: Server, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    write(loop, "d")
    monkeypatch.setattr("spark_client.servers.driver_loop.refuses", lambda _: not is_there)
    server.breaks.add(B)
    assert loop.lost(["d"]) == (set() if is_there else {"d"})


def test_a_dataset_is_looked_for_while_other_threads_plan(loop: DriverLoop) -> None:
    def plan(datasets: Iterable[str]) -> None:
        with loop.machine() as machine:
            machine.plan(dict.fromkeys(datasets, PlannedDataset(1)), "0" * 14, RUN, 0.0)

    plan(f"d{number}" for number in range(3000))
    ended, interval = threading.Event(), sys.getswitchinterval()

    def churn() -> None:
        while not ended.is_set():
            plan(["more"])
            with loop.machine() as machine:
                machine.abandon(["more"], RUN)

    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert all(loop.is_whole("d0") for _ in range(200))
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()


def test_ctrl_c_in_a_plan_leaves_no_job(loop: DriverLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServerTable, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(loop, "d")
    with loop.machine() as machine:
        assert (machine.datasets, machine._jobs) == ({}, {})


def test_the_log_says_once_which_server_does_not_answer(
    loop: DriverLoop, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.silent.add(B)
    for name in ("d", "e"):
        write(loop, name, on=(A,))
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        f"the server {B} is left out until it answers: no answer"
    ]


def test_the_log_says_once_which_dataset_a_server_has_no_longer(
    loop: DriverLoop, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(loop, "d", on=(A,))
    action = Server.action

    def ended(at: Server, name: str, *how: Any, **named: Any) -> dict[str, Any]:
        if name == "renew":
            raise NotFound("it has ended")
        return action(at, name, *how, **named)

    monkeypatch.setattr(Server, "action", ended)
    for _ in range(2):
        loop.act(lambda machine: machine.renew())
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        f"dataset d is gone from the server {A}: it has ended"
    ]


def test_the_log_does_not_name_a_dataset_that_was_released_while_its_lease_was_renewed(
    loop: DriverLoop, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(loop, "d", on=(A,))
    action = Server.action

    def released(at: Server, name: str, *how: Any, **named: Any) -> dict[str, Any]:
        if name == "renew":
            loop.release(lambda machine: machine.release("d"))
            raise NotFound("it was dropped")
        return action(at, name, *how, **named)

    monkeypatch.setattr(Server, "action", released)
    loop.act(lambda machine: machine.renew())
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == []
