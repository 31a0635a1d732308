"""Broadcasts on two hosts: the executors of a real cluster, each with a directory of its own for its copies."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flight_server.protocol import COPIES, CopiesRequest, CopyVerb
from spark_client import Broadcast, Copies, ShuffleClient
from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers
from tests.support.broadcast_copies import hosts_of
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"master": "cluster"}


@pytest.fixture
def directory(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies in a relative directory are under the working directory of each executor, as on two hosts."""
    monkeypatch.chdir(cluster.directory)
    return cluster.directory


def copies(directory: Path, shared: Broadcast) -> set[Path]:
    """Those of the executors."""
    return set(directory.glob(f"app-*/*/copies/*/{shared._content.key}.arrows"))


def held_executor(
    spark: SparkSession, directory: Path, shared: Broadcast
) -> tuple[threading.Thread, Path, Path]:
    """A thread whose job keeps an executor busy, that one's directory, and the file that ends it."""
    begun, go = directory / f"begun-{time.monotonic_ns()}", directory / f"go-{time.monotonic_ns()}"

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            table = shared.value
            begun.with_suffix(".part").write_text(str(Path.cwd()))
            begun.with_suffix(".part").rename(begun)
            eventually(go.exists, True)
            assert table.column("id").to_pylist() == list(range(1000))
            yield batch

    frame = spark.range(0, 1, 1, 1).mapInArrow(hold, "id long")
    thread = threading.Thread(target=frame.count)
    thread.start()
    eventually(begun.exists, True)
    return thread, Path(begun.read_text()), go


def test_a_busy_host_removes_its_copy_when_its_task_ends(
    flight_server_process: Callable[..., ServerProcess], spark: SparkSession, directory: Path
) -> None:
    server = flight_server_process(http_port=0)
    with ShuffleClient(server.location, copies=Copies(("copies",))) as client:
        shared = client.broadcast(pa.table({"id": range(1000)}))
        thread, busy, go = held_executor(spark, directory, shared)
        shared.unpersist()
        kept, left = hosts_of(shared)
        assert (len(kept), len(left)) == (0, 1)
        (copy,) = copies(directory, shared)
        assert copy.is_relative_to(busy)
        shared.unpersist()
        assert hosts_of(shared) == (set(), left), "asked again, it is still known"
        go.touch()
        thread.join()
        eventually(copy.exists, False)
        eventually(lambda: any(hosts_of(shared)), False)  # the host says so after it removed the file


@pytest.fixture
def servers(spark: SparkSession) -> Iterator[ExecutorServers]:
    options = {"memory_limit": "64MiB", "drain_grace_seconds": 0}
    found = ExecutorServers(secrets.token_hex(16), "127.0.0.1", options)
    yield found
    for each in started(spark, found):
        os.kill(each["pid"], signal.SIGTERM)


def started(spark: SparkSession, servers: ExecutorServers) -> list[dict[str, Any]]:
    """The servers of all executors that tasks run in."""

    def here(_: int) -> dict[str, Any]:
        time.sleep(0.3)  # so that one executor does not run all
        found = servers.here()
        return {"location": found.location, "pid": found.pid}

    rows = spark.sparkContext.parallelize(range(4), 4).map(here).collect()
    return list({each["pid"]: each for each in rows}.values())


def test_a_broadcast_passes_from_executor_to_executor(
    spark: SparkSession,
    servers: ExecutorServers,
    flight_server_process: Callable[..., ServerProcess],
    directory: Path,
) -> None:
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

        def read(_: int) -> tuple[str, int]:
            time.sleep(0.3)  # so that one executor does not run all
            return os.environ["SPARK_LOCAL_DIRS"], shared.value.num_rows

        found = set(spark.sparkContext.parallelize(range(4), 4).map(read).collect())
        assert [rows for _, rows in found] == [3_000_000] * 2
        assert source.server.action("statistics")["frames_out"] == frames, "to one of both"
        sent = []
        for each in started(spark, servers):
            there = RemoteServer(each["location"], token=servers.token)
            sent.append(there.action("statistics")["frames_out"])
            there.close()
        assert sorted(sent) == [frames, 2 * frames], "each to its task, and one to the other"
