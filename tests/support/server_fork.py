"""Servers of tests are forked from one process that has imported the server: imports are most of a start's time.

Guarantee: a :class:`Forked` behaves as the ``subprocess.Popen`` of ``python -m tests.support.watched_server`` with the
same arguments, environment and pipes, up to the interpreter's own end. Only its command line, and what the interpreter
reads from the environment before it runs a module, are those of the process that is forked from.

This module, run as a program, is that process: one for a run of pytest. Each process of tests has a fork of it, whose
children are the servers. It uses no gRPC itself, which does not work in a fork of a process that has used it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "SERVER_FORK"
"""The variable with where the process listens that servers of a whole run are forked from."""
DISK = "FAULTY_DISK"
"""The variable with what ``faulty_disk.install`` is called with, as JSON."""
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
    """The process that servers of this one are forked from: a fork itself, which ends with its connection."""

    def __init__(self, address: str) -> None:
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.connect(f"\0{address}")
        self._lock = threading.Lock()
        self.pid = int(self._control.recv(_REQUEST_BYTES))

    def ask(self, request: Any, descriptors: list[int] | None = None) -> Any:
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors or [])
            return json.loads(self._control.recv(_REQUEST_BYTES))

    def close(self) -> None:
        self._control.close()


@cache
def _root() -> tuple[str, subprocess.Popen[bytes]]:
    """The process that imports the server: its address and itself."""
    address = f"server-fork-{uuid.uuid4()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{address}")
    listener.listen()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLIGHT_SERVER_")}
    with listener:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno())],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            env=environment,
        )
    return address, process


@cache
def _fork() -> _Fork:
    return _Fork(os.environ.get(ADDRESS) or _root()[0])


def share() -> None:
    """Have processes that are started from now on fork their servers from this one's, which imports meanwhile."""
    os.environ[ADDRESS] = _root()[0]


def pid() -> int | None:
    """The process whose children are the servers; None if there was none."""
    return _fork().pid if _fork.cache_info().currsize else None


def end() -> None:
    """End the processes that servers are forked from, if there are any."""
    if _fork.cache_info().currsize:
        _fork().close()
        _fork.cache_clear()
    if _root.cache_info().currsize:
        _, process = _root()
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        _root.cache_clear()
        os.environ.pop(ADDRESS, None)


def _pipe() -> tuple[IO[str], IO[str]]:
    reads, writes = os.pipe()
    # gRPC's own lines may quote the bytes of a client.
    return os.fdopen(reads, errors="backslashreplace"), os.fdopen(writes, "w")


def main() -> None:
    """Fork a process for each connection, until there is no more input."""
    _prepare()
    listener = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        control, _ = listener.accept()
        if not os.fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve(control)
            return
        control.close()


def _prepare() -> None:
    """Do once what takes most of each server's start: the imports, the parser of the options, a collection of all."""
    command = importlib.import_module("flight_server.__main__")
    importlib.import_module("tests.support.watched_server")
    typers: Any = importlib.import_module("typer.main")
    app = typers.Typer(add_completion=False)
    app.command()(command.serve)
    parser = typers.get_command(app)
    parser.make_context("flight-server", [], resilient_parsing=True)
    typers.get_command = lambda _: parser
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket) -> None:
    """Fork a server for each request with descriptors; answer others with the exit code of an ended one."""
    control.send(str(os.getpid()).encode())
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
    if disk := os.environ.pop(DISK, None):
        importlib.import_module("tests.support.faulty_disk").install(**json.loads(disk))
    sys.argv = ["flight-server", *arguments]
    try:
        importlib.import_module("tests.support.watched_server").main()
    except SystemExit as end:
        # What the interpreter's own end does, but to free all objects, which takes as long as a start and a stop.
        vars(threading)["_shutdown"]()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


if __name__ == "__main__":
    main()
