"""A real server in a process of its own, for tests, benchmarks and the demo.

Guarantee: after ``start`` the server serves at ``location``; after ``close`` its process is gone and every
line that it wrote is in ``log``. Nothing here sleeps or guesses a port: the server picks free ones and says
them in its ready line. From its end, which a method here waits for, until ``close`` no other process is given them: a
client of the ended server meets none, and one that is started at its addresses has them. Each wait has a deadline, and
the error of a missed one shows the log.

Variables ``FLIGHT_SERVER_*`` of the surrounding environment are not handed on, so that a run does not depend
on the shell that it was started from.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from spark_client.connection import Closable

from .processes import cpu_seconds, status_bytes
from .server_fork import DISK, Forked
from .watched_server import DIRECTORY

WATCHED = "tests.support.watched_server"
ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_SECONDS = 120.0
STOP_DEADLINE_SECONDS = 60.0
COMMAND: Sequence[str | Path] | None = None
"""What starts every server, in place of :func:`program`."""

Option = str | int | float | bool | Path | None


class ServerProcess(Closable):
    """A running ``flight-server``; also a context manager that closes it."""

    def __init__(self, process: subprocess.Popen[str] | Forked) -> None:
        self.process = process
        self.log: list[str] = []
        self._ready: dict[str, Any] = {}
        self._ready_or_ended = threading.Event()
        self._ports: list[socket.socket] = []
        self._reader = threading.Thread(target=self._read, name=f"server-log-{process.pid}", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        *arguments: str,
        environment: dict[str, str] | None = None,
        command: Sequence[str | Path] | None = None,
        directory: Path = ROOT,
        disk: str | None = None,
        **options: Option,
    ) -> Self:
        """Start a server and return once it serves.

        ``memory_limit="64MiB"`` becomes ``--memory-limit 64MiB``, ``True`` a bare flag; ``None`` and
        ``False`` leave the option out. ``port`` and ``http_port`` are any free ones unless they are given.
        ``command``, in place of ``COMMAND``, and ``directory`` are for a server that is installed elsewhere. Without
        them the server's event loop is watched in tests (``watched_server``), and without an ``environment`` of its
        own the process is a fork (``server_fork``), which may have a faulty ``disk`` (``faulty_disk``).
        Raises RuntimeError with the log when the server ends, or is not ready in time.
        """
        given = {"port": 0, "http_port": 0, "log_format": "json", "exit_with_parent": True, **options}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLIGHT_SERVER_")}
        # The server ends with its input, which is held open here: it must not outlive a test run that was killed.
        is_usual = (command or COMMAND or environment) is None and program() == WATCHED and directory == ROOT
        if disk is not None:
            server = cls(Forked([*flags(given), *arguments], inherited | {DISK: disk}))
        elif is_usual:
            server = cls(Forked([*flags(given), *arguments], inherited))
        else:
            server = cls(
                subprocess.Popen(
                    [*(command or COMMAND or (sys.executable, "-m", program())), *flags(given), *arguments],
                    cwd=directory,
                    env={**inherited, "PYTHONUNBUFFERED": "1", **(environment or {})},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="backslashreplace",
                )
            )
        try:
            server._wait_until_ready()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def ready(self) -> dict[str, Any]:
        """The ready line, parsed."""
        return self._ready

    @property
    def location(self) -> str:
        """The gRPC lane's address, ``grpc://127.0.0.1:PORT``; of several workers all, with commas between."""
        return ",".join(self._ready["locations"])

    @property
    def http(self) -> str | None:
        """The bulk lane's address, ``http://127.0.0.1:PORT``; None when the server has none."""
        return self._ready.get("http")

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self.process.poll()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log's JSON lines whose ``event`` is ``name``."""
        parsed = (_parse(line) for line in self.log)
        return [line for line in parsed if line.get("event") == name]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing when the process has ended."""
        self.process.send_signal(number)

    def terminate(self) -> int:
        """Ask for a clean end with SIGTERM, wait for it and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """End the process with SIGKILL, wait for it and return the exit code, which is -9."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def restart(self, **options: Any) -> ServerProcess:
        """End it with SIGKILL; a new one, with these options and no other, that serves at the same addresses."""
        self.kill()
        port, http_port = (urlsplit(address).port for address in (self.location, self.http or ""))
        try:
            return ServerProcess.start(port=port, http_port=http_port, **options)
        finally:
            self.close()

    def wait(self, deadline_seconds: float = STOP_DEADLINE_SECONDS) -> int:
        """Wait for the end, and for the log to be complete; return the exit code."""
        try:
            code = self.process.wait(deadline_seconds)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"the server did not end within {deadline_seconds} s:\n{self.tail()}"
            ) from error
        # A child that outlived the server could hold the pipe open: that is a leak, and must not hang here.
        self._reader.join(STOP_DEADLINE_SECONDS)
        if not self._ports:
            self._keep_ports()
        return code

    def close(self) -> None:
        """Make sure that the process is gone, by force if need be; may be called twice."""
        if self.returncode is None:
            self.process.kill()
        self.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        for port in self._ports:
            port.close()

    def rss_bytes(self) -> int:
        """Return the resident size now."""
        return status_bytes(self.pid, "VmRSS")

    def peak_rss_bytes(self) -> int:
        """Return the largest resident size so far, as the kernel saw it."""
        return status_bytes(self.pid, "VmHWM")

    def cpu_seconds(self) -> float:
        """Return the user and system time spent so far, over all threads."""
        return cpu_seconds(self.pid)

    def tail(self, lines: int = 50) -> str:
        """Return the end of the log."""
        return "\n".join(self.log[-lines:])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))
            if not self._ready_or_ended.is_set() and (parsed := _parse(line)).get("event") == "ready":
                self._ready = parsed
                self._ready_or_ended.set()
        self._ready_or_ended.set()

    def _keep_ports(self) -> None:
        for address in (*self._ready.get("locations", ()), self.http or ""):
            port = socket.socket()
            self._ports.append(port)
            # As servers do: one of them may be bound beside this socket, which does not listen.
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # in the meantime another process has got it, or the server started again
                port.bind(("", urlsplit(address).port or 0))

    def _wait_until_ready(self) -> None:
        if not self._ready_or_ended.wait(START_DEADLINE_SECONDS):
            raise RuntimeError(f"the server was not ready within {START_DEADLINE_SECONDS} s:\n{self.tail()}")
        if not self._ready:
            raise RuntimeError(f"the server ended with {self.wait()} instead of serving:\n{self.tail()}")


def program() -> str:
    """The module that runs a server: in tests the one that watches its event loop."""
    return WATCHED if DIRECTORY in os.environ else "flight_server"


def flags(options: dict[str, Option]) -> list[str]:
    """The arguments of ``flight-server`` for these options, see :meth:`ServerProcess.start`."""
    flags: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags += [flag, str(value)]
    return flags


def _parse(line: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
