"""2,000 partitions x 200 tasks of small data: what partitions and tasks cost when the rows cost nothing.

Spark     spark.range(…, 200 slices).mapInArrow(numbers).repartition(2000, "key").mapInArrow(second)
pipeline  the same with pipeline(…).mapInArrow(numbers).repartition(2000, "key").mapInArrow(second)
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.contests import FRAME, SPARK, Contest, report
from tests.benchmarks.on_spark.engines import Engines, Options

PARTITIONS = 2000
TASKS = 200


def main(arguments: list[str]) -> None:
    """Print the table."""
    report("Many partitions", CONTESTS, Options.parse("many_partitions", arguments))


def _frame(engines: Engines, rows: int) -> Any:
    return engines.spark.range(0, rows, 1, TASKS).selectExpr("id", "double(id) * 0.5 as value")


def _answer(found: Any) -> tuple[int, ...]:
    return tuple(sum(row[column] for row in found) for column in range(3))


def _sparks(engines: Engines, rows: int) -> Any:
    first = _frame(engines, rows).mapInArrow(of.numbers, of.NUMBERS)
    return _answer(first.repartition(PARTITIONS, "key").mapInArrow(of.second, of.SECOND).collect())


def _ours(engines: Engines, rows: int) -> Any:
    first = engines.shuffle.pipeline(_frame(engines, rows)).mapInArrow(of.numbers, of.NUMBERS)
    return _answer(first.repartition(PARTITIONS, "key").mapInArrow(of.second, of.SECOND).toDF().collect())


CONTESTS = [Contest("2,000 partitions x 200 tasks", 200_000, {SPARK: _sparks, FRAME: _ours})]
