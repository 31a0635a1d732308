"""A property of the jobs that a thread starts on Spark Classic, for the calls of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext


def is_pinned(spark: Any) -> bool:
    """Whether there are such properties, and one of this thread is of the JVM's thread that runs its jobs, as by
    PySpark's default.
    """
    connected = "connect" in type(spark).__module__
    return not connected and type(spark.sparkContext._gateway).__name__ == "ClientServer"


@contextmanager
def local_property(context: SparkContext, name: str, value: str) -> Iterator[None]:
    """Jobs that this thread starts in the block have the property; afterwards it is what it was."""
    before = context.getLocalProperty(name)
    context.setLocalProperty(name, value)
    try:
        yield
    finally:
        context.setLocalProperty(name, before)  # type: ignore[arg-type] # None takes it away
