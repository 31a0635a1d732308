"""Removes the withdrawn copies of a broadcast by Spark's tasks, on every host where one can run.

Spark has no way to run a function once on each executor, and places small tasks where it likes. So the tasks of
:func:`reach`, as many as there are cores, wait for each other at the server: each removes its host's file and then
keeps its core, so that the next task goes to another one, until no listed host is left. Nothing but the deadline
ends that if a host has no executor any more, or no free core; then Spark is told to cancel the job. A barrier
stage would need all cores at the same time, and does not run with dynamic allocation.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from flight_server.protocol import FlightShuffleError
from spark_client.executors import Portable
from spark_client.jobs import cores

from .content import Content
from .mapped_tables import mapped
from .withdrawing import left, remove_here

MAX_TASKS = 10_000
_END_SECONDS = 3.0
"""For the tasks to notice that no host is left."""

_POLL_SECONDS = 0.1
_MAX_POLL_SECONDS = 1.0
_UNKNOWN_CORES = 64


def reach(content: Content, spark: SparkSession, seconds: float) -> None:
    """Run tasks until no host is left, or for so long.

    Raises:
        Exception: Spark's, if its job failed by itself.
    """
    count = min(MAX_TASKS, max(cores(spark) or _UNKNOWN_CORES, len(left(content))))
    job = spark.range(0, count, 1, count).mapInArrow(
        Portable(partial(_remove_in_task, content, seconds)), "host string"
    )
    tag, ended, cancelled = f"unpersist-{uuid.uuid4().hex}", threading.Event(), threading.Event()

    def watch() -> None:
        until = time.monotonic() + seconds
        while not ended.wait(_POLL_SECONDS * 3) and time.monotonic() < until:
            with contextlib.suppress(FlightShuffleError):
                if not left(content):
                    break
        ended.wait(_END_SECONDS)
        while not ended.is_set():
            cancelled.set()
            # Again and again: Spark forgets it if the job has not begun.
            with contextlib.suppress(Exception):
                spark.interruptTag(tag)
            ended.wait(1.0)

    watcher = threading.Thread(target=watch, name="broadcast: unpersist", daemon=True)
    spark.addTag(tag)
    try:
        watcher.start()
        job.collect()
    except Exception:
        if not cancelled.is_set():
            raise
    finally:
        ended.set()
        spark.removeTag(tag)


def _remove_in_task(content: Content, seconds: float, numbers: Iterator[Any]) -> Iterator[Any]:
    for _ in numbers:
        pass
    until, pause = time.monotonic() + seconds, _POLL_SECONDS
    mapped.forget(content)
    remove_here(content)
    while left(content) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(_MAX_POLL_SECONDS, pause * 1.5)
    yield from ()
