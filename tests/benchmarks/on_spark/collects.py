"""A result of 10 M rows x 4 columns, one a string, in the driver: ``collect`` of a pipeline against ``toArrow`` and
``toPandas``.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.contests import SPARK, Contest, report
from tests.benchmarks.on_spark.engines import Engines, Options


def main(arguments: list[str]) -> None:
    """Print the table."""
    report("Collect to the driver", CONTESTS, Options.parse("collects", arguments))


def _frame(engines: Engines, rows: int) -> Any:
    return engines.spark.read.parquet(str(data.named_parquet(rows))).mapInArrow(of.named, of.NAMED)


def _arrow(result: Any) -> tuple[int, int]:
    return result.num_rows, pc.sum(result["key"]).as_py()


def _pandas(result: Any) -> tuple[int, int]:
    return len(result), int(result["key"].sum())


def _collected(engines: Engines, rows: int) -> Any:
    scan = engines.shuffle.scan(data.named_parquet(rows), spark=engines.spark)
    return engines.shuffle.collect(scan.mapInArrow(of.named, of.NAMED))


CONTESTS = [
    Contest(
        "Arrow",
        10_000_000,
        {
            SPARK: lambda engines, rows: _arrow(_frame(engines, rows).toArrow()),
            "collect": lambda engines, rows: _arrow(_collected(engines, rows).read_all()),
        },
    ),
    Contest(
        "pandas",
        10_000_000,
        {
            SPARK: lambda engines, rows: _pandas(_frame(engines, rows).toPandas()),
            "collect": lambda engines, rows: _pandas(_collected(engines, rows).read_pandas()),
        },
    ),
]
