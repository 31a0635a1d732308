"""Python stage -> join of 10 M with 2 M rows -> Python stage, ours against ``mapInArrow -> join -> mapInArrow``.

Each row of the left side has one of the right side's 2 M keys. The first stages add a column to each side, the last
one makes a checksum of the joined rows. Both join on 16 partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.contests import SPARK, Contest, both, files, report
from tests.benchmarks.on_spark.engines import Engines, Options

PARTITIONS = 16
ROWS = 10_000_000
SHARE = 5
"""The left side has so many times the rows of the right one."""
LEFT = "key long, amount double, gross double"
RIGHT = "key long, weight double, name string"
JOINED = ["key", "amount", "gross", "weight", "name"]


def gross(batches: of.Batches) -> of.Batches:
    """From (key, amount): one column more."""
    for batch in batches:
        taxed = pc.multiply(batch.column("amount"), 1.19)
        yield pa.record_batch([*batch.columns, taxed], names=["key", "amount", "gross"])


def weighed(batches: of.Batches) -> of.Batches:
    """From (id, quantity, amount, name): key, a computed column, the text."""
    for batch in batches:
        weight = pc.multiply(batch.column("amount"), pc.cast(batch.column("quantity"), pa.float64()))
        yield pa.record_batch(
            [batch.column("id"), weight, batch.column("name")], names=["key", "weight", "name"]
        )


def digest(batches: of.Batches) -> Iterator[Any]:
    """The checksum of the columns in one order."""
    return of.digest(batch.select(JOINED) for batch in batches)


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("joins", arguments)
    report("Python → join → Python", CONTESTS, options, f"local[2], {PARTITIONS} partitions")


def _files(rows: int) -> tuple[Any, Any]:
    return data.grouped_parquet(rows, rows // SHARE), data.named_parquet(rows // SHARE)


def _answer(found: Any) -> tuple[int, int]:
    rows, total = (sum(row[column] for row in found) for column in range(2))
    return rows, total % (1 << 63)


def _sparks(engines: Engines, rows: int) -> Any:
    engines.spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    left, right = (engines.spark.read.parquet(str(path)) for path in _files(rows))
    joined = left.mapInArrow(gross, LEFT).join(right.mapInArrow(weighed, RIGHT), "key")
    return _answer(joined.mapInArrow(digest, of.DIGEST).collect())


def _ours(kind: str, engines: Engines, rows: int) -> Any:
    starts = [files(engines, kind, path) for path in _files(rows)]
    left, right = starts[0].mapInArrow(gross, LEFT), starts[1].mapInArrow(weighed, RIGHT)
    joined = left.join(right, on="key", numPartitions=PARTITIONS)
    return _answer(joined.mapInArrow(digest, of.DIGEST).toDF().collect())


CONTESTS = [
    Contest("10 M x 2 M rows", ROWS, {SPARK: _sparks, **both(_ours)}),
]
