"""Facts of a session, for the driver: settings, plans, how many tasks run at once, how much of a file each reads."""

from __future__ import annotations

import re
import time
import weakref
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from .setting_blocks import once

KNOWN_SECONDS = 60.0

_RANGE = re.compile(r"Range \(0, 1, step=1, splits=(?:Some\()?(\d+)")
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


def spark_setting(spark: SparkSession, name: str) -> str:
    """The session's value, else Spark's own default: ``conf.get`` with a default gives that instead of Spark's. In a
    block of ``setting_blocks`` it is read once.
    """

    def read(name: str) -> str:
        try:
            return str(spark.conf.get(name))
        except PySparkException:
            return _WHERE_UNKNOWN[name]

    return once(spark, name, read)


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
        wanted = max(-(-total_bytes // max(least, self.target_bytes)), self.parallelism)
        rounded = -(-wanted // self.parallelism) * self.parallelism
        return max(1, min(rounded, total_bytes // least))


def split_sizes(spark: SparkSession) -> SplitSizes:
    """The session's ``spark.sql.files.maxPartitionBytes``, ``openCostInBytes`` and parallelism. Runs no job."""
    target = java_bytes(spark_setting(spark, "spark.sql.files.maxPartitionBytes"))
    opening = java_bytes(spark_setting(spark, "spark.sql.files.openCostInBytes"))
    return SplitSizes(max(1, target), max(1, opening), cores(spark) or 1)


def overhead_bytes(spark: SparkSession) -> int:
    """What each executor's container has beyond the JVM's heap, as Spark reckons it."""
    given = spark_setting(spark, "spark.executor.memoryOverhead")
    if given:
        return _mebibytes(given)
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
    found = re.fullmatch(r"(-?[0-9]+)\s*([bkmgtp]?)b?", text.strip().lower())
    return int(found[1]) << 10 * "bkmgtp".index(found[2] or "b") if found else 0
