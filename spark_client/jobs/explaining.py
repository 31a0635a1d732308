"""Spark's plans as text: the only form that Spark Classic and Spark Connect share."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_explaining = threading.Lock()


def cores(spark: SparkSession) -> int | None:
    """Into how many tasks Spark splits a range: its default parallelism, one for each core if it is not set.

    None if the plan does not tell.
    """
    splits = re.search(r"splits=(?:Some\()?(\d+)", explained(spark.range(1)))
    return max(1, int(splits[1])) if splits else None


def explained(df: DataFrame) -> str:
    """The output of ``df.explain("extended")``, without a job."""
    with _explaining:
        heard = _Heard(sys.stdout, threading.get_ident())
        with contextlib.redirect_stdout(heard):
            df.explain("extended")
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
