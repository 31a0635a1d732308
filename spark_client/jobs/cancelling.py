"""Ctrl-C cancels the Spark job that the driver waits for.

PySpark means to do so. But on Spark Classic its handler asks over the connection on which the main thread waits, which
fails, and notebooks replace the handler. A job that goes on keeps its tasks' cores and writes to a dataset that is
gone. Spark Connect's client cancels its operation itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def cancelled_by_ctrl_c(spark: Any) -> Iterator[None]:
    """A ``KeyboardInterrupt`` in the block cancels the session's jobs, as PySpark's handler would. Their tasks may run
    for some seconds more.
    """
    try:
        yield
    except KeyboardInterrupt:
        # Not by a tag of the job: a new connection, which Spark Classic needs now, does not know the old one's tags.
        if "connect" not in type(spark).__module__:
            # A session that has ended cannot be asked, and has no jobs.
            with contextlib.suppress(Exception):
                spark.interruptAll()
        raise
