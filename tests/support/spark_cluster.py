"""A real standalone Spark cluster from pip's PySpark: one master, some workers, all bounded.

Guarantee: after ``standalone_cluster`` is entered the workers are registered and take executors; after it is left
none of its processes runs. Workers keep their files in the given directory. Each wait has a deadline, and the
error of a missed one shows the log.

Executors are processes of their own. Master and workers are in one JVM, because one takes 2 CPU seconds to start; each
has an address of its own, and they meet over TCP. Those on other hosts, and those with variables of their own, have a
JVM and a process group each, which a test can strike.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.support.logged_process import START_SECONDS, LoggedProcess
from tests.support.polling import eventually
from tests.support.spark_home import spark_home

ROOT = Path(__file__).resolve().parents[2]
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
# Calls what it is asked for over a socket, whose port it writes to a file; it ends with its input.
_GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
_WORKER_MIB = 1024

QUANTILE = "spark.speculation.quantile"
SPECULATION = {
    "speculation": "true",
    "speculation__interval": "100ms",
    "speculation__quantile": "1.0",
    "speculation__multiplier": "1.1",
    "speculation__minTaskRuntime": "100ms",
}
"""Settings with which an application speculates where a test lowers ``QUANTILE``: by 1.0 all tasks of a stage must have
ended before one is tried again, which is never.
"""
ALL_EXECUTORS = {"scheduler__minRegisteredResourcesRatio": "1"}
"""Settings with which a session begins when all its executors are there: the first job has tasks in each of them."""


@dataclass(frozen=True)
class Host:
    """Where daemons of a cluster run: an address, and the command that begins a process there."""

    address: str
    enter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """The address to give to ``SparkSession.builder.master``, the settings that executors need, the directory of the
    workers' files, and the workers, if they have a process each.
    """

    master: str
    settings: dict[str, str]
    directory: Path
    workers: list[LoggedProcess] = field(default_factory=list)


def _daemon(
    arguments: list[str], environment: dict[str, str], enter: tuple[str, ...] = (), *, has_input: bool = False
) -> LoggedProcess:
    """One JVM of the cluster. A worker's executors, and their Python processes, are of its group."""
    home = spark_home()
    command = [*enter, str(home / "bin" / "spark-class"), *arguments]
    return LoggedProcess(command, environment | {"SPARK_HOME": str(home)}, has_input=has_input)


class _OneProcess:
    """A JVM for the master and all workers of a cluster."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        serializers: Any = importlib.import_module("pyspark.serializers")
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "gateway"
        variable = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(file)}
        self._process = _daemon([_GATEWAY], environment | variable, has_input=True)
        try:
            eventually(partial(self._has_begun, file), expected=True, deadline_seconds=START_SECONDS)
            assert file.exists(), "\n".join(self._process.log[-60:])
            with file.open("rb") as found:
                port, secret = serializers.read_int(found), serializers.UTF8Deserializer().loads(found)
        except BaseException:
            self._process.stop()
            raise
        parameters = GatewayParameters(port=port, auth_token=secret, auto_convert=True)
        self._gateway: Any = JavaGateway(gateway_parameters=parameters)
        self._deploy = self._gateway.jvm.org.apache.spark.deploy
        self._conf = self._gateway.jvm.org.apache.spark.SparkConf()

    def start_master(self, address: str) -> str:
        """The address that workers and drivers connect to."""
        started = self._deploy.master.Master.startRpcEnvAndEndpoint(address, 0, 0, self._conf)
        self._state = f"http://{address}:{started._2()}/json/"
        return str(started._1().address().toSparkURL())

    def start_worker(self, address: str, cores: int, master: str) -> None:
        """It registers with the master some time later."""
        masters = self._gateway.new_array(self._gateway.jvm.java.lang.String, 1)
        masters[0] = master
        nothing = self._gateway.jvm.scala.Option.empty()
        self._deploy.worker.Worker.startRpcEnvAndEndpoint(
            address, 0, 0, cores, _WORKER_MIB, masters, str(self._directory), nothing, self._conf, nothing
        )

    def registered(self) -> int:
        """The number of workers that the master has."""
        with urlopen(self._state) as answer:
            return int(json.load(answer)["aliveworkers"])

    def stop(self) -> None:
        """End all that it runs, with their executors."""
        try:
            self._gateway.shutdown()
        finally:
            self._process.stop()

    def _has_begun(self, file: Path) -> bool:
        """Or has ended."""
        return file.exists() or self._process.process.poll() is not None


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
    settings = {
        "executor__cores": "1",
        "executor__memory": "512m",
        "cores__max": str(len(others)),
        "executorEnv__PYTHONPATH": str(ROOT),
    }
    with ExitStack() as stack:
        if not hosts and not environment:
            process = _OneProcess(directory, shared)
            stack.callback(process.stop)
            address = process.start_master(first.address)
            for host in others:
                process.start_worker(host.address, cores, address)
            eventually(process.registered, len(others), deadline_seconds=START_SECONDS)
            yield Cluster(address, settings, directory)
            return
        arguments = [_MASTER, "--host", first.address, "--port", "0", "--webui-port", "0"]
        master = _daemon(arguments, shared, first.enter)
        stack.callback(master.stop)
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        daemons = []
        for host in others:
            options = ["--host", host.address, "--webui-port", "0", "--cores", str(cores)]
            options += ["--memory", f"{_WORKER_MIB}m"]
            own = shared | {"SPARK_LOCAL_IP": host.address}
            daemons.append(_daemon([_WORKER, *options, address], own, host.enter))
            stack.callback(daemons[-1].stop)
        for worker in daemons:
            worker.wait_for("Successfully registered with master")
        yield Cluster(address, settings, directory, daemons)


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
