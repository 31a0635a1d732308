"""Settling: a Python worker's settings before the first function of a task, for its garbage collector and for its
connection to Spark.

Garbage
    PySpark's worker collects garbage after every task. With pyarrow, numpy, PySpark and this package imported that
    takes 20 ms, more than half of the cost of a small task. :func:`settle` moves all live objects to the permanent
    generation, which a collection does not visit. Objects that are in it are still freed by their reference counts;
    only cycles among them never are. So a worker settles only when modules were imported since the last time, a few
    times in its life, and before a task's function is unpickled: nothing of a function or its data is alive then.

Connection
    Spark's executor sends a task to its worker in several small pieces. TCP holds each back until the one before is
    acknowledged (Nagle's algorithm), and the worker's kernel delays that for 40 ms, because the worker answers nothing
    until it has all: four fifths of a small task. :func:`settle` lets the worker acknowledge at once. The kernel
    delays again when the worker has sent its results, so this is done for each task. Nor are the results held back.
    Where ``spark.python.unix.domain.socket.enabled`` is set, nothing is delayed, and nothing is done.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys

_modules = 0
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux has it."""


def settle() -> None:
    """Call at the start of a task."""
    global _modules  # noqa: PLW0603  # of the process
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.freeze()
    _send_at_once()


def _send_at_once() -> None:
    from spark_client.pyspark_parts import worker_connection  # noqa: PLC0415 - making the zip needs no PySpark

    connection = worker_connection()
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # A worker works also without.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _QUICKACK is not None:
            connection.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
