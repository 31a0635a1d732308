"""A real standalone Spark cluster from pip's PySpark: one master, some workers, all bounded.

Guarantee: after ``standalone_cluster`` is entered the workers are registered and take executors; after it is left
none of its processes runs. Workers keep their files in the given directory. Each wait has a deadline, and the
error of a missed one shows the log.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.logged_process import LoggedProcess
from tests.support.spark_home import spark_home

ROOT = Path(__file__).resolve().parents[2]
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class Host:
    """Where daemons of a cluster run: an address, and the command that begins a process there."""

    address: str
    enter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """The address to give to ``SparkSession.builder.master``, the settings that executors need, and the workers."""

    master: str
    settings: dict[str, str]
    workers: list[LoggedProcess] = field(default_factory=list)


def _daemon(arguments: list[str], environment: dict[str, str], enter: tuple[str, ...] = ()) -> LoggedProcess:
    """One JVM of the cluster. A worker's executors, and their Python processes, are of its group."""
    home = spark_home()
    command = [*enter, str(home / "bin" / "spark-class"), *arguments]
    return LoggedProcess(command, environment | {"SPARK_HOME": str(home)})


@contextmanager
def standalone_cluster(
    directory: Path,
    workers: int = 2,
    cores: int = 1,
    hosts: Sequence[Host] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """A cluster of ``workers`` with ``cores`` each, in ``directory``.

    Args:
        hosts: the master's, and then the workers'; by default loopback with an address for each worker, because Spark
            does not run two attempts of a task on one host.
        environment: further variables of the daemons, which executors inherit.
    """
    loopback = [Host("127.0.0.1"), *(Host(f"127.0.0.{number + 1}") for number in range(workers))]
    first, *others = hosts or loopback
    shared = {
        "SPARK_LOCAL_IP": first.address,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(directory),
        "SPARK_LOCAL_DIRS": str(directory),
        "PYSPARK_PYTHON": sys.executable,
        **(environment or {}),
    }
    daemons: list[LoggedProcess] = []
    settings = {
        "executor__cores": "1",
        "executor__memory": "512m",
        "executorEnv__PYTHONPATH": str(ROOT),
    }
    try:
        arguments = [_MASTER, "--host", first.address, "--port", "0", "--webui-port", "0"]
        daemons.append(_daemon(arguments, shared, first.enter))
        address = daemons[0].wait_for(r"Starting Spark master at (spark://\S+)")[1]
        for host in others:
            options = ["--host", host.address, "--webui-port", "0", "--cores", str(cores), "--memory", "1g"]
            daemons.append(
                _daemon([_WORKER, *options, address], shared | {"SPARK_LOCAL_IP": host.address}, host.enter)
            )
        for worker in daemons[1:]:
            worker.wait_for("Successfully registered with master")
        yield Cluster(address, settings, daemons[1:])
    finally:
        for daemon in reversed(daemons):
            daemon.stop()


@contextmanager
def connect_server(settings: dict[str, str], environment: dict[str, str]) -> Iterator[str]:
    """The address of a Spark Connect server with these settings, ``spark.master`` among them."""
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    daemon = _daemon(
        [
            "org.apache.spark.deploy.SparkSubmit",
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--conf", "spark.connect.grpc.binding.port=0"),
            *confs,
            "spark-internal",
        ],
        {"SPARK_NO_DAEMONIZE": "1", **environment},
    )
    try:
        port = daemon.wait_for(r"Spark Connect server started at: \S*:([0-9]+)")[1]
        yield f"sc://127.0.0.1:{port}"
    finally:
        daemon.stop()
