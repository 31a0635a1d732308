"""Jobs of 1,000 rows, 8 -> 16 partitions: what a job costs before its data does. As ``pipelines``, at any scale."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.engines import Options
from tests.benchmarks.on_spark.pipelines import Job, report

ROWS = 1000
JOBS = [
    Job("Parquet, 1,000 rows", ROWS, data.named_parquet, of.named, of.NAMED, 40, 16),
]


def main(arguments: list[str]) -> None:
    """Print the tables."""
    report("Small jobs", JOBS, replace(Options.parse("small_jobs", arguments), scale=1.0))
