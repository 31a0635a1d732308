"""Errors of users' functions in Spark's tasks, shown from the users' own lines on.

Spark shows an error without the frames of PySpark that called the function
(``spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled``). :func:`shown_from_users` leaves out ours, too, where
Spark's setting, which it hands to its workers in their environment, is on. Errors that no function raised, of the
stages or their input, are shown whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

Task = Callable[..., Iterator[Any]]

_NOT_USERS = frozenset({"flight_server", "numpy", "pandas", "pyarrow", "pyspark", "spark_client"})


class ShownFromUsers:
    """A task's function; in the task, where it is unpickled, :func:`shown_from_users` has wrapped it."""

    def __init__(self, function: Task) -> None:
        self._function = function

    def __call__(self, *given: Any) -> Iterator[Any]:
        return self._function(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return shown_from_users, (self._function,)


def shown_from_users(function: Task) -> Task:
    """The function, whose errors begin with the first line that is not of the libraries between Spark and the user's
    function; an error without such a line is unchanged.
    """
    if not os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
        return function
    import pyspark  # noqa: PLC0415 - only tasks come here

    def run(*given: Any) -> Iterator[Any]:
        try:
            yield from function(*given)
        except Exception as error:  # noqa: BLE001 - raised again
            raise error.with_traceback(_of_users(error.__traceback__) or error.__traceback__)  # noqa: B904 - it is the same error

    # Raising adds the frame of this function. Spark leaves out the first frames that are of files beside PySpark's.
    beside = str(Path(pyspark.__file__).parent / "flight_shuffle.py")
    return FunctionType(
        run.__code__.replace(co_filename=beside), run.__globals__, "run", None, run.__closure__
    )


def _of_users(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _library(trace) in _NOT_USERS:
        trace = trace.tb_next
    return trace


def _library(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
