"""Facts of a session, for the driver: settings, plans, how many tasks run at once, how much of a file each reads.

Settings
    A reading of one takes a trip to the JVM, or to a server. In a block of :func:`settings_once` each setting has one
    value, the session's at a moment in the block; on Spark Classic one trip tells whether the values of the last block
    are still those of the session. Outside of blocks a setting is what it is when it is read.

Which session
    A call that is given none uses the active one of the thread, else the one that the client used last, else the
    default one. A thread other than that which made the session has no active one on Spark Classic, and neither has any
    thread after a Ctrl-C: py4j then connects it to another thread of the JVM, and ``getOrCreate`` makes no session
    active there.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from flight_server.protocol import InvalidRequest
from spark_client.executors import use_own_interpreter
from spark_client.pyspark_parts import settings_text

_unknown: weakref.WeakKeyDictionary[SparkSession, set[str]] = weakref.WeakKeyDictionary()
"""The settings that a session's version of Spark does not know: to be told so takes a hundred times as long as a value.
"""
KNOWN_SECONDS = 60.0
_TAGS = "spark.job.tags"
_RANGE = re.compile(r"Range \(0, 1, step=1, splits=(?:Some\()?(\d+)")
_WHERE_UNKNOWN = {
    "spark.sql.autoBroadcastJoinThreshold": "10485760b",
    "spark.dynamicAllocation.enabled": "false",
    "spark.executor.memory": "1g",
    "spark.executor.memoryOverhead": "",
    "spark.executor.memoryOverheadFactor": "0.1",
    "spark.sql.caseSensitive": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864b",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "false",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "false",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "false",
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "false",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled": "false",
    "spark.sql.files.maxPartitionBytes": "134217728b",
    "spark.sql.files.openCostInBytes": "4194304b",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "true",
    "spark.sql.pyspark.worker.logging.enabled": "false",
    "spark.sql.shuffle.partitions": "200",
    "spark.ui.showConsoleProgress": "false",
}
"""The behaviour of Spark 4.3, where a version has no such setting."""


class _Block(threading.local):
    """That of this thread; ``text`` is of all settings of the session, ``values`` are None until the first is read."""

    spark: SparkSession | None = None
    text: str | None = None
    values: dict[str, str] | None = None


_block = _Block()
_values: weakref.WeakKeyDictionary[SparkSession, tuple[str, dict[str, str]]] = weakref.WeakKeyDictionary()
"""Of each session the text of all settings, and the values that blocks have read while it was this one."""


@contextmanager
def settings_once(spark: SparkSession) -> Iterator[None]:
    """The block. One inside of another one, of the same thread, is part of it."""
    if _block.spark is not None:
        yield
        return
    _block.spark, _block.values = spark, None
    try:
        yield
        _keep_values(spark)
    finally:
        _block.spark = None


def _begin_values(spark: SparkSession) -> dict[str, str]:
    _block.text = settings_text(spark)
    text, values = _values.get(spark, (None, {}))
    return {**values} if text == _block.text else {}


def _keep_values(spark: SparkSession) -> None:
    """Those of the block, unless a setting has changed meanwhile."""
    text, values = _block.text, _block.values
    if text is None or values is None or _values.get(spark) == (text, values):
        return
    if settings_text(spark) == text:
        _values[spark] = text, values


_cores: weakref.WeakKeyDictionary[SparkSession, tuple[float, int | None]] = weakref.WeakKeyDictionary()


def cores(spark: SparkSession) -> int | None:
    """Into how many tasks Spark splits a range: its default parallelism, one for each core if it is not set.

    On Spark Connect only the plan of a range tells, in which no name of a user's stands; None if it does not. Such an
    answer is taken for ``KNOWN_SECONDS``: a plan costs 20 ms.
    """
    session: Any = spark
    if "connect" not in type(spark).__module__:
        return max(1, int(session._jsparkSession.leafNodeDefaultParallelism()))
    now_seconds = time.monotonic()
    known = _cores.get(spark)
    if known is None or now_seconds - known[0] > KNOWN_SECONDS:
        splits = _RANGE.search(explained(spark.range(1), "simple"))
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
    # ``explain`` prints this on Spark Classic.
    functions = frame.sparkSession._jvm.PythonSQLUtils
    return str(functions.explainString(frame._jdf.queryExecution(), mode))


def spark_setting(spark: SparkSession, name: str) -> str:
    """The session's value, else Spark's own default: ``conf.get`` with a default gives that instead of Spark's. In a
    block of :func:`settings_once` it is read once.
    """
    if _block.spark is not spark:
        return _read(spark, name)
    if _block.values is None:
        _block.values = _begin_values(spark)
    if name not in _block.values:
        _block.values[name] = _read(spark, name)
    return _block.values[name]


def _read(spark: SparkSession, name: str) -> str:
    if name in _unknown.get(spark, ()):
        return str(spark.conf.get(name, _WHERE_UNKNOWN[name]))
    try:
        return str(spark.conf.get(name))
    except PySparkException:
        value = _WHERE_UNKNOWN[name]
        _unknown.setdefault(spark, set()).add(name)
        return value


def is_on(spark: SparkSession, name: str) -> bool:
    """Whether a setting is ``true``."""
    return spark_setting(spark, name).strip().lower() == "true"


@dataclass(frozen=True)
class SplitSizes:
    """``target_bytes`` for each task, ``open_bytes`` added for each file, and how many tasks run at once."""

    target_bytes: int = 128 << 20
    open_bytes: int = 4 << 20
    parallelism: int = 1

    def tasks(self, total_bytes: int) -> int:
        """How many tasks read ``total_bytes``: enough for the target and for all cores, unless a task would then
        read less than ``open_bytes``; above the number of cores a multiple of it, so that all end together.
        """
        least = max(1, self.open_bytes)
        count = max(-(-total_bytes // max(least, self.target_bytes)), self.parallelism)
        rounded = -(-count // self.parallelism) * self.parallelism
        return max(1, min(rounded, total_bytes // least))


def split_sizes(spark: SparkSession) -> SplitSizes:
    """The session's ``spark.sql.files.maxPartitionBytes``, ``openCostInBytes`` and parallelism. Runs no job."""
    target = java_bytes(spark_setting(spark, "spark.sql.files.maxPartitionBytes"))
    opening = java_bytes(spark_setting(spark, "spark.sql.files.openCostInBytes"))
    return SplitSizes(max(1, target), max(1, opening), cores(spark) or 1)


def overhead_bytes(spark: SparkSession) -> int:
    """What each executor's container has beyond the JVM's heap, as Spark reckons it."""
    setting = spark_setting(spark, "spark.executor.memoryOverhead")
    if setting:
        return _mebibytes(setting)
    factor = float(spark_setting(spark, "spark.executor.memoryOverheadFactor"))
    heap_bytes = _mebibytes(spark_setting(spark, "spark.executor.memory"))
    return max(int(factor * heap_bytes), 384 << 20)


def _mebibytes(text: str) -> int:
    """The bytes of a size that is in MiB if it has no unit."""
    return java_bytes(f"{text}m" if text.strip().isdecimal() else text)


def broadcast_threshold_bytes(spark: SparkSession) -> int:
    """How large a side of a join may be that all tasks hold, as Spark's own joins have it; 0 or less: none."""
    return java_bytes(spark_setting(spark, "spark.sql.autoBroadcastJoinThreshold"))


def java_bytes(text: str) -> int:
    """The bytes of a size in Spark's settings, whose units are powers of 1024; 0 for other text."""
    match = re.fullmatch(r"(-?[0-9]+)\s*([bkmgtp]?)b?", text.strip().lower())
    return int(match[1]) << 10 * "bkmgtp".index(match[2] or "b") if match else 0


class Sessions:
    """Those of one client."""

    def __init__(self) -> None:
        self._last: weakref.ref[SparkSession] | None = None

    def used(self, spark: SparkSession) -> None:
        """The client has used it. It is not kept alive."""
        use_own_interpreter(spark)
        self._last = weakref.ref(spark)

    def choose(self, session: SparkSession | None, call: str) -> SparkSession:
        """``session``, or the one in its place. Raises InvalidRequest: there is none; the message names the
        ``call``.
        """
        chosen = session or SparkSession.getActiveSession()
        if chosen is None and self._last is not None and (last := self._last()) is not None and _lives(last):
            chosen = last
        if chosen is None:
            try:
                chosen = SparkSession.active()
            except PySparkRuntimeError as error:
                raise InvalidRequest(
                    f"{call}: there is no Spark session; make one, or give it as spark="
                ) from error
        self.used(chosen)
        return chosen


def same_session(one: Any, other: Any) -> bool:
    """Whether they are one session, of which PySpark may make several objects."""
    if one is other or type(one) is not type(other):
        return one is other
    if "connect" in type(one).__module__:
        return bool(one.session_id == other.session_id)
    return bool(one._jsparkSession.equals(other._jsparkSession))


def _lives(spark: Any) -> bool:
    if "connect" in type(spark).__module__:
        return not spark.is_stopped
    with contextlib.suppress(Exception):
        spark.sparkContext.getLocalProperty("spark.app.name")  # which a stopped one has no JVM to ask for
        return True
    return False


def is_pinned(spark: Any) -> bool:
    """Whether there are such properties, and one of this thread is of the JVM's thread that runs its jobs, as by
    PySpark's default.
    """
    connected = "connect" in type(spark).__module__
    return not connected and type(spark.sparkContext._gateway).__name__ == "ClientServer"


@contextmanager
def job_tag(context: SparkContext, tag: str) -> Iterator[None]:
    """Jobs that this thread starts in the block have the tag, beside those that it has given them."""
    tags = context.getLocalProperty(_TAGS)
    with local_property(context, _TAGS, ",".join(dict.fromkeys([*(tags.split(",") if tags else []), tag]))):
        yield


@contextmanager
def local_property(context: SparkContext, name: str, value: str) -> Iterator[None]:
    """Jobs that this thread starts in the block have the property; afterwards it is what it was."""
    before = context.getLocalProperty(name)
    context.setLocalProperty(name, value)
    try:
        yield
    finally:
        context.setLocalProperty(name, before)  # type: ignore[arg-type] # None takes it away
