"""Supervisor: ``--workers N`` runs N servers on one machine, each a process with an event loop of its own.

Guarantee: the supervisor touches no data and listens on no port. A worker that ends by a fault or a signal is started
again on its ports and in its data directory; one that was drained by its action stays away. When the supervisor ends,
in any way, its workers drain.

Shares: worker ``i`` has the ports ``port + i * step`` and ``http_port + i * step`` (free ones for 0), an N-th of the
memory limit and of the disk limit, and the folder ``worker-i`` of the data directory.
A smaller number of workers than before would leave folders unread, so it is refused.

Workers are forked before any of them makes a thread or uses gRPC, so they share the pages of the imported modules.
Between the supervisor and a worker is a socket pair: the worker writes its ready line, the supervisor writes the list
of all workers whenever it changes, and its end is the end of the other side. The workers' numbers, which each shows of
all, are in memory that they share (``Board``): no worker connects to another.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import structlog
from pydantic import ByteSize

from flight_server.config import Settings
from flight_server.host import Board
from flight_server.reporting import POST_SECONDS
from flight_server.server import Server
from flight_server.storage import MARKER_NAME

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
"""Between the end of a worker and its next start; doubled each time, until one has served for the longest pause."""
KILL_SECONDS = 30.0
"""After its grace a worker has so long to stop its parts."""

_ENDING = (signal.SIGTERM, signal.SIGINT)

_log = structlog.get_logger("flight_server.supervisor")
_Ready = dict[str, Any]
Serve = Callable[[Settings, Callable[[Server], None]], int]


def shares(settings: Settings) -> list[Settings]:
    """Each worker's settings. Raises ValueError for a data directory of more workers, or of one server."""
    count = settings.worker_count
    if settings.data_dir is not None:
        _check_data_dir(settings.data_dir, count)
    gap = abs(settings.http_port - settings.port)
    step = gap + 1 if settings.http_port > 0 and gap < count else 1
    return [
        settings.model_copy(
            update={
                "workers": count,
                "port": settings.port and settings.port + number * step,
                "http_port": settings.http_port + number * step
                if settings.http_port > 0
                else settings.http_port,
                "memory_limit": ByteSize(settings.memory_limit // count),
                "disk_limit": settings.disk_limit and ByteSize(settings.disk_limit // count),
                "data_dir": settings.data_dir and settings.data_dir / f"worker-{number}",
                "exit_with_parent": False,
            }
        )
        for number in range(count)
    ]


def _check_data_dir(path: Path, count: int) -> None:
    folders = [folder.name for folder in path.glob("worker-*")]
    numbers = [
        int(name.removeprefix("worker-")) for name in folders if name.removeprefix("worker-").isdigit()
    ]
    if numbers and max(numbers) >= count:
        raise ValueError(
            f"--workers: {path} has data of {max(numbers) + 1} workers, and {count} would not read all of it: start "
            "at least as many, or take another data directory"
        )
    if not numbers and (path / MARKER_NAME).exists():
        raise ValueError(
            f"--workers: {path} is the data directory of one server: start it without --workers, or take another one"
        )


class _Worker:
    """One worker process, or the pause before its next start."""

    def __init__(self, number: int, settings: Settings, board: Board) -> None:
        self.number = number
        self.board = board
        self.settings = settings
        self.ready: _Ready | None = None
        self.location: str | None = None
        """Where it serves, or will serve again; None if it stays away."""
        self.pid: int | None = None
        self.ended: int | None = None
        """Readable when the process has ended."""
        self.socket: socket.socket | None = None
        self.server: Server | None = None
        """In the worker's process."""
        self.starts_at: float | None = 0.0
        """When it is to be started; None while it runs, or if it stays away."""
        self.exit_code = 0
        self._line = b""
        self._began = 0.0
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def start(self, serve: Serve, others: Iterable[_Worker]) -> None:
        """Fork the process. Returns in the supervisor only."""
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        # Until the worker has handlers of its own: the supervisor's would take a signal and do nothing with it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        self.pid = os.fork()
        if self.pid == 0:
            _run_worker(serve, self, theirs, [ours, *(w.socket for w in others if w.socket)])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        theirs.close()
        self.ended = os.pidfd_open(self.pid)
        self.socket, self.starts_at, self._began = ours, None, time.monotonic()

    def read(self) -> bool:
        """Take what the worker has written; whether that has made it ready. Raises EOFError: it writes no more."""
        assert self.socket is not None
        chunk = self.socket.recv(1 << 16)
        if not chunk:
            raise EOFError
        self._line += chunk
        if self.ready is not None or not self._line.endswith(b"\n"):
            return False
        self.ready = json.loads(self._line)
        self.location = self.ready["location"]
        # Its clients know these: a restart must not take others.
        ports = {"port": self.ready["port"], "http_port": self.ready["http_port"]}
        self.settings = self.settings.model_copy(update=ports)
        return True

    def tell(self, locations: list[str]) -> None:
        """Write the list of all workers."""
        if self.socket is not None and self.ready is not None:
            try:
                self.socket.sendall(json.dumps(locations).encode() + b"\n")
            except OSError:
                return  # it has just ended, which its pidfd says

    def signal(self, number: signal.Signals) -> None:
        if self.ended is not None:
            signal.pidfd_send_signal(self.ended, number)

    def end(self) -> bool:
        """The process has ended; whether it is to be started again."""
        assert self.pid is not None
        assert self.ended is not None
        assert self.socket is not None
        self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        served, lasted = self.ready is not None, time.monotonic() - self._began
        os.close(self.ended)
        self.socket.close()
        self.pid = self.ended = self.socket = self.ready = None
        self._line = b""
        self.board.write(self.number, b"")
        if not self.exit_code:
            self.location = None
            return False
        if served and lasted >= LONGEST_PAUSE_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        self.starts_at = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return True


class Supervisor:
    """Starts, watches and drains the workers.

    Args:
        serve: runs one server until it has drained, calls its argument when the server serves, and returns the
            process's exit code.
        announce: called once, when all workers serve, with their ready lines.
    """

    def __init__(self, settings: Settings, serve: Serve, announce: Callable[[list[_Ready]], None]) -> None:
        self._settings = settings
        self._serve = serve
        self._announce = announce
        board = Board(settings.worker_count)
        self._workers = [_Worker(number, share, board) for number, share in enumerate(shares(settings))]
        self._announced = False
        self._drains_until: float | None = None
        self._exit_code = 0
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """The exit code, when all workers have ended: 0, or that of the worker whose first start failed."""
        self._wakes, woken = socket.socketpair()
        woken.settimeout(0.0)
        before = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        for number in _ENDING:
            signal.signal(number, lambda *_: None)  # the wake-up descriptor says which
        self._selector.register(self._wakes, selectors.EVENT_READ, self._drain)
        if self._settings.exit_with_parent:
            try:
                self._selector.register(sys.stdin, selectors.EVENT_READ, self._read_parent)
            except (ValueError, OSError):
                self._drain()  # a file, or none at all, as of a parent that has ended
        try:
            while True:
                timeout = self._start_those_due()
                if all(worker.pid is None and worker.starts_at is None for worker in self._workers):
                    return self._exit_code
                for key, _ in self._selector.select(timeout):
                    key.data()
        finally:
            signal.set_wakeup_fd(before)
            self._wakes.close()
            woken.close()
            self._selector.close()

    def _start_those_due(self) -> float | None:
        """Start the workers whose pause is over; the seconds to the next thing that is due."""
        now, due = time.monotonic(), []
        for worker in self._workers:
            if worker.starts_at is None:
                continue
            if worker.starts_at > now:
                due.append(worker.starts_at - now)
                continue
            worker.start(self._serve, self._workers)
            assert worker.socket is not None
            assert worker.ended is not None
            self._selector.register(worker.socket, selectors.EVENT_READ, lambda w=worker: self._read(w))
            self._selector.register(worker.ended, selectors.EVENT_READ, lambda w=worker: self._ended(w))
        if self._drains_until is not None:
            if now >= self._drains_until:
                self._signal(signal.SIGKILL)
            due.append(max(0.05, self._drains_until - now))
        return min(due, default=None)

    def _read(self, worker: _Worker) -> None:
        if worker.socket is None:
            return  # its end has come in the same answer of the selector, and before
        try:
            became_ready = worker.read()
        except (ConnectionError, EOFError):
            self._selector.unregister(worker.socket)  # readable until the process has ended
            became_ready = False
        if became_ready:
            self._tell()
            ready = [each.ready for each in self._workers if each.ready is not None]
            if not self._announced and len(ready) == len(self._workers):
                self._announced = True
                self._announce(ready)

    def _ended(self, worker: _Worker) -> None:
        for each in (worker.socket, worker.ended):
            assert each is not None
            if each in self._selector.get_map():
                self._selector.unregister(each)
        again = worker.end()
        if self._drains_until is not None:
            worker.starts_at = None
            self._exit_code = self._exit_code or max(0, worker.exit_code)
        elif not self._announced:
            # The worker has said on standard error why it cannot start.
            self._exit_code = worker.exit_code if worker.exit_code > 0 else 1
            worker.starts_at = None
            self._drain()
        elif again:
            assert worker.starts_at is not None
            pause_seconds = round(worker.starts_at - time.monotonic(), 1)
            facts = {
                "worker": worker.number,
                "exit_code": worker.exit_code,
                "restart_in_seconds": pause_seconds,
            }
            _log.error("worker_ended", **facts)
        else:
            self._tell()

    def _tell(self) -> None:
        locations = [each.location for each in self._workers if each.location is not None]
        for worker in self._workers:
            worker.tell(locations)

    def _drain(self) -> None:
        """Drain all workers. Twice is fine."""
        if self._wakes in self._selector.get_map():
            self._selector.unregister(self._wakes)  # a second signal does nothing more
        if self._drains_until is None:
            self._drains_until = time.monotonic() + self._settings.drain_grace_seconds + KILL_SECONDS
            for worker in self._workers:
                worker.starts_at = None
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.signal(number)

    def _read_parent(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._selector.unregister(sys.stdin)
            self._drain()


def _run_worker(
    serve: Serve, worker: _Worker, control: socket.socket, others: list[socket.socket]
) -> NoReturn:
    """Be a worker until its server has drained."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for each in _ENDING:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        # Else a worker would not see the end of the supervisor while another one holds its socket.
        for other in others:
            other.close()
        structlog.contextvars.bind_contextvars(worker=worker.number)
        code = serve(worker.settings, lambda server: _serving(server, worker, control))
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        # The supervisor's stack is below this one: nothing of it may run in the worker.
        sys.stdout.flush()
        sys.stderr.flush()
        if not code and worker.server is not None and worker.server.signalled:
            # It has drained, as after the action ``drain``, whose exit code is 0.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        os._exit(code)


def _serving(server: Server, worker: _Worker, control: socket.socket) -> None:
    """The worker serves: write its ready line, follow what the supervisor says, and let the others see its numbers."""
    worker.server = server
    node, fellows = server.node, server.node.observed.fellows
    fellows.join(worker.board, worker.number)
    node.background.keep(fellows.post, "fellows", every_seconds=POST_SECONDS)
    control.sendall(json.dumps(server.facts()).encode() + b"\n")
    node.background.keep(lambda: _follow(server, control), "supervisor")


async def _follow(server: Server, control: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=control)
    try:
        while line := await reader.readline():
            server.node.locations.servers = json.loads(line)
    except ConnectionError:
        pass  # the supervisor is gone, as at its end
    finally:
        writer.close()
    server.node.drain_requested.set()
