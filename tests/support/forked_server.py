"""Real servers in processes that are forked from one that has imported the server: for tests that start hundreds.

Guarantee: as ``server_process``, but a start takes a tenth of the time, most of which is imports. The log is in a
file. In tests the servers' event loops are watched (``watched_server``).

This module, run as a program, is the process that is forked from. It uses no gRPC itself, which does not work in a fork
of a process that has used it. It reads requests as lines of JSON, ``["start", log, disk, settings]`` and
``["poll", pid]``, and answers with a pid, an exit code or null. It and its servers end with its standard input.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .faulty_disk import DiskOrders, FaultyDisk
from .server_process import flags, program

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_SECONDS = 120.0
STOP_DEADLINE_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


class ServerFork:
    """The process that servers are forked from; also a context manager that ends it and them. Thread-safe."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FLIGHT_SERVER_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_server"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def start(
        self,
        log: Path,
        *,
        control: Path | None = None,
        store: Path | None = None,
        disk_seconds: float = 0.0,
        **settings: Any,
    ) -> ForkedServer:
        """Start a server and return once it serves.

        Args:
            log: the file of its log.
            control: for orders to its disk, which are ``ForkedServer.disk``.
            store: of its ``platter``: where what it has synced is noted.
            disk_seconds: how long the disk takes at most, in three of ten cases, for an fsync, a rename or a removal,
                and with ``control`` a sync of SQLite: what comes in between is then seen more often.
            settings: of ``flight_server.config``, such as ``memory_limit``; ports are any free ones.

        Raises:
            RuntimeError: it has ended, or is not ready in time; with its log.
        """
        log.unlink(missing_ok=True)
        given: dict[str, Any] = {"port": 0, "http_port": 0, "log_format": "json", **settings}
        orders = None if control is None else DiskOrders(control)
        disk = {"control": control, "store": store, "seconds": disk_seconds}
        server = ForkedServer(self, self.ask("start", str(log), disk, given), log, orders)
        server.wait_until_ready()
        return server

    def ask(self, *request: Any) -> Any:
        """The answer to a request."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request, default=str) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=STOP_DEADLINE_SECONDS)


class ForkedServer:
    """A running server."""

    def __init__(self, fork: ServerFork, pid: int, log: Path, disk: DiskOrders | None) -> None:
        self.pid = pid
        self._disk = disk
        self._fork = fork
        self._log = log
        self._returncode: int | None = None
        self._ready: dict[str, Any] = {}

    def wait_until_ready(self) -> None:
        """Raise RuntimeError if it is not in time."""
        deadline = time.monotonic() + START_DEADLINE_SECONDS
        while not (ready := self.events("ready")):
            if self.returncode is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(
                    f"the server ended with {self.returncode} instead of serving:\n{self.tail()}"
                )
            time.sleep(0.01)
        (self._ready,) = ready

    @property
    def disk(self) -> DiskOrders:
        """Orders to the disk of a server that was started with ``control``."""
        assert self._disk is not None
        return self._disk

    @property
    def ready(self) -> dict[str, Any]:
        """The fields of its ready line."""
        return self._ready

    def peak_rss_bytes(self) -> int:
        """The largest resident size so far, as the kernel saw it."""
        (line,) = re.findall(
            r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE
        )
        return int(line) * 1024

    @property
    def location(self) -> str:
        """The gRPC lane's address."""
        return str(self._ready["location"])

    @property
    def http(self) -> str:
        """The bulk lane's address."""
        return str(self._ready["http"])

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self._returncode is None:
            self._returncode = self._fork.ask("poll", self.pid)
        return self._returncode

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's JSON lines whose ``event`` is ``name``."""
        lines = [json.loads(line) for line in self._lines() if f'"{name}"' in line and line.endswith("}")]
        return [line for line in lines if line.get("event") == name]

    def tail(self, lines: int = 50) -> str:
        """The end of the log."""
        return "\n".join(self._lines()[-lines:])

    def kill(self) -> None:
        """End the process with SIGKILL and wait for it."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask for a clean end and wait for it; the exit code. RuntimeError if it does not end."""
        return self._end(signal.SIGTERM)

    def close(self) -> None:
        """Make sure that the process is gone. Twice is fine."""
        self.kill()

    def _end(self, number: signal.Signals) -> int:
        if self.returncode is None:
            os.kill(self.pid, number)
        deadline = time.monotonic() + STOP_DEADLINE_SECONDS
        while (code := self.returncode) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server did not end within {STOP_DEADLINE_SECONDS} s:\n{self.tail()}")
            time.sleep(0.005)
        return code

    def _lines(self) -> list[str]:
        try:
            return self._log.read_text().split("\n")
        except FileNotFoundError:
            return []


def main() -> None:
    """Fork a server for each request."""
    command = importlib.import_module("flight_server.__main__")
    serve = command.main if program() == "flight_server" else importlib.import_module(program()).main
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        if verb == "start":
            answer: int | None = _start(serve, *arguments)
        else:
            pid, status = os.waitpid(arguments[0], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)


def _pause(disk_seconds: float) -> None:
    # Not in the event loop's thread, which calls none of these after the start.
    if threading.current_thread() is not threading.main_thread() and random.random() < 0.3:
        time.sleep(random.uniform(0, disk_seconds))


def _slow(disk_seconds: float) -> None:
    def slowly(work: Callable[..., Any]) -> Callable[..., Any]:
        def late(*arguments: Any, **more: Any) -> Any:
            _pause(disk_seconds)
            return work(*arguments, **more)

        return late

    for name in ("fsync", "rename", "unlink"):
        setattr(os, name, slowly(getattr(os, name)))


def _start(serve: Any, log: str, disk: dict[str, Any], settings: dict[str, Any]) -> int:
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before that
            os._exit(code)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        if disk["seconds"]:
            _slow(disk["seconds"])
        if disk["control"] is not None:
            store = None if disk["store"] is None else Path(disk["store"])
            pause = partial(_pause, disk["seconds"])
            FaultyDisk(Path(settings["data_dir"]), Path(disk["control"]), store, pause).install()
        sys.argv = ["flight-server", *flags(settings)]
        serve()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - the log must have it, whatever it is
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
