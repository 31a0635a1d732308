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

Restarts
    What a call does, by what its server does:

    ===============================================  =====================  ============================
    the server                                       the error              the call
    ===============================================  =====================  ============================
    refuses the connection, or it breaks             :class:`Unreachable`   is made again (``AWAY``)
    ends, and says so                                ``Draining``           is made again (``AWAY``)
    is silent until the call's deadline              :class:`TimedOut`      raises
    was embedded in a client, and cannot be reached  :class:`EmbeddedEnded` raises
    answers with any other error                     that one               raises, or as its caller says
    ===============================================  =====================  ============================

    It is made again after a pause, as often as ``Timeouts.tries`` says, and not begun again later than
    ``within_seconds`` after its first failure; then its last error is raised (:func:`retrying`). Only calls are that
    are fine twice: the server may have done the work whose answer was lost. Calls with a later turn or a loop of their
    own say ``once``, and raise each error. So does a call to a server of which this process has had no answer, and no
    other process has told it: its address may be wrong (``RemoteServer.patient``).

    A start of a server does not come back. So for data of one start a refusal is an answer (:func:`refuses`), and
    silence is none.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    ERROR_TRAILER,
    Draining,
    FlightShuffleError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
    from_json,
)
from flight_server.tracing import traceparent

from .stream_options import Timeouts

_PREFIX = re.compile(r"^Flight (returned|cancelled) [a-z ]+, with message: ")
_SUFFIX = re.compile(r"(\. Detail: \w+)?(\.? (gRPC client debug context|Client context): .*)?$", re.DOTALL)
_NOT_CONNECTED = re.compile(
    r"failed to connect to all addresses(; last error:)?( UNKNOWN:)?|(?=DNS resolution failed|errors resolving)"
)
T = TypeVar("T")
_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 0.2


class NoAnswer(Unavailable):
    """The server gave no answer to a call."""

    code = "no_answer"


class Unreachable(NoAnswer, ConnectionError):
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
            f"{what} is gone: its server was embedded in a ShuffleClient that was closed, or has ended by itself or "
            f"with its driver; make a new client, and run the program again ({reason})",
            **(error.detail | {"reason": reason}),
        )


class TimedOut(NoAnswer, TimeoutError):
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
        except FlightShuffleError:
            raise  # some are OSErrors
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


def translate(error: BaseException, call: Call) -> FlightShuffleError:
    """Our error for pyarrow's exception."""
    texts: list[str | bytes] = [call.headers.get(ERROR_TRAILER, ""), getattr(error, "extra_info", b"") or b""]
    for text in texts:
        if text:
            try:
                return about_credentials(from_json(text), call.location)
            except ValueError:
                continue
    sentence = _SUFFIX.sub("", _PREFIX.sub("", str(error))) or type(error).__name__
    at = f"{sentence} ({call.place})"
    where = {"server": call.location} | ({} if call.dataset is None else {"dataset": call.dataset})
    # pyarrow's get_schema gives a missed deadline as a bare OSError.
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
        if (refusal := _NOT_CONNECTED.match(sentence)) is not None:
            reason = sentence[refusal.end() :].strip() or sentence
            trouble = (
                f"the certificate at {call.location} is not trusted: give its authority as tls_root_certs"
                if "certificate" in reason
                else f"no server answers at {call.location}: start `flight-server` there"
            )
            at = f"{trouble}, or look with `flight-shuffle doctor` ({reason})"
        else:
            at = f"the connection failed: {at}"
        unreachable = Unreachable(at, **where)
        return EmbeddedEnded.of("what was asked for", unreachable) if call.embedded else unreachable
    return FlightShuffleError(at, **where)


def about_credentials(error: FlightShuffleError, location: str) -> FlightShuffleError:
    """The server's error; if it is about credentials, it names the server, and where a program, a session and the
    command have the token.
    """
    if not isinstance(error, Unauthenticated):
        return error
    message = f"{location}: {error.message}"
    if "token" in message:
        message += (
            "; a ShuffleClient has it by token=, a session by spark.flight.shuffle.tokenFile, flight-shuffle by "
            "--token-file"
        )
    return Unauthenticated(message, **{"server": location, **error.detail})


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


AWAY = (Unreachable, Draining)
"""The errors of calls to a server that may restart."""


def retrying(
    timeouts: Timeouts,
    call: Callable[[], T],
    errors: tuple[type[FlightShuffleError], ...] = AWAY,
    within_seconds: float = float("inf"),
    again: Callable[[], bool] = lambda: True,
) -> T:
    """The result of ``call``, which is made again while it raises one of ``errors`` and ``again`` allows it. Any other
    error is raised at once, and so is :class:`EmbeddedEnded`. Blocks; cannot be cancelled.
    """
    until, failures = float("inf"), 0
    while True:
        try:
            return call()
        except EmbeddedEnded:
            raise
        except errors:
            failures += 1
            until = min(until, time.monotonic() + within_seconds)
            pause_seconds = timeouts.pause_seconds(failures)
            if failures > timeouts.tries or time.monotonic() + pause_seconds > until or not again():
                raise
        time.sleep(pause_seconds)


def refuses(locations: Iterable[str]) -> bool:
    """Whether all locations of one server refuse a connection, now and ``_AGAIN_SECONDS`` later. False if any accepts
    it, does not answer within ``_LOOK_SECONDS``, or is no port.
    """
    ports = {(parts.hostname, parts.port) for parts in map(urlsplit, locations)}
    if not (ports and all(_refused(*each) for each in ports)):
        return False
    time.sleep(_AGAIN_SECONDS)
    return all(_refused(*each) for each in ports)


def _refused(host: str | None, port: int | None) -> bool:
    if host is None or port is None:
        return False
    try:
        socket.create_connection((host, port), _LOOK_SECONDS, all_errors=True).close()
    except ExceptionGroup as group:  # of one error for each address of the host
        return all(isinstance(each, ConnectionRefusedError) for each in group.exceptions)
    except OSError:  # the host has no address
        return False
    return False
