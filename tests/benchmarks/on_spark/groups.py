"""A Python function for each of 20,000 groups: ``groupBy(key).applyInArrow(fn)``, and ``cogroup`` of two inputs.

    Spark           read.parquet(files).groupBy("key").applyInArrow(total), sql.shuffle.partitions = 16
    pipeline        pipeline(read.parquet(files)).groupBy("key").applyInArrow(total)
    pipeline, scan  scan(files).groupBy("key").applyInArrow(total)

The function makes one row of each group. ``range`` is ``spark.range`` in place of the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark.contests import FRAME, SPARK, Contest, both, files, report
from tests.benchmarks.on_spark.engines import Engines, Options

GROUPS = 20_000
LEAST_ROWS = 250
"""Of a group on average: fewer rows are in fewer groups."""
PARTITIONS = 16
TOTALS = "key long, rows long, amount double"
PAIRS = "key long, rows long, others long, amount double"


def total(group: pa.Table) -> pa.Table:
    """Key, rows and the sum of the amounts."""
    return pa.table(
        {"key": group["key"][:1], "rows": [len(group)], "amount": [pc.sum(group["amount"]).as_py()]}
    )


def pair(left: pa.Table, right: pa.Table) -> pa.Table:
    """Key, rows of both sides, and the sum of the left one's amounts."""
    return pa.table(
        {
            "key": left["key"][:1],
            "rows": [len(left)],
            "others": [len(right)],
            "amount": [pc.sum(left["amount"]).as_py()],
        }
    )


def main(arguments: list[str]) -> None:
    """Print the tables."""
    options = Options.parse("groups", arguments)
    report("Grouped apply, 20,000 groups", CONTESTS, options, f"local[2], {PARTITIONS} partitions")


def answer(result: pa.Table) -> tuple[int, int, float]:
    """Groups, their rows, and the sum of all amounts, of which the order of addition may change the last digits."""
    return len(result), pc.sum(result["rows"]).as_py(), round(pc.sum(result["amount"]).as_py(), 3)


def _files(rows: int) -> Path:
    return data.grouped_parquet(rows, min(GROUPS, rows // LEAST_ROWS))


def _frame(engines: Engines, rows: int) -> Any:
    engines.spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    return engines.spark.read.parquet(str(_files(rows)))


def _range(engines: Engines, rows: int) -> Any:
    engines.spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    groups = min(GROUPS, rows // LEAST_ROWS)
    return engines.spark.range(rows).selectExpr(f"id % {groups} as key", "double(id % 1000) as amount")


def _sparks(engines: Engines, rows: int) -> Any:
    return answer(_frame(engines, rows).groupBy("key").applyInArrow(total, TOTALS).toArrow())


def _sparks_of_range(engines: Engines, rows: int) -> Any:
    return answer(_range(engines, rows).groupBy("key").applyInArrow(total, TOTALS).toArrow())


def _ours_of_range(engines: Engines, rows: int) -> Any:
    groups = engines.shuffle.pipeline(_range(engines, rows)).groupBy("key", numPartitions=PARTITIONS)
    return answer(groups.applyInArrow(total, TOTALS).toArrow())


def _ours(kind: str, engines: Engines, rows: int) -> Any:
    groups = files(engines, kind, _files(rows)).groupBy("key", numPartitions=PARTITIONS)
    return answer(groups.applyInArrow(total, TOTALS).toArrow())


def _sparks_pairs(engines: Engines, rows: int) -> Any:
    left, right = (_frame(engines, rows).groupBy("key") for _ in range(2))
    return answer(left.cogroup(right).applyInArrow(pair, PAIRS).toArrow())


def _our_pairs(kind: str, engines: Engines, rows: int) -> Any:
    left, right = (
        files(engines, kind, _files(rows)).groupBy("key", numPartitions=PARTITIONS) for _ in range(2)
    )
    return answer(left.cogroup(right).applyInArrow(pair, PAIRS).toArrow())


CONTESTS = [
    Contest("5 M rows", 5_000_000, {SPARK: _sparks, **both(_ours)}),
    Contest("range, 5 M rows", 5_000_000, {SPARK: _sparks_of_range, FRAME: _ours_of_range}),
    Contest("20 M rows", 20_000_000, {SPARK: _sparks, **both(_ours)}),
    Contest("cogroup, 5 M rows a side", 5_000_000, {SPARK: _sparks_pairs, **both(_our_pairs)}),
]
