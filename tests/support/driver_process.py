"""A Spark driver as a process of its own, which tests can interrupt and kill, and the processes that it started.

``start`` runs a function of an importable module in a fresh interpreter; ``say`` and ``wait_for`` carry values out of
it. The driver, its JVM, its executors and their Python workers all have a variable of their own in their environment:
by it ``running`` finds them, whoever their parents are.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.logged_process import LoggedProcess
from tests.support.spark_cluster import Host
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
_MARK = "FLIGHT_SHUFFLE_TESTED_DRIVER"
_SAID = "said: "


class DriverProcess:
    """A running driver; also a context manager that ends it."""

    def __init__(self, main: Callable[..., None], *arguments: Any, host: Host | None = None) -> None:
        """``host`` None is this one."""
        self._mark = uuid.uuid4().hex
        host = host or Host(os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))
        command = [*host.enter, sys.executable, "-m", "tests.support.driver_process"]
        command += [main.__module__, main.__name__, json.dumps(arguments)]
        environment = {_MARK: self._mark, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._logged = LoggedProcess(command, environment | {"SPARK_LOCAL_IP": host.address})

    def wait_for(self, word: str) -> Any:
        """The value that the driver has said with this word."""
        line = self._logged.wait_for(f"^{_SAID}{re.escape(word)} ").string
        return json.loads(line.removeprefix(f"{_SAID}{word} "))

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: SIGINT to the driver and to all processes of its group."""
        os.killpg(self._logged.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the driver alone."""
        self._logged.process.kill()
        self._logged.process.wait()

    def wait(self) -> int:
        """Wait for the driver's end; its exit code."""
        return self._logged.process.wait(120)

    def running(self) -> list[str]:
        """The commands of the processes that the driver has started, on any executor, and that still run."""
        wanted = f"{_MARK}={self._mark}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
            except OSError:  # it has ended, or is another user's
                continue
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._logged.stop()


def say(word: str, value: Any) -> None:
    """In the driver: hand a value to ``DriverProcess.wait_for``."""
    print(f"{_SAID}{word} {json.dumps(value)}", flush=True)


@contextmanager
def session(master: str, settings: dict[str, str]) -> Iterator[SparkSession]:
    """In the driver: its session, whose executors have its mark."""
    mark = {f"executorEnv__{_MARK}": os.environ[_MARK]}
    with local_session(master, **(settings | mark)) as found:
        yield found


if __name__ == "__main__":
    module, name, given = sys.argv[1:]
    getattr(importlib.import_module(module), name)(*json.loads(given))
