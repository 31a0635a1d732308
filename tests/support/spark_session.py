"""Local Spark sessions for tests and the demo: quiet, small, and ended afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS_OF_ALL: dict[str, str] = {}
"""Settings of all sessions of this process; see ``local_session``."""


@contextmanager
def local_session(master: str = "local[2]", **settings: str) -> Iterator[SparkSession]:
    """A session on ``master``, stopped at the end. ``a__b`` in a setting's name stands for ``spark.a.b``.

    A process has one context of Spark at a time: that of ``SharedSessions`` ends before.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _shared.close()
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
    for name, value in (defaults | SETTINGS_OF_ALL | settings).items():
        builder = builder.config(_dotted(name), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


_shared = ExitStack()  # the context of ``SharedSessions``


class SharedSessions:
    """Sessions for many test files, one after the other, of one Spark context as long as only SQL settings differ."""

    def __init__(self) -> None:
        self._first: SparkSession | None = None
        self._wanted: dict[str, str] = {}

    def session(self, **settings: str) -> SparkSession:
        """A new session, the active one from now on; the arguments are ``local_session``'s.

        It has none of the views and settings of another. Sessions with another master, or other settings than those
        of SQL, have ended.
        """
        from pyspark.sql import SparkSession

        wanted = {name: value for name, value in settings.items() if not name.startswith("sql__")}
        if self._first is None or wanted != self._wanted:
            self._first, self._wanted = _shared.enter_context(local_session(**wanted)), wanted
            _shared.callback(self._forget)
        session = self._first.newSession()
        for name in settings.keys() - wanted.keys():
            session.conf.set(_dotted(name), settings[name])
        SparkSession._instantiatedSession = SparkSession._activeSession = session
        jvm_session: Any = SparkSession._get_j_spark_session_class(session._jvm)
        jvm_session.setDefaultSession(session._jsparkSession)
        jvm_session.setActiveSession(session._jsparkSession)
        return session

    def close(self) -> None:
        """End the context."""
        _shared.close()

    def _forget(self) -> None:
        self._first = None


def _dotted(name: str) -> str:
    return "spark." + name.replace("__", ".")
