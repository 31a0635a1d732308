"""The connection of a Python worker to Spark's executor, over which a task's function, rows and results go."""

from __future__ import annotations

import socket
import sys
from types import FrameType


def worker_connection() -> socket.socket | None:
    """The connection of the worker whose task this thread loads or runs, which stays PySpark's; None outside of a
    worker that PySpark's daemon has forked.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_worker(frame):
        frame = frame.f_back
    found = None if frame is None else frame.f_locals["sock"]
    return found if isinstance(found, socket.socket) else None


def _is_worker(frame: FrameType) -> bool:
    """Whether it is that of the daemon's function ``worker(sock, authenticated)``."""
    code, spec = frame.f_code, frame.f_globals.get("__spec__")
    # The daemon is the main module, or imported by one that ``spark.python.daemon.module`` names.
    return (
        code.co_name == "worker"
        and code.co_varnames[:1] == ("sock",)
        and getattr(spec, "name", None) == "pyspark.daemon"
    )
