"""Python stage -> repartition(16) -> Python stage -> Parquet files, ours against Spark's own exchange and writer.

    ours    scan(files) or pipeline(df), then .mapInArrow(first).repartition(16, "key").mapInArrow(second).write.parquet
    Spark   df.mapInArrow(first).repartition(16, "key").mapInArrow(second).write.parquet

20 M rows of four columns, one a text of 16 bytes, from Parquet to 16 files of Parquet with snappy, on the local disk.
The files' footers are compared in every round, all values on a tenth of the rows before the first one. The files go to
the page cache; nothing is synced, on either side.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset as ds

from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.contests import SPARK, Contest, both, files, report
from tests.benchmarks.on_spark.engines import Engines, Options

PARTITIONS = 16
ROWS = 20_000_000
COLUMNS = ["key", "twice", "gross", "name"]


def charged(batches: of.Batches) -> of.Batches:
    """Of the first stage's rows one column is computed again."""
    for batch in batches:
        yield batch.set_column(2, "gross", pc.add(batch.column("gross"), 1.0))


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("writes", arguments)
    report("Python → exchange → Python → Parquet", CONTESTS, options, f"local[2], {PARTITIONS} files")


def answer(path: Path, rows: int) -> Any:
    """What was written, as the footers say; of few rows also the sum of their hashes."""
    written = sorted(path.glob("*.parquet"))
    footers = [pq.read_metadata(file) for file in written]
    keys = [footer.row_group(0).column(0).statistics for footer in footers]
    found = [sum(footer.num_rows for footer in footers), min(each.min for each in keys), len(written)]
    if rows <= ROWS // 10:
        batches = ds.dataset(written).to_batches(columns=COLUMNS)
        found.append(sum(row["digest"] for row in _digests(batches)) % (1 << 63))
    return found


def _digests(batches: Any) -> list[dict[str, int]]:
    return [
        row for each in of.digest(batch for batch in batches if batch.num_rows) for row in each.to_pylist()
    ]


def _written(write: Callable[[Engines, int, Path], None], engines: Engines, rows: int) -> Any:
    with TemporaryDirectory(dir=data.HOME) as directory:
        path = Path(directory, "out")
        write(engines, rows, path)
        found = answer(path, rows)
        shutil.rmtree(path)
    assert found[0] == rows
    return found


def _ours_written(kind: str, engines: Engines, rows: int) -> Any:
    return _written(partial(_ours, kind), engines, rows)


def _sparks(engines: Engines, rows: int, path: Path) -> None:
    first = engines.spark.read.parquet(str(data.named_parquet(rows))).mapInArrow(of.named, of.NAMED)
    first.repartition(PARTITIONS, "key").mapInArrow(charged, of.NAMED).write.parquet(str(path))


def _ours(kind: str, engines: Engines, rows: int, path: Path) -> None:
    first = files(engines, kind, data.named_parquet(rows)).mapInArrow(of.named, of.NAMED)
    first.repartition(PARTITIONS, "key").mapInArrow(charged, of.NAMED).write.parquet(path)


CONTESTS = [
    Contest(
        "20 M rows x 4",
        ROWS,
        {
            SPARK: partial(_written, _sparks),
            **both(_ours_written),
        },
    )
]
