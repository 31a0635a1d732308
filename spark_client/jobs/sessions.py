"""Which Spark session a call uses that is given none.

It is the active one of the thread, else the one that the client used last, else the default one. A thread other than
that which made the session has no active one on Spark Classic, and neither has any thread after a Ctrl-C: py4j then
connects it to another thread of the JVM, and ``getOrCreate`` makes no session active there.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from flight_server.protocol import InvalidRequest


class Sessions:
    """Those of one client."""

    def __init__(self) -> None:
        self._last: weakref.ref[SparkSession] | None = None

    def used(self, spark: SparkSession) -> None:
        """The client has used it. It is not kept alive."""
        self._last = weakref.ref(spark)

    def choose(self, given: SparkSession | None, call: str) -> SparkSession:
        """``given``, or the session in its place. Raises InvalidRequest: there is none; the message names the
        ``call``.
        """
        found = given or SparkSession.getActiveSession()
        if found is None and self._last is not None and (last := self._last()) is not None and _lives(last):
            found = last
        if found is None:
            try:
                found = SparkSession.active()
            except PySparkRuntimeError as error:
                raise InvalidRequest(
                    f"{call}: there is no Spark session; make one, or give it as spark="
                ) from error
        self.used(found)
        return found


def _lives(spark: Any) -> bool:
    if "connect" in type(spark).__module__:
        return not spark.is_stopped
    with contextlib.suppress(Exception):
        spark.sparkContext.getLocalProperty("spark.app.name")  # which a stopped one has no JVM to ask for
        return True
    return False
