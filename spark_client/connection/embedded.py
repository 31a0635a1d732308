"""Servers on loopback that the driver starts and that end with the driver: one, or the workers of one supervisor.

Guarantee: :func:`start` returns when all of them serve, or raises with their last lines (:func:`serving`, which also
waits for the servers of executors). The process ends by
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
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flight_server.protocol import InvalidRequest, Unavailable, errors

PROGRAM = "flight_server"
"""The module that runs a server."""
START_SECONDS = 60.0
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.01
_TAIL_LINES = 20
_REFUSES_SETTINGS = 2
"""The exit code of a server whose command line, environment or file has a wrong setting."""
_FOR_ONE = frozenset({"workers", "config", "port", "http_port", "data_dir"})
"""Options of one server, unless they say how many: a port, or a directory that outlives the machine's cores."""
_PATHS = ("config", "data_dir", "host_file_dirs", "source_roots", "tls_cert", "tls_key")
PLAIN = {"TYPER_USE_RICH": "0"}
"""In the environment of a server: its errors are lines without frames."""
_ROOT = Path(errors.__file__).resolve().parents[2]
"""The server runs where the packages are, and finds them even if they are not installed."""


class Embedded:
    """A running process, of a server or of a supervisor with its workers, ended by :meth:`close`, the interpreter's
    end, or the collection of this object.

    A collector must not wait: then the server gets a SIGTERM, and the thread that reads its output waits for its end.
    """

    def __init__(self, process: subprocess.Popen[str], token: str) -> None:
        self.token = token
        self.locations: Sequence[str] = ()
        """Of all workers, when it serves."""
        self._process = process
        # Thread and finalizer must not refer to this object: it could never be collected.
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._ready: list[str] = []
        self._reader = threading.Thread(
            target=_read, args=(process, self._ready, self._tail), name="embedded-server-log", daemon=True
        )
        self._reader.start()
        weakref.finalize(self, process.terminate).atexit = False
        _running.add(self)

    @property
    def location(self) -> str:
        return self.locations[0]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

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
        """Raises as :func:`serving`."""

        def lines() -> list[str]:
            if self._process.poll() is not None:
                self._reader.join(STOP_SECONDS)
            return [*self._ready, *self._tail]

        self.locations = serving(self._process, lines, "the embedded server")


def serving(process: subprocess.Popen[Any], lines: Callable[[], list[str]], server: str) -> tuple[str, ...]:
    """Wait until a server that was started serves. The locations of all its workers.

    Args:
        lines: gives what it has written, its ready line and the last lines at least.
        server: what errors call it.

    Raises:
        InvalidRequest: it does not take its settings; the message has its own words.
        Unavailable: it has ended, or does not serve within ``START_SECONDS``; likewise, with its last lines.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        code, is_late = process.poll(), time.monotonic() > deadline
        written = lines()
        if ready := next(filter(None, map(_ready_line, written)), None):
            return tuple(ready["locations"])
        if code is not None or is_late:
            break
        time.sleep(_POLL_SECONDS)
    last = " | ".join(filter(None, written[-_TAIL_LINES:])) or "nothing"
    if code == _REFUSES_SETTINGS:
        raise InvalidRequest(
            f"{server} refuses its settings; it wrote: {last}; flight-server --help lists those there are, which have "
            "underscores here"
        )
    end = f"was not ready within {START_SECONDS:g} s" if code is None else f"ended with code {code}"
    raise Unavailable(f"{server} {end}; it wrote last: {last}")


def start(meanwhile: Callable[[], None] = lambda: None, **options: Any) -> Embedded:
    """Start a server, or with ``workers`` several; they serve when this returns.

    Args:
        meanwhile: is called while they start.
        options: the server's options, with underscores: ``memory_limit="2GiB"`` becomes ``--memory-limit 2GiB``,
            ``True`` a bare flag, a list the flag several times; None and False leave it out. ``token`` is a random one
            by default, and is passed in the environment, because other users of the machine could read a command line.
            ``workers`` is by default what ``FLIGHT_SERVER_WORKERS`` or ``config`` says, else one for each four cores
            (the server's setting says more); with ``port``, ``http_port`` or ``data_dir`` one.

    Raises:
        InvalidRequest, Unavailable: as :func:`serving`.
    """
    defaults = {
        "host": "127.0.0.1",
        "port": 0,
        "http_port": 0,
        "log_format": "json",
        "exit_with_parent": True,
    }
    token = str(options.pop("token", None) or secrets.token_urlsafe(32))
    # Below the environment and above nothing: a flag would win over what the user has set there.
    workers = {} if options.keys() & _FOR_ONE else {"FLIGHT_SERVER_WORKERS": "0"}
    process = subprocess.Popen(  # noqa: S603 - our own module with the caller's own options
        [sys.executable, "-m", PROGRAM, *flags(defaults | options)],
        cwd=_ROOT,
        env={**workers, **os.environ, **PLAIN, "FLIGHT_SERVER_TOKEN": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    embedded = Embedded(process, token)
    try:
        meanwhile()
        embedded.wait_until_ready()
    except BaseException:
        embedded.close()
        raise
    return embedded


def flags(options: Mapping[str, Any]) -> list[str]:
    """The command line of a server with these options; see :func:`start`."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            for each in value if isinstance(value, list | tuple) else [value]:
                # Paths are relative to this process, and the server runs in another directory.
                words += [flag, str(Path(each).resolve() if name in _PATHS else each)]
    return words


def _ready_line(line: str) -> dict[str, Any]:
    """The facts of a server that is ready; empty if the line is another one."""
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


def _read(process: subprocess.Popen[str], ready: list[str], tail: collections.deque[str]) -> None:
    """Read what the server writes to its end, also after the ready line: it would block on a full pipe."""
    assert process.stdout is not None
    with suppress(ValueError):  # ``close`` has closed the pipe
        for line in process.stdout:
            if not ready and _ready_line(line):
                ready.append(line)
            tail.append(line.rstrip())
    process.wait()
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
