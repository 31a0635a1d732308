"""Spark's plans as text: the only form that Spark Classic and Spark Connect share."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
import time
import weakref
from typing import Any

from pyspark.sql import DataFrame, SparkSession

KNOWN_SECONDS = 60.0

_explaining = threading.Lock()
_cores: weakref.WeakKeyDictionary[SparkSession, tuple[float, int | None]] = weakref.WeakKeyDictionary()


def cores(spark: SparkSession) -> int | None:
    """Into how many tasks Spark splits a range: its default parallelism, one for each core if it is not set.

    None if the plan does not tell. An answer is taken for ``KNOWN_SECONDS``: a plan costs 20 ms.
    """
    now_seconds = time.monotonic()
    known = _cores.get(spark)
    if known is None or now_seconds - known[0] > KNOWN_SECONDS:
        splits = re.search(r"splits=(?:Some\()?(\d+)", explained(spark.range(1), "simple"))
        known = _cores[spark] = (now_seconds, max(1, int(splits[1])) if splits else None)
    return known[1]


def explained(df: DataFrame, mode: str = "extended") -> str:
    """The output of ``df.explain(mode)``, without a job."""
    with _explaining:
        heard = _Heard(sys.stdout, threading.get_ident())
        with contextlib.redirect_stdout(heard):
            df.explain(mode)
        return heard.getvalue()


class _Heard(io.StringIO):
    """Keeps one thread's output and passes on the others'."""

    def __init__(self, others: Any, thread: int) -> None:
        super().__init__()
        self._others = others
        self._thread = thread

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return super().write(text)
        return int(self._others.write(text))
