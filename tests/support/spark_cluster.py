"""A real standalone Spark cluster on loopback, from pip's PySpark: one master, some workers, all bounded.

Guarantee: after ``standalone_cluster`` is entered the workers are registered and take executors; after it is left
none of its processes runs. Workers keep their files in the given directory. Each wait has a deadline, and the
error of a missed one shows the log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 20.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class Cluster:
    """The address to give to ``SparkSession.builder.master``, and the settings that executors need."""

    master: str
    settings: dict[str, str]


class _Daemon:
    """One JVM of the cluster and what it logs."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self.log: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            env=os.environ | environment | {"SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A group of its own: a worker's executors, and their Python processes, end with it.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line of the log that matches."""
        deadline = time.monotonic() + START_SECONDS
        with self._changed:
            while True:
                for line in self.log:
                    if found := re.search(pattern, line):
                        return found
                left = deadline - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    raise RuntimeError(f"no {pattern!r} in the log:\n" + "\n".join(self.log[-30:]))
                self._changed.wait(min(left, 0.5))

    def stop(self) -> None:
        """End it and all that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(STOP_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.log.append(line.rstrip())
                self._changed.notify_all()


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
    daemons: list[_Daemon] = []
    try:
        master = _Daemon([_MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"], environment)
        daemons.append(master)
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        page = master.wait_for(r"MasterWebUI.*started at (http://\S+)|MasterWebUI.* to .*(http://\S+)")
        for number in range(workers):
            # Each has an address of its own: Spark does not run two attempts of a task on one host.
            host = f"127.0.0.{number + 1}"
            options = ["--host", host, "--webui-port", "0", "--cores", str(cores), "--memory", "1g"]
            daemons.append(_Daemon([_WORKER, *options, address], environment | {"SPARK_LOCAL_IP": host}))
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
