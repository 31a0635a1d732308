"""A real standalone Spark cluster on loopback, from pip's PySpark: one master, some workers, all bounded.

Guarantee: after ``standalone_cluster`` is entered the workers are registered and take executors; after it is left
none of its processes runs. Workers keep their files in the given directory. Each wait has a deadline, and the
error of a missed one shows the log.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.logged_process import START_SECONDS, LoggedProcess
from tests.support.spark_home import spark_home

ROOT = Path(__file__).resolve().parents[2]
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class Cluster:
    """The address to give to ``SparkSession.builder.master``, and the settings that executors need."""

    master: str
    settings: dict[str, str]


def _daemon(arguments: list[str], environment: dict[str, str]) -> LoggedProcess:
    """One JVM of the cluster. A worker's executors, and their Python processes, are of its group."""
    home = spark_home()
    command = [str(home / "bin" / "spark-class"), *arguments]
    return LoggedProcess(command, environment | {"SPARK_HOME": str(home)})


@contextmanager
def standalone_cluster(directory: Path, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """A cluster of ``workers`` with ``cores`` each, in ``directory``."""
    environment = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(directory),
        "SPARK_LOCAL_DIRS": str(directory),
        "PYSPARK_PYTHON": sys.executable,
    }
    daemons: list[LoggedProcess] = []
    try:
        master = _daemon([_MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"], environment)
        daemons.append(master)
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        page = master.wait_for(r"MasterWebUI.*started at (http://\S+)|MasterWebUI.* to .*(http://\S+)")
        for number in range(workers):
            # Each has an address of its own: Spark does not run two attempts of a task on one host.
            host = f"127.0.0.{number + 1}"
            options = ["--host", host, "--webui-port", "0", "--cores", str(cores), "--memory", "1g"]
            daemons.append(_daemon([_WORKER, *options, address], environment | {"SPARK_LOCAL_IP": host}))
        _wait_for_workers(page[1] or page[2], workers)
        settings = {
            "executor__cores": "1",
            "executor__memory": "512m",
            "executorEnv__PYTHONPATH": str(ROOT),
        }
        yield Cluster(address, settings)
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


def _wait_for_workers(page: str, wanted: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    alive = -1
    while time.monotonic() < deadline:
        with suppress(TimeoutError), urllib.request.urlopen(f"{page.rstrip('/')}/json/", timeout=5) as answer:
            alive = int(json.load(answer)["aliveworkers"])
        if alive == wanted:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{alive} of {wanted} workers came")
