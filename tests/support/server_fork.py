"""Servers of tests are forked from one process that has imported the server: imports are most of a start's time.

Guarantee: a :class:`Forked` behaves as the ``subprocess.Popen`` of ``python -m tests.support.watched_server`` with the
same arguments, environment and pipes, up to the interpreter's own end. Only its command line, and what the interpreter
reads from the environment before it runs a module, are those of the process that is forked from.

This module, run as a program, is that process: one for each process of pytest, until that one ends. It uses no gRPC
itself, which does not work in a fork of a process that has used it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
_REQUEST_BYTES = 1 << 20


class Forked:
    """A server that was forked; has what ``server_process`` uses of ``subprocess.Popen``."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        reads, self.stdin = _pipe()
        self.stdout, writes = _pipe()
        try:
            self.pid = int(_fork().ask([arguments, environment], [reads.fileno(), writes.fileno()]))
        finally:
            reads.close()
            writes.close()
        self.returncode: int | None = None
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended; TimeoutExpired if it has not in time, in seconds."""
        if (code := self._wait(timeout)) is None:
            raise subprocess.TimeoutExpired("flight-server", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing when the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], seconds)[0]:
            with _LOCK:
                if self.returncode is None:
                    self.returncode = int(_fork().ask(self.pid))
                    os.close(self._ended)
        return self.returncode


_LOCK = threading.Lock()


class _Fork:
    """The process that servers are forked from."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                env={
                    name: value for name, value in os.environ.items() if not name.startswith("FLIGHT_SERVER_")
                },
            )

    def ask(self, request: Any, descriptors: list[int] | None = None) -> Any:
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors or [])
            return json.loads(self._control.recv(_REQUEST_BYTES))

    def end(self) -> None:
        self._control.close()
        self._process.wait()


@cache
def _fork() -> _Fork:
    return _Fork()


def end() -> None:
    """End the process that servers are forked from, if there is one."""
    if _fork.cache_info().currsize:
        _fork().end()
        _fork.cache_clear()


def _pipe() -> tuple[IO[str], IO[str]]:
    reads, writes = os.pipe()
    # gRPC's own lines may quote the bytes of a client.
    return os.fdopen(reads, errors="backslashreplace"), os.fdopen(writes, "w")


def main() -> None:
    """Fork a server for each request with descriptors; answer others with the exit code of an ended one."""
    importlib.import_module("flight_server.__main__")
    serve = importlib.import_module("tests.support.watched_server").main
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 2)
        if not request:
            return
        asked = json.loads(request)
        if not descriptors:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        elif not (answer := os.fork()):
            control.close()
            break
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps(answer).encode())
    for source, target in zip(descriptors, ((0,), (1, 2)), strict=True):
        for each in target:
            os.dup2(source, each)
        os.close(source)
    arguments, environment = asked
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["flight-server", *arguments]
    serve()


if __name__ == "__main__":
    main()
