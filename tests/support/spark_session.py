"""Local Spark sessions for tests and the demo: quiet, small, and ended afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def local_session(master: str = "local[2]", **settings: str) -> Iterator[SparkSession]:
    """A session on ``master``, stopped at the end. ``a__b`` in a setting's name stands for ``spark.a.b``."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # Otherwise all settings of the process's first session start the JVM, as its system properties, and every later
    # session has them. The heap can be set only there.
    heap = {"spark.driver.memory": settings["driver__memory"]} if "driver__memory" in settings else {}
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(heap.items())))
    builder = SparkSession.builder.master(master).appName("flight-shuffle")
    defaults = {
        "ui__enabled": "false",
        "ui__showConsoleProgress": "false",
        "driver__bindAddress": "127.0.0.1",
        "driver__host": "127.0.0.1",
        "sql__shuffle__partitions": "4",
        "sql__session__timeZone": "UTC",
    }
    for name, value in (defaults | settings).items():
        builder = builder.config("spark." + name.replace("__", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
