"""Servers that tasks start in Spark's executors: on a real standalone cluster of two workers."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flight_server.protocol import COPIES, CopiesRequest, CopyVerb, FlightShuffleError
from spark_client import Broadcast, Copies, ShuffleClient
from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers
from tests.support.executor_processes import runs
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Each task has a Python worker of its own. After the session no server of its executors runs."""
    settings = {"executor__cores": "2", "python__worker__reuse": "false"}
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), cores=2) as cluster:
        with local_session(cluster.master, **cluster.settings | settings) as session:
            left = ExecutorServers(secrets.token_hex(16), ("127.0.0.1", 1), {"memory_limit": "64MiB"})
            pids = [each["pid"] for each in started(session, left)]
            yield session
            assert all(map(runs, pids))
        eventually(lambda: any(map(runs, pids)), expected=False)


@pytest.fixture
def servers(spark: SparkSession) -> Iterator[ExecutorServers]:
    found = ExecutorServers(
        secrets.token_hex(16), ("127.0.0.1", 1), {"memory_limit": "64MiB", "drain_grace_seconds": 0}
    )
    yield found
    for each in started(spark, found):
        os.kill(each["pid"], signal.SIGTERM)


def started(spark: SparkSession, servers: ExecutorServers, tasks: int = 8) -> list[dict[str, Any]]:
    """The servers of all executors that tasks run in, one for each task's."""

    def here(number: int) -> dict[str, Any]:
        time.sleep(0.3)  # so that one executor does not run all
        found = servers.here()
        return {"location": found.location, "pid": found.pid, "executor": os.environ["SPARK_LOCAL_DIRS"]}

    rows = spark.sparkContext.parallelize(range(tasks), tasks).map(here).collect()
    return list({each["pid"]: each for each in rows}.values())


def test_each_executor_has_one_server_which_demands_the_token(
    spark: SparkSession, servers: ExecutorServers
) -> None:
    found = started(spark, servers)
    assert len(found) == len({each["executor"] for each in found}) == 2
    for each in found:
        with_token = RemoteServer(each["location"], token=servers.token)
        assert with_token.action("locations")["servers"] == [each["location"]]
        without = RemoteServer(each["location"])
        with pytest.raises(FlightShuffleError, match="token"):
            without.action("locations")
        with_token.close()
        without.close()
    assert {each["pid"] for each in started(spark, servers)} == {each["pid"] for each in found}


def test_two_applications_tokens_have_servers_of_their_own(
    spark: SparkSession, servers: ExecutorServers
) -> None:
    others = ExecutorServers(secrets.token_hex(16), servers.driver, servers.options)
    ours, theirs = started(spark, servers), started(spark, others)
    assert not {each["pid"] for each in ours} & {each["pid"] for each in theirs}
    for each in theirs:
        os.kill(each["pid"], signal.SIGTERM)


def test_a_server_that_was_killed_is_started_again(spark: SparkSession, servers: ExecutorServers) -> None:
    before = started(spark, servers)
    os.kill(before[0]["pid"], signal.SIGKILL)
    eventually(lambda: runs(before[0]["pid"]), expected=False)
    after = started(spark, servers)
    assert {each["executor"] for each in after} == {each["executor"] for each in before}
    assert len({each["pid"] for each in after} & {each["pid"] for each in before}) == 1


def test_a_broadcast_passes_from_executor_to_executor(
    spark: SparkSession,
    servers: ExecutorServers,
    flight_server_process: Callable[..., ServerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A relative directory: under the working directory of each executor, as if it were another host's.
    monkeypatch.chdir(tmp_path)
    origin = flight_server_process(token=servers.token)
    table = pa.table({"id": pa.array(range(3_000_000), pa.int64())})
    with ShuffleClient(origin.location, token=servers.token, copies=Copies(("copies",))) as client:
        content = replace(client.broadcast(table)._content, servers=servers)
        shared, source = Broadcast(content), content.source
        frames = source.server.action("statistics")["frames_in"]
        for busy in ("x", "y"):
            for verb in (CopyVerb.KEEP, CopyVerb.FETCH):
                request = CopiesRequest(verb, source.dataset, source.generation, busy, content.key)
                source.server.action(COPIES, request.encode())

        def read(number: int) -> tuple[str, int]:
            time.sleep(0.3)  # so that one executor does not run all
            return os.environ["SPARK_LOCAL_DIRS"], shared.value.num_rows

        found = set(spark.sparkContext.parallelize(range(8), 8).map(read).collect())
        assert [rows for _, rows in found] == [3_000_000] * 2
        assert source.server.action("statistics")["frames_out"] == frames, "to one of both"
        sent = []
        for each in started(spark, servers):
            there = RemoteServer(each["location"], token=servers.token)
            sent.append(there.action("statistics")["frames_out"])
            there.close()
        assert sorted(sent) == [frames, 2 * frames], "each to its task, and one to the other"
