"""Removes the withdrawn copies of a broadcast by Spark's tasks, on every host where one can run.

Spark has no way to run a function once on each executor, and places small tasks where it likes. So the tasks of
:func:`reach`, as many as there are cores, wait for each other at the server: each removes its host's file and then
keeps its core, so that the next task goes to another one, until no listed host is left. A barrier stage would need
all cores at the same time, and does not run with dynamic allocation.

Only the deadline ends that if a host has no executor any more, or no free core. Tasks that wait for a core then stay
queued, without the caller: they end as soon as they have removed the withdrawn files. They are not cancelled, because
Spark Classic cancels by a tag only in the thread that set it, which waits for the job.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from flight_server.protocol import FlightShuffleError
from spark_client.executors import Portable
from spark_client.jobs import cores

from .content import BroadcastContent
from .mapped_tables import mapped
from .withdrawing import left, remove_withdrawn

MAX_TASKS = 10_000
_END_SECONDS = 2.0
"""For the job to end when no host is left."""

_POLL_SECONDS = 0.1
_MAX_POLL_SECONDS = 1.0
_UNKNOWN_CORES = 64


def reach(content: BroadcastContent, spark: SparkSession, seconds: float) -> None:
    """Run tasks until no host is left, or for so long. Raises Exception: Spark's, if the job failed."""
    count = min(MAX_TASKS, max(cores(spark) or _UNKNOWN_CORES, len(left(content))))
    task = Portable(partial(_remove_in_task, content, time.time() + seconds, seconds))
    job = spark.range(0, count, 1, count).mapInArrow(task, "host string")
    ended, errors = threading.Event(), list[Exception]()

    def run() -> None:
        try:
            job.collect()
        except Exception as error:  # noqa: BLE001 - raised by the caller's thread
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name=f"unpersists broadcast {content.name}", daemon=True).start()
    if _wait(content, seconds, ended) and not ended.is_set():
        ended.wait(_END_SECONDS)
    if errors and left(content):
        raise errors.pop()  # whose traceback refers to this frame


def _remove_in_task(
    content: BroadcastContent, until: float, seconds: float, numbers: Iterator[Any]
) -> Iterator[Any]:
    for _ in numbers:
        pass
    mapped.forget(content.key)
    remove_withdrawn(content)
    # Hosts' clocks may differ.
    _wait(content, min(until - time.time(), seconds), threading.Event())
    yield from ()


def _wait(content: BroadcastContent, seconds: float, ended: threading.Event) -> bool:
    """Wait until no host is left; False after so many seconds, also if a clock is set back meanwhile, or if
    ``ended``.
    """
    until, pause = time.monotonic() + seconds, _POLL_SECONDS
    while True:
        with contextlib.suppress(FlightShuffleError):
            if not left(content):
                return True
        now = time.monotonic()
        if now >= until or ended.wait(min(pause, until - now)):
            return False
        pause = min(_MAX_POLL_SECONDS, pause * 1.5)
