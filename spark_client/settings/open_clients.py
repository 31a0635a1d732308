"""The clients that programs share: one for each process, Spark application and set of arguments.

Guarantee: two calls of :func:`open_client` with equal arguments return one client while it is open. A client ends by
its ``close``; with the process; at the next call, where its embedded server has ended by itself; and, on Spark Classic,
at the first call for the process's next application. Sessions of one application share a client, because Spark makes
new session objects of the same session.

A forked child makes clients of its own and ends none of its parent's.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


C = TypeVar("C")
_Key = tuple[int, str, object]
_clients: dict[_Key, Any] = {}
"""Each has ``closed`` and ``close``, as a ShuffleClient, which lies above this room."""
_lock = threading.Lock()
_at_exit = False


def open_client(spark: SparkSession, arguments: Mapping[str, Any], make: Callable[[], C]) -> C:
    """The open client of these arguments, which ``make`` has made for an earlier call or makes now."""
    global _at_exit  # noqa: PLW0603 - once for each process
    process, application = os.getpid(), str(spark.conf.get("spark.app.id"))
    key = (process, application, tuple(sorted(arguments.items())))
    with _lock:
        if "connect" not in type(spark).__module__:
            # A process has one Classic application at a time.
            _end(lambda other: other[0] == process and other[1] != application)
        _end(lambda other: _clients[other].closed)
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = make()
        if not _at_exit:
            # After the first client: before the client's own calls at the end.
            _at_exit = True
            atexit.register(_end, lambda other: other[0] == os.getpid())
        return cast("C", client)


def _end(which: Callable[[_Key], bool]) -> None:
    for key in [key for key in _clients if which(key)]:
        _clients.pop(key).close()
