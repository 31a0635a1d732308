"""Spark's plans as text: the only form that Spark Classic and Spark Connect share."""

from __future__ import annotations

import re
import time
import weakref
from typing import Any

from pyspark.sql import DataFrame, SparkSession

KNOWN_SECONDS = 60.0

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
    """The text that ``df.explain(mode)`` prints, without a job, and without ``sys.stdout``, which is also other
    threads'.
    """
    frame: Any = df
    # Asked of the class: a frame takes an unknown attribute for a column, and asks Spark for those.
    if hasattr(type(df), "_explain_string"):  # Spark Connect's
        return str(frame._explain_string(mode=mode))
    # What ``explain`` prints on Spark Classic.
    functions = frame.sparkSession._jvm.PythonSQLUtils
    return str(functions.explainString(frame._jdf.queryExecution(), mode))
