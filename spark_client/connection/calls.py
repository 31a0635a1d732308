"""One Flight call: its headers and trailers, and the translation of its error.

Guarantee: pyarrow's exceptions inside ``call.errors()`` are raised as one error of ``protocol.errors``, with the
server's own sentence and detail if it sent them.

How a call finds its trailers
    The server sends errors (as JSON) and a read's totals in trailers. A middleware collects them into the call's own
    :class:`Call`. gRPC makes the middleware in the thread that starts the call, so a thread-local ties the two
    together; later headers go to the same object from any thread.

Which error
    The trailer decides, else the ``extra_info``, else pyarrow's class and message. Our server explains each of its
    errors, so one without an explanation is a broken connection or a proxy's.

Fork
    gRPC hangs in a forked child that uses it, or that destroys one of its objects. So :func:`immortal_in_children`
    keeps the holders of such objects.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    ERROR_TRAILER,
    FlightShuffleError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
    from_json,
)
from flight_server.tracing import traceparent


class Unreachable(Unavailable):
    """The connection could not be made, or broke."""

    code = "unreachable"


class EmbeddedEnded(Unreachable):
    """The server that was embedded in a client has ended, with the client or its driver."""

    code = "embedded_ended"

    @classmethod
    def of(cls, what: str, error: FlightShuffleError) -> EmbeddedEnded:
        """``what`` was on the server; ``error`` is that of the connection."""
        reason = error.detail.get("reason", error.message)
        return cls(
            f"{what} is gone: its server was embedded in a ShuffleClient that was closed, or whose driver has ended; "
            f"make a new client, and run the program again ({reason})",
            **(error.detail | {"reason": reason}),
        )


class TimedOut(Unavailable):
    """The server did not answer before the deadline of the call."""

    code = "timed_out"


class ForkedProcess(FlightShuffleError):
    """A forked child used gRPC, or a stream or put of its parent, which does not work."""

    code = "forked_process"


@dataclass
class Call:
    """The headers and trailers of a call, the last value of each; the token that it sends; for errors, whether the
    server is embedded, and the dataset that it is about.
    """

    location: str
    headers: dict[str, str] = field(default_factory=dict)
    token: str | None = field(default=None, repr=False)
    embedded: bool = False
    dataset: str | None = None

    @property
    def place(self) -> str:
        return self.location if self.dataset is None else f"dataset {self.dataset!r} at {self.location}"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise pyarrow's exceptions inside as our errors."""
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise translate(error, self) from error


class _Calling(threading.local):
    call: Call | None = None


calling = _Calling()


class _Collect(flight.ClientMiddleware):
    def __init__(self, call: Call | None) -> None:
        super().__init__()
        self._call = call

    def sending_headers(self) -> dict[str, str]:
        headers = {} if (parent := traceparent()) is None else {"traceparent": parent}
        if self._call is not None and self._call.token is not None:
            headers["authorization"] = f"Bearer {self._call.token}"
        return headers

    def received_headers(self, headers: dict[str, list[str | bytes]]) -> None:
        if self._call is not None:
            for name, values in headers.items():
                if values and isinstance(values[-1], str):
                    self._call.headers[name] = values[-1]


class CollectFactory(flight.ClientMiddlewareFactory):
    """Ties each call to its thread's :class:`Call`, and sends the call's token."""

    def start_call(self, info: Any) -> _Collect:  # noqa: ARG002  # pyarrow calls it with the method's info
        return _Collect(calling.call)


_PREFIX = re.compile(r"^Flight (returned|cancelled) [a-z ]+, with message: ")
_SUFFIX = re.compile(r"(\. Detail: \w+)?(\.? (gRPC client debug context|Client context): .*)?$", re.DOTALL)


def translate(error: BaseException, call: Call) -> FlightShuffleError:
    """Our error for pyarrow's exception."""
    texts: list[str | bytes] = [call.headers.get(ERROR_TRAILER, ""), getattr(error, "extra_info", b"") or b""]
    for text in texts:
        if text:
            try:
                return from_json(text)
            except ValueError:
                continue
    sentence = _SUFFIX.sub("", _PREFIX.sub("", str(error))) or type(error).__name__
    at = f"{sentence} ({call.place})"
    where = {"server": call.location} | ({} if call.dataset is None else {"dataset": call.dataset})
    # pyarrow gives a unary call's missed deadline as a bare OSError.
    if isinstance(error, flight.FlightTimedOutError) or "returned timeout error" in str(error):
        return TimedOut(f"no answer before the deadline: {at}", **where)
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Unauthenticated(at, **where)
    if isinstance(error, flight.FlightUnauthorizedError):
        return Forbidden(at, **where)
    if isinstance(error, pa.ArrowKeyError):
        return NotFound(at, **where)
    if isinstance(error, pa.ArrowInvalid | pa.ArrowNotImplementedError | pa.ArrowTypeError):
        return InvalidRequest(at, **where)
    if isinstance(error, flight.FlightError | OSError):
        unreachable = Unreachable(f"the connection failed: {at}", **where)
        return EmbeddedEnded.of("what was asked for", unreachable) if call.embedded else unreachable
    return FlightShuffleError(at, **where)


_grpc_objects: weakref.WeakSet[Any] = weakref.WeakSet()
_forks_are_watched = False


def immortal_in_children(thing: Any) -> None:
    """Keep ``thing`` alive for ever in each child that this process forks while ``thing`` lives."""
    global _forks_are_watched  # noqa: PLW0603  # once for each process
    _grpc_objects.add(thing)
    if not _forks_are_watched:
        _forks_are_watched = True
        os.register_at_fork(after_in_child=_make_immortal)


def _make_immortal() -> None:
    for thing in list(_grpc_objects):
        # Not a list of references: the interpreter would empty it at its end and destroy the objects.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
