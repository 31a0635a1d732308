"""Broadcasts on two hosts: the executors of a real cluster, each with a directory of its own for its copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import Broadcast, Copies, ShuffleClient
from tests.support.broadcast_copies import hosts_of
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECONDS = 90
TABLE = pa.table({"id": pa.array(range(1000), pa.int64())})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def spark(java_home: str, directory: Path) -> Iterator[SparkSession]:
    with (
        standalone_cluster(directory) as cluster,
        local_session(cluster.master, **cluster.settings) as session,
    ):
        yield session


@pytest.fixture
def client(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShuffleClient]:
    server = ServerProcess.start(http_port=0)
    monkeypatch.chdir(directory)
    # A relative one: under the working directory of each executor, as if it were another host's.
    with ShuffleClient(server.location, copies=Copies(("copies",))) as found:
        yield found
    server.terminate()
    server.close()


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
            until = time.monotonic() + PATIENCE_SECONDS
            while not go.exists() and time.monotonic() < until:
                time.sleep(0.05)
            assert table.column("id").to_pylist() == list(range(1000))
            yield batch

    frame = spark.range(0, 1, 1, 1).mapInArrow(hold, "id long")
    thread = threading.Thread(target=frame.count)
    thread.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return thread, Path(begun.read_text()), go


def gone(path: Path) -> bool:
    until = time.monotonic() + PATIENCE_SECONDS
    while path.exists() and time.monotonic() < until:
        time.sleep(0.1)
    return not path.exists()


def test_a_busy_host_removes_its_copy_when_its_task_ends(
    client: ShuffleClient, spark: SparkSession, directory: Path
) -> None:
    shared = client.broadcast(TABLE)
    thread, busy, go = held_executor(spark, directory, shared)
    shared.unpersist()
    kept, left = hosts_of(shared)
    assert (len(kept), len(left)) == (0, 1)
    (copy,) = copies(directory, shared)
    assert copy.is_relative_to(busy)
    shared.unpersist()
    assert hosts_of(shared) == (set(), left), "asked again, it is still known"
    go.touch()
    thread.join(PATIENCE_SECONDS)
    assert gone(copy)
    until = time.monotonic() + PATIENCE_SECONDS
    while any(hosts_of(shared)) and time.monotonic() < until:  # the host says so after it removed the file
        time.sleep(0.1)
    assert not any(hosts_of(shared))
