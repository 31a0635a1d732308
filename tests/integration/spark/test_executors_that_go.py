"""Servers in executors that Spark takes away, and beside those of another application: on a real cluster."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from flight_server.protocol import FlightShuffleError
from spark_client import ShuffleClient, Timeouts
from spark_client.connection import RemoteServer
from tests.support.driver_process import DriverProcess, say, session
from tests.support.executor_processes import executor_of, servers_of
from tests.support.polling import eventually
from tests.support.processes import runs, wait_for_end
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import Cluster, standalone_cluster
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

ROWS = 2000


@pytest.fixture(scope="module")
def workers(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of workers with room for an executor of each of two applications."""
    options = {"SPARK_WORKER_OPTS": "-Dspark.decommission.enabled=true"}
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), cores=2, environment=options) as found:
        yield found


def kept_of(client: ShuffleClient, spark: SparkSession) -> Any:
    """A persisted exchange that is written."""
    kept = client.pipeline(spark.range(0, ROWS, numPartitions=6)).repartition(4, "id").persist()
    check(kept)
    return kept


def check(pipeline: Any) -> None:
    assert sorted(pipeline.toArrow()["id"].to_pylist()) == [*range(ROWS)]


def pid_of(client: ShuffleClient, location: str) -> int:
    """The process of a server in an executor."""
    files = [Path(f"/proc/{pid}/cwd/server.json") for pid in servers_of(client)]
    (found,) = (
        each for each in (json.loads(file.read_text()) for file in files) if each["location"] == location
    )
    return int(found["pid"])


def executors(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def test_what_dynamic_allocation_takes_away_after_all_is_written_again(workers: Cluster) -> None:
    settings = workers.settings | {
        "dynamicAllocation__enabled": "true",
        "dynamicAllocation__initialExecutors": "2",
        "dynamicAllocation__executorIdleTimeout": "1s",
        "dynamicAllocation__shuffleTracking__timeout": "1s",
    }
    with (
        local_session(workers.master, **settings) as spark,
        ShuffleClient.in_executors(spark, memory_limit="64MiB", timeouts=Timeouts(tries=2)) as client,
    ):
        kept = kept_of(client, spark)
        before = servers_of(client)
        assert before
        eventually(lambda: executors(spark), 0)
        wait_for_end(before)
        check(kept)


def test_what_a_decommissioned_worker_held_is_written_again_and_a_reused_port_is_another_server(
    workers: Cluster,
) -> None:
    settings = workers.settings | {"decommission__enabled": "true"}
    with (
        local_session(workers.master, **settings) as spark,
        ShuffleClient.in_executors(spark, memory_limit="64MiB", timeouts=Timeouts(tries=2)) as client,
    ):
        kept = kept_of(client, spark)
        (location, *_) = client._servers.locations
        ports = [
            urlsplit(each).port for each in client._servers.at(location).action("locations")["locations"]
        ]
        victim = pid_of(client, location)
        os.kill(victim, signal.SIGKILL)
        wait_for_end([victim])
        with ServerProcess.start(port=ports[0], http_port=ports[1], token=client._server.token):
            check(kept)

        before = {pid: executor_of(pid) for pid in servers_of(client)}
        workers.workers[0].process.send_signal(signal.SIGPWR)
        eventually(lambda: any(not runs(executor) for executor in before.values()), True)
        wait_for_end(pid for pid in before if not runs(before[pid]))
        check(kept)


def other_application(master: str, settings: dict[str, str], directory: str) -> None:
    with session(master, settings) as spark, ShuffleClient.getOrCreate(spark) as client:
        kept = kept_of(client, spark)
        say("servers", servers_of(client))
        say("token", client._server.token)
        eventually(Path(directory, "the first has ended").exists, True, 200)
        check(kept)
        say("rows", True)


def test_two_applications_on_the_same_hosts_have_servers_of_their_own(
    workers: Cluster, tmp_path: Path
) -> None:
    settings = workers.settings
    with DriverProcess(other_application, workers.master, settings, str(tmp_path)) as other:
        with local_session(workers.master, **settings) as spark, ShuffleClient.getOrCreate(spark) as client:
            kept_of(client, spark)
            ours, theirs = servers_of(client), other.wait_for("servers")
            assert ours
            assert theirs
            assert not {*ours} & {*theirs}
            for location in client._servers.locations:
                stranger = RemoteServer(location, token=other.wait_for("token"))
                with pytest.raises(FlightShuffleError, match="token"):
                    stranger.action("locations")
                stranger.close()
        wait_for_end(ours)
        assert all(map(runs, theirs))
        (tmp_path / "the first has ended").touch()
        assert other.wait_for("rows") is True
        assert other.wait() == 0
        eventually(other.running, list[str]())
