"""A writing task with two copies, over real servers and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import copy_name
from spark_client.arrow import Declared
from spark_client.connection import RemoteServer, Timeouts, Unreachable
from spark_client.jobs import InTurn, WriteTask
from spark_client.jobs.task_reports import TaskWork, report, servers_of
from spark_client.lanes import gone_locations
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("n", pa.int64())])
BATCH = pa.record_batch({"n": pa.array(range(100), pa.int64())})


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServerProcess]]:
    monkeypatch.setattr(gone_locations, "_until", {})
    with ExitStack() as ending:
        yield [ending.enter_context(ServerProcess.start()) for _ in range(3)]


def task(servers: list[ServerProcess], **given: Any) -> WriteTask:
    first = RemoteServer(servers[0].location, timeouts=Timeouts(tries=1, connect_seconds=2))
    first.keep_peers()
    locations = tuple(server.location for server in servers)
    return WriteTask(
        first, "d", "0" * 16, 4, Declared("d", SCHEMA), InTurn(4), servers=locations, copies=2, **given
    )


def test_equal_attempts_are_on_two_servers_and_the_report_names_both(servers: list[ServerProcess]) -> None:
    writing = task(servers)
    for producer in range(3):
        answer = writing.write(iter([BATCH]), producer, "7")
        (row,) = report(0, producer, "7", answer, TaskWork()).to_pylist()
        (first, start, where), (second, other, _) = servers_of(row)
        assert (row["rows"], len({start, other}), len({first, second})) == (100, 2, 2)
        assert first in where
        for location, name in ((first, "d"), (second, copy_name("d", start))):
            said = writing.server.at(location).action("statistics", {"dataset": name})
            attempts = said["datasets"][name]["attempts"]
            assert [each["rows"] for each in attempts if each["producer"] == producer] == [100]
    writing.server.close()


def test_a_server_that_is_away_is_passed_over_and_only_where_two_are_left(
    servers: list[ServerProcess],
) -> None:
    writing = task(servers)
    servers[1].kill()
    living = {servers[0].location, servers[2].location}
    for producer in range(3):
        answer = writing.write(iter([BATCH]), producer, "7")
        assert {location for location, *_ in answer["servers"]} == living
    servers[2].kill()
    with pytest.raises(Unreachable):
        writing.write(iter([BATCH]), 0, "8")
    writing.server.close()


def test_a_dataset_of_one_server_has_its_copies_on_one_other(servers: list[ServerProcess]) -> None:
    writing = task(servers, alone=True)
    for producer in range(3):
        answer = writing.write(iter([BATCH]), producer, "7")
        assert [location for location, *_ in answer["servers"]] == [each.location for each in servers[:2]]
    writing.server.close()
