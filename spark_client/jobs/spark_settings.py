"""Settings of Spark that decide what a step does, as the session has them now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WHERE_UNKNOWN = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864b",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "false",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "false",
    "spark.sql.files.maxPartitionBytes": "134217728b",
    "spark.sql.files.openCostInBytes": "4194304b",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "true",
    "spark.sql.shuffle.partitions": "200",
    "spark.ui.showConsoleProgress": "false",
}
"""What Spark 4.3 does where a version has no such setting."""


def spark_setting(spark: SparkSession, name: str) -> str:
    """The session's value, else Spark's own default: ``conf.get`` with a default gives that instead of Spark's."""
    try:
        return str(spark.conf.get(name))
    except PySparkException:
        return _WHERE_UNKNOWN[name]


def is_on(spark: SparkSession, name: str) -> bool:
    """Whether a setting is ``true``."""
    return spark_setting(spark, name).strip().lower() == "true"
