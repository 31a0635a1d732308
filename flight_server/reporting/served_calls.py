"""Calls: what the log says of each call that is refused or fails, on either lane.

Guarantee: one line for each such call, ``call_failed``, with all that is known of it: lane, operation, peer, principal,
dataset, partition, producer, attempt, the error's code and its text. A bug's line is ``internal_error``, with the id
that the client gets, and its traceback. No line has a token: no error's text has one, and headers are not logged.

Floods
    Of each code at most ``LINES_A_SECOND`` are written. The others are counted, and ``call_failures_suppressed`` says
    their number a second later at most. Bugs are all written, because their ids lead to them.

Levels
    ``debug``: the client has left. ``info``: the request was wrong, or the server drains. ``warning``: the client may
    not, or the server cannot. ``error``: a bug.

Traces
    Each put and read has a span, which is made when it has ended. A read of a dataset that is not sealed, which may
    have no end, has one for each ``CUT_SECONDS``. Where traces are off, a call costs one branch at its begin and one at
    its end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from flight_server.concurrency import Running
from flight_server.datasets import Counters, Dataset
from flight_server.memory import Pace
from flight_server.protocol import Draining, FlightShuffleError, InternalError
from flight_server.tracing import Spans
from flight_server.transfer import Producer

LINES_A_SECOND = 10
SUPPRESSED_SECONDS = 1.0
CUT_SECONDS = 60.0
_LEVELS = {"INVALID_ARGUMENT": "info", "NOT_FOUND": "info", "UNIMPLEMENTED": "info"}

_log = structlog.get_logger("flight_server.reporting.served_calls")


@dataclass(slots=True, eq=False)
class ServedCall:
    """One call. The lane fills in what it learns: ``principal`` when the credentials were checked, ``producer`` when a
    put begins, ``dataset`` and ``partition`` when a read has found them.
    """

    lane: str
    operation: str
    peer: str
    principal: str | None = None
    dataset: str | None = None
    partition: int | None = None
    producer: Producer | None = None
    pace: Pace | None = None
    endless: bool = False
    # For its span: the code of its error, its client's traceparent, and what earlier spans of it have.
    error: str | None = None
    parent: str | None = None
    since_ns: int = 0
    in_spans: tuple[int, int] = (0, 0)

    def reads(self, pace: Pace, dataset: Dataset) -> None:
        """It is a read, whose rows and bytes are counted in ``pace``."""
        self.pace, self.endless = pace, not dataset.sealed

    def facts(self) -> dict[str, Any]:
        """What is known of it."""
        facts: dict[str, Any] = {"lane": self.lane, "operation": self.operation, "peer": self.peer}
        facts |= {"principal": self.principal, "dataset": self.dataset, "partition": self.partition}
        command = None if self.producer is None else self.producer.command
        if command is not None:
            facts |= {"dataset": command.dataset, "partition": command.partition}
            facts |= {"producer": command.producer, "attempt": command.attempt}
        return {name: value for name, value in facts.items() if value is not None}


class LineLimit:
    """How many lines of each key may be written, and how many were not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # when it began, and how many lines it has
        self._suppressed: dict[str, int] = {}

    def admits(self, key: str) -> bool:
        """Whether a line may be written; one that may not is counted."""
        now = self._clock()
        since, lines = self._windows.get(key, (now, 0))
        if now - since >= 1.0:
            since, lines = now, 0
        self._windows[key] = (since, lines + 1)
        if lines < LINES_A_SECOND:
            return True
        self._suppressed[key] = self._suppressed.get(key, 0) + 1
        return False

    def suppressed(self) -> dict[str, int]:
        """How many lines of each key were not written since the last call."""
        numbers, self._suppressed = self._suppressed, {}
        return numbers


class Calls:
    """The calls of one server, of both lanes."""

    def __init__(self, running: Running, counters: Counters, spans: Spans | None = None) -> None:
        self.running = running
        self._spans = spans
        self._traced: set[ServedCall] = set()
        self._counters = counters
        self._limit = LineLimit()

    def begin(self, call: ServedCall, header: Callable[[str], str | None]) -> None:
        """The call begins; ``header`` gives those of its request."""
        if self._spans is not None:
            call.parent, call.since_ns = header("traceparent"), time.time_ns()
            self._traced.add(call)

    def ended(self, call: ServedCall) -> None:
        """The call has ended, as :meth:`failed` or :meth:`left` has told if it did not end well."""
        if self._spans is not None:
            self._traced.discard(call)
            self._write_span(self._spans, call)

    async def cut_spans(self) -> None:
        """Write spans of the reads that may have no end, up to now: a duty of the server."""
        if self._spans is not None:
            for call in [call for call in self._traced if call.endless]:
                self._write_span(self._spans, call)

    def flush_spans(self) -> None:
        """Send the spans that wait. Blocks for a second at most."""
        if self._spans is not None:
            self._spans.flush()

    def _write_span(self, spans: Spans, call: ServedCall) -> None:
        counted = call.producer or call.pace
        if counted is None:
            return
        facts = call.facts() | {
            "rows": counted.rows - call.in_spans[0],
            "bytes": counted.size_bytes - call.in_spans[1],
        }
        name = "get" if call.producer is None else "put"
        span = spans.begin(name, call.parent, serves=True, since_ns=call.since_ns)
        spans.end(span, facts, call.error)
        call.since_ns, call.in_spans = time.time_ns(), (counted.rows, counted.size_bytes)

    def failed(self, call: ServedCall, error: Exception, event: str = "call_failed") -> FlightShuffleError:
        """Count and log the error that ends the call; what its client gets. It is a fresh one, because a lane may keep
        it, and its traceback would keep the variables of the call's Python frames.
        """
        call.error = error.code if isinstance(error, FlightShuffleError) else InternalError.code
        if not isinstance(error, FlightShuffleError):
            error_id = secrets.token_hex(6)
            _log.error("internal_error", error_id=error_id, **call.facts(), exc_info=error)
            answer: FlightShuffleError = InternalError(
                f"internal error {error_id}: the server's log has the cause under this id", error_id=error_id
            )
            self._count(answer)
            return answer
        self._count(error)
        if self._limit.admits(error.code if event == "call_failed" else event):
            level = "info" if isinstance(error, Draining) else _LEVELS.get(error.status, "warning")
            of_error = {name: error.detail[name] for name in _OF_ERRORS if name in error.detail}
            facts = {**of_error, **call.facts(), "code": error.code, "reason": error.message}
            getattr(_log, level)(event, **facts)
        return error.fresh()

    def left(self, call: ServedCall) -> None:
        """The client has left, or was cut off."""
        call.error = "cancelled"
        _log.debug("call_left", **call.facts())

    async def tell_suppressed(self) -> None:
        """Log how many lines were not written, if any: a duty of the server."""
        for code, number in self._limit.suppressed().items():
            _log.warning("call_failures_suppressed", code=code, suppressed=number)

    def _count(self, error: FlightShuffleError) -> None:
        self._counters.errors[error.code] = self._counters.errors.get(error.code, 0) + 1


_OF_ERRORS = ("dataset", "partition", "producer")
