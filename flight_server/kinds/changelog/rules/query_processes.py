"""QueryProcesses: the processes in which users' queries run, beside the server's own.

Guarantee: a query that takes too long or too much ends, at its limits, with its process and without harm to the server;
there are as many processes as there are queries at the same time (the callers bound that), none before the first query,
and none of them outlives the server (:mod:`flight_server.kinds.changelog.rules.query_program`).

Use
    A call takes an idle process, or starts one, and gives it back. A process that was short of memory, or that was
    killed at its deadline, is not used again. A query that fails for want of memory in a process that has answered
    before is tried again in a fresh one, because the memory of earlier queries counts towards the limit. ``end_idle``
    ends processes that were not used for ``IDLE_SECONDS``.

Any thread may call, but a thread that calls must live as long as this object: a process ends with the thread that
started it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa

import flight_server
from flight_server.protocol import FlightShuffleError, KeepRule, OutOfBudget, Unavailable

from .query_errors import DEFAULT_LIMITS, QueryLimits, ended, too_slow
from .query_messages import Work, receive_answer, send_request
from .ranked import Kept

PROGRAM = "flight_server.kinds.changelog.rules.query_program"
START_SECONDS = 60.0
IDLE_SECONDS = 60.0
_ROOT = Path(flight_server.__file__).resolve().parents[1]  # where Python finds the program, installed or not


class _Process:
    """One process; for one thread at a time. Raises Unavailable if it cannot be started."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self.fresh = True
        self.used = 0.0
        # Imported here, in a thread: a server without such rules needs it nowhere.
        from multiprocessing.connection import Pipe  # noqa: PLC0415  # as said above

        self._connection, theirs = Pipe()
        numbers = (theirs.fileno(), os.getpid(), limits.memory_limit_bytes)
        numbers_too = (limits.duckdb_share, limits.deadline_seconds)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  # our own module
                    [sys.executable, "-m", PROGRAM, *map(str, numbers), *map(str, numbers_too)],
                    cwd=_ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            self._connection.close()
            raise Unavailable(
                f"the server cannot start a process for a rule's query: {error}; raise its limit of processes"
            ) from None
        if not self._is_ready():
            self.end()
            raise Unavailable(
                f"a process for a rule's query did not start within {START_SECONDS:g} s, or ended; the server's log "
                "says why"
            )

    def _is_ready(self) -> bool:
        try:
            return self._connection.poll(START_SECONDS) and bool(self._connection.recv_bytes())
        except (EOFError, OSError):
            return False

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask(self, work: Work, spec: KeepRule, schema: pa.Schema, rows: Kept) -> Kept:
        """The answer. Raises the error that it is; OutOfBudget if the process ended, too; Unavailable at the deadline.
        Then it is to be ended.
        """
        assert spec.query is not None
        try:
            send_request(self._connection, work, spec, schema, rows)
            if not self._connection.poll(self._limits.deadline_seconds):
                raise too_slow(spec.query, self._limits)
            return receive_answer(self._connection, schema)
        except (EOFError, OSError):
            raise ended(spec.query, self._limits, self._process.wait()) from None

    def kill(self) -> None:
        """Let its caller find that it has ended. Any thread may do it, twice too."""
        self._process.kill()

    def end(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


class QueryProcesses:
    """The processes of one server; ``close`` at the end."""

    def __init__(self, limits: QueryLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._idle: list[_Process] = []  # the one that was used last is the last
        self._busy: set[_Process] = set()
        self._closed = False

    def __len__(self) -> int:
        with self._lock:
            return len(self._idle) + len(self._busy)

    def ask(self, work: Work, spec: KeepRule, schema: pa.Schema, rows: Kept) -> Kept:
        """The result of the work on these rows; see ``query_messages``. Blocks.

        Raises:
            InvalidRequest: the query is not to be run, or fails on the rows, or is not idempotent.
            OutOfBudget: it needs more memory than there is.
            Unavailable: it has passed its deadline; no process can be started; or this object is closed.
        """
        while True:
            process = self._taken()
            try:
                answer = process.ask(work, spec, schema, rows)
            except OutOfBudget:
                self._ended(process)
                self._check_open()
                if process.fresh:
                    raise
            except Unavailable:
                self._ended(process)
                raise
            except FlightShuffleError:
                self._give_back(process)
                raise
            except BaseException:
                self._ended(process)
                raise
            else:
                self._give_back(process)
                return answer

    def end_idle(self, now: float) -> None:
        """End those that were not used for ``IDLE_SECONDS``, at a time of the monotonic clock."""
        with self._lock:
            old = [each for each in self._idle if now - each.used > IDLE_SECONDS or not each.running]
            self._idle = [each for each in self._idle if each not in old]
        for process in old:
            process.end()

    def close(self) -> None:
        """End all of them, also those that work: their callers get an error. Twice is fine."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._busy:
                process.kill()
        for process in idle:
            process.end()

    def _taken(self) -> _Process:
        with self._lock:
            self._check_open()
            if self._idle:
                process = self._idle.pop()
                self._busy.add(process)
                return process
        process = _Process(self.limits)
        with self._lock:
            self._busy.add(process)
            if self._closed:
                process.kill()
        return process

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the server goes down and runs no query of a rule any more; ask again")

    def _give_back(self, process: _Process) -> None:
        process.fresh, process.used = False, time.monotonic()
        with self._lock:
            self._busy.discard(process)
            if not self._closed:
                self._idle.append(process)
                return
        process.end()

    def _ended(self, process: _Process) -> None:
        with self._lock:
            self._busy.discard(process)
        process.end()
