"""How large a task's share of a scan should be, by Spark's own settings for files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .explaining import cores
from .spark_settings import spark_setting
from .spark_types import java_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
