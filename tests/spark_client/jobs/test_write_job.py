"""What is said where the servers that tasks have started cannot be reached; the rest needs Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from flight_server.protocol import InvalidRequest, ServerLost, Unavailable
from spark_client.arrow import Declared
from spark_client.connection import RemoteServer, Unreachable
from spark_client.executors import ExecutorServers
from spark_client.jobs import InTurn, SealedDataset, WriteTask
from spark_client.jobs.job import Target
from spark_client.jobs.write_job import WriteJob
from spark_client.servers import ServerStart

A = "grpc://127.0.0.1:1"
ROW = {
    "dataset": "d",
    "producer": 0,
    "attempt": "1",
    "rows": 1,
    "frames": 1,
    "bytes": 1,
    "work": "[1,0,0,[]]",
}


class Away:
    """The driver's datasets and servers, of which it reaches none. It counts no lease and drops nothing."""

    several = True
    lease_seconds = 1.0
    executors = ExecutorServers("a token", ("127.0.0.1", 1))
    server = RemoteServer("executors")
    locations: tuple[str, ...] = ()
    starts: ClassVar[dict[str, str]] = {}

    @property
    def servers(self) -> Away:
        return self

    def lost(self, _: Any = None) -> list[Any]:
        return []

    def knows(self, _: str) -> bool:
        return True

    def at(self, _: str) -> Away:
        return self

    def action(self, *_: Any, **__: Any) -> None:
        raise Unreachable("no way")

    def ignore(self, *_: Any) -> None:
        """Do nothing."""

    begin_spread = written_on = drop_at = learn = ignore


class LostBefore(Away):
    """One server, which is there when a job begins and which another job finds lost before this one does."""

    starts: ClassVar[dict[str, str]] = {A: "a"}

    def lost(self, known: Any = None) -> list[Any]:
        return [ServerStart(*each) for each in (known or {}).items()]


def run(collect: Callable[[Any], list[Any]], shuffles: Any = None) -> list[SealedDataset]:
    schema = pa.schema([("n", pa.int64())])
    task = WriteTask("d", 1, Declared("d", schema), InTurn(1))
    shuffles = shuffles or Away()
    frame: Any = None
    return WriteJob(shuffles, [Target([(frame, task)], "d")], collect).run()


def failing(text: str) -> Callable[[Any], list[Any]]:
    def collect(_: Any) -> list[Any]:
        raise RuntimeError(text)

    return collect


def test_tasks_that_do_not_reach_a_server_which_the_driver_reaches_are_told_of_ports() -> None:
    lost = "Traceback\ndataset 'e' has lost the server with the start s at grpc://a:1: refused\nmore"
    with pytest.raises(
        Unavailable, match=r"at all TCP ports from 1024 on.*\(has lost the server .* refused\)"
    ):
        run(failing(lost))


def test_a_driver_that_reaches_no_server_is_told_of_ports() -> None:
    with pytest.raises(Unavailable, match="the driver reaches none of the servers that tasks have started"):
        run(lambda _: [{**ROW, "server": json.dumps([A, "start", [A]])}])


def test_what_keeps_a_server_from_starting_is_the_error() -> None:
    with pytest.raises(InvalidRequest) as refused:
        run(failing("Traceback\nX: no server can run in this executor: it has no grpc. Do this\nmore"))
    assert str(refused.value) == "no server can run in this executor: it has no grpc. Do this"


def test_another_error_of_the_job_stays_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="of the user"):
        run(failing("of the user"))


def test_a_server_that_another_job_has_found_lost_makes_this_one_run_again() -> None:
    runs: list[str] = []

    def collect(_: Any) -> list[Any]:
        runs.append("")
        raise RuntimeError("put failed")

    with pytest.raises(ServerLost, match="this was run 3"):
        run(collect, LostBefore())
    assert len(runs) == 3
