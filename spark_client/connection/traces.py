"""Traces as long as they help: of an error that the package explains, Python shows the caller's line and the message.

Guarantee: an error of ours, or of PySpark, or a Ctrl-C, that leaves a public call has no frame of a library above the
caller's own frames, and Python shows no error that it was made of. Where a function of the caller's raised it, that
function's frames are shown. Any other exception is a bug, and keeps all.

What the error was made of stays its ``__context__``, for programs; the whole trace is logged at level DEBUG by the
logger ``spark_client.traces``.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from functools import wraps
from pickle import PicklingError
from types import FunctionType, TracebackType
from typing import Any, TypeVar, cast

from flight_server.protocol import FlightShuffleError

_log = logging.getLogger("spark_client.traces")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
_LIBRARIES = frozenset(
    {"flight_server", "google", "grpc", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "spark_client"}
)

_OF_WORKERS = "__traceback_maker"
"""A name in the frames that PySpark makes of a worker's trace, which its message has, too."""


def of_users(trace: TracebackType | None) -> TracebackType | None:
    """The trace from the first frame on that is of no library; None if there is none."""
    while trace is not None and _is_library(trace):
        trace = trace.tb_next
    return trace


def _is_library(trace: TracebackType) -> bool:
    if _OF_WORKERS in trace.tb_frame.f_code.co_names:
        return True
    package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names


def _explained(error: BaseException) -> BaseException | None:
    """The error, or ours for which Spark could not send a function; None if it is a bug."""
    if isinstance(error, FlightShuffleError | KeyboardInterrupt):
        return error
    if isinstance(error, PicklingError) and isinstance(error.__context__, FlightShuffleError):
        return error.__context__
    # Without PySpark none of its errors is raised.
    pyspark = sys.modules.get("pyspark.errors")
    return error if pyspark is not None and isinstance(error, pyspark.PySparkException) else None


def _shortened(error: BaseException) -> BaseException:
    _log.debug("the whole trace", exc_info=error)
    if error.__cause__ is not None:
        error.__context__ = error.__cause__
    return error.with_traceback(of_users(error.__traceback__))


def short_trace(function: F) -> F:
    """The public function, whose errors have short traces."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except (Exception, KeyboardInterrupt) as error:
                if (explained := _explained(error)) is None:
                    raise
                raise _shortened(explained) from None

        return cast("F", awaited)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if (explained := _explained(error)) is None:
                raise
            raise _shortened(explained) from None

    return cast("F", call)


def short_traces(kind: C) -> C:
    """The class, whose constructor, public methods and properties are :func:`short_trace`; those of its bases are as
    they were.
    """
    short: dict[FunctionType, Any] = {}  # two names of one method stay one
    for name, member in [*vars(kind).items()]:
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(kind, name, type(member)(short_trace(member.__func__)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, member.getter(short_trace(member.fget)))
        elif isinstance(member, FunctionType):
            setattr(kind, name, short.setdefault(member, short_trace(member)))
    return kind
