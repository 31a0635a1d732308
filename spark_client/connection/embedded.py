"""Servers on loopback that the driver starts and that end with the driver: one, or the workers of one supervisor.

Guarantee: :func:`start` returns when all of them serve, or raises with their last lines. The process ends by
SIGTERM at :meth:`Embedded.close` and at the interpreter's end (by SIGKILL after ``STOP_SECONDS``), and when the
driver dies in any other way, SIGKILL included: it reads a pipe (``--exit-with-parent``) whose other end the driver
holds. A process that was forked from the driver without ``exec`` holds it, too; the server then ends with the last of
them. Ctrl-C does not reach the server: it has its own session.

It listens on 127.0.0.1: executors on other hosts need a server that all of them reach. It demands a token, because
other users of the machine reach it, too.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from flight_server.protocol import InvalidRequest, Unavailable, errors

PROGRAM = "flight_server"
"""The module that runs a server."""
START_SECONDS = 60.0
STOP_SECONDS = 20.0
_TAIL_LINES = 20
_FOR_ONE = frozenset({"workers", "config", "port", "http_port", "data_dir"})
"""Options of one server, unless they say how many: a port, or a directory that outlives the machine's cores."""
_PATHS = ("config", "data_dir", "host_file_dirs", "source_roots", "tls_cert", "tls_key")
_UNKNOWN = re.compile(r"No such option: ([^│|]*[^│|\s])")
"""What the server's command line says of an option that it does not have, with the nearest ones."""
_ROOT = Path(errors.__file__).resolve().parents[2]
"""The server runs where the packages are, and finds them even if they are not installed."""


class _Log:
    """Reads the server's output; keeps its ready line and its last lines."""

    def __init__(self, stream: IO[str]) -> None:
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self.ready: dict[str, Any] = {}
        self.decided = threading.Event()
        self._stream = stream

    def read(self) -> None:
        """Read to the end, also after the ready line: the server would block on a full pipe."""
        try:
            for line in self._stream:
                self.tail.append(line.rstrip())
                if not self.ready and (ready := ready_line(line)):
                    self.ready = ready
                    self.decided.set()
        except ValueError:
            pass  # ``close`` has closed the pipe
        finally:
            self.decided.set()


class Embedded:
    """A running process, of a server or of a supervisor with its workers, ended by :meth:`close`, the interpreter's
    end, or the collection of this object.

    A collector must not wait: then the server gets a SIGTERM, and the thread that reads its output waits for its end.
    """

    def __init__(self, process: subprocess.Popen[str], token: str) -> None:
        assert process.stdout is not None
        self.token = token
        self._process = process
        self._log = _Log(process.stdout)
        # Thread and finalizer must not refer to this object: it could never be collected.
        self._reader = threading.Thread(
            target=_read, args=(self._log, process), name="embedded-server-log", daemon=True
        )
        self._reader.start()
        weakref.finalize(self, process.terminate).atexit = False
        _running.add(self)

    @property
    def location(self) -> str:
        """The first one."""
        return self.locations[0]

    @property
    def locations(self) -> list[str]:
        """Of all workers."""
        return list(self._log.ready["locations"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the server and wait for its end. Twice is fine."""
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._reader.join(1.0)
        _close_pipes(process)
        _running.discard(self)

    def wait_until_ready(self) -> None:
        """Return when the server serves; raise as :func:`start` if it ends, or after ``START_SECONDS``."""
        log = self._log
        if not log.decided.wait(START_SECONDS):
            raise Unavailable(f"the embedded server was not ready within {START_SECONDS:g} s; {log.tail}")
        if not log.ready:
            code = self._process.wait(STOP_SECONDS)
            last = " | ".join(log.tail) or "nothing"
            if (option := _UNKNOWN.search(last)) is not None:
                raise InvalidRequest(
                    f"the server has no option {option[1]}; flight-server --help lists those there are, which have "
                    "underscores here"
                )
            raise Unavailable(f"the embedded server ended with code {code}; it wrote last: {last}")


def start(**options: Any) -> Embedded:
    """Start a server, or with ``workers`` several; they serve when this returns.

    Args:
        options: the server's options, with underscores: ``memory_limit="2GiB"`` becomes ``--memory-limit 2GiB``,
            ``True`` a bare flag, a list the flag several times; None and False leave it out. ``token`` is a random one
            by default, and is passed in the environment, because other users of the machine could read a command line.
            ``workers`` is by default what ``FLIGHT_SERVER_WORKERS`` or ``config`` says, else one for each four cores
            (the server's setting says more); with ``port``, ``http_port`` or ``data_dir`` one.

    Raises:
        InvalidRequest: the server has no such option; the message names the nearest.
        Unavailable: it did not start; the message has its last lines.
    """
    given = {"host": "127.0.0.1", "port": 0, "http_port": 0, "log_format": "json", "exit_with_parent": True}
    token = str(options.pop("token", None) or secrets.token_urlsafe(32))
    # Below the environment and above nothing: a flag would win over what the user has set there.
    workers = {} if options.keys() & _FOR_ONE else {"FLIGHT_SERVER_WORKERS": "0"}
    # As wide as that: what the command line refuses stands in one line.
    told = {"FLIGHT_SERVER_TOKEN": token, "COLUMNS": "1000"}
    process = subprocess.Popen(  # noqa: S603 - our own module with the caller's own options
        [sys.executable, "-m", PROGRAM, *flags(given | options)],
        cwd=_ROOT,
        env={**workers, **os.environ, **told},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    embedded = Embedded(process, token)
    try:
        embedded.wait_until_ready()
    except BaseException:
        embedded.close()
        raise
    return embedded


def flags(options: Mapping[str, Any]) -> list[str]:
    """The command line of a server with these options; see :func:`start`."""
    found: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            found.append(flag)
        elif value is not None and value is not False:
            for each in value if isinstance(value, list | tuple) else [value]:
                # Paths are relative to this process, and the server runs in another directory.
                found += [flag, str(Path(each).resolve() if name in _PATHS else each)]
    return found


def ready_line(line: str) -> dict[str, Any]:
    """What the line says of a server that is ready; empty if it is another one."""
    try:
        body = json.loads(line)
    except ValueError:
        return {}
    return body if isinstance(body, dict) and body.get("event") == "ready" else {}


_running: weakref.WeakSet[Embedded] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_running):
        each.close()


def _read(log: _Log, process: subprocess.Popen[str]) -> None:
    log.read()
    process.wait()
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
