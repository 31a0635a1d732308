"""The result of an exchange on its way back into Spark: read by ``toDF`` into a second Python UDF, a scalar Arrow one.

    by number   a ``mapInArrow`` over ``spark.range`` reads a partition in each task: how ``toDF`` began
    toDF        as it is now
    source      the same dataset by ``spark.read.format("flight")``

Only the reading job is measured: 20 M rows x 4 columns, one a string, lie on the server, as an exchange left them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

from spark_client import FlightDataSource
from spark_client.connection import RemoteServer
from spark_client.jobs import ReadTask, Shares, reader
from spark_client.merge import DatasetRef
from tests.benchmarks.measure import measure, table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.engines import COLUMNS, Engines, Options, rows_of

ROWS = 20_000_000
ROW_BYTES = 40
PARTITIONS = 16


def scored(twice: pa.Array, gross: pa.Array, name: pa.Array) -> pa.Array:
    """A number of all three."""
    return pc.add(pc.add(twice, pc.floor(gross)), pc.binary_length(name))


class Written:
    """The dataset of one session and server, and the ways to read it."""

    def __init__(self, engines: Engines, rows: int) -> None:
        engines.spark.dataSource.register(FlightDataSource)
        scan = engines.shuffle.scan(data.named_parquet(rows), spark=engines.spark)
        exchange = scan.mapInArrow(of.named, of.NAMED).exchange(PARTITIONS, "key")
        self._engines = engines
        self.to_df = exchange.toDF()
        (self._dataset,) = (found.name for found in engines.shuffle.datasets("exchange/"))

    def by_number(self) -> Any:
        with closing(RemoteServer(self._engines.shuffle.location)) as server:
            ref = DatasetRef.find(server, self._dataset)
        task = ReadTask(ref, Shares.each(PARTITIONS))
        numbers = self._engines.spark.range(0, PARTITIONS, 1, PARTITIONS)
        return numbers.mapInArrow(reader(task, [self._dataset]), of.NAMED)

    def source(self) -> Any:
        options = {"location": self._engines.shuffle.location}
        return self._engines.spark.read.format("flight").options(**options).load(self._dataset)


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("results", arguments)
    options.announce("Results into Spark", f"local[2], {PARTITIONS} partitions")
    rows = max(1000, int(ROWS * options.scale))
    sums: dict[str, float] = {}
    with Engines() as engines:
        written = Written(engines, rows)

        def fresh() -> None:
            nonlocal written
            engines.renew()
            written = Written(engines, rows)

        def run(name: str, frame: Callable[[Written], Any]) -> int:
            # A UDF belongs to the session that it was made in.
            score = arrow_udf(scored, "double", ArrowUDFType.SCALAR)("twice", "gross", "name")
            found = frame(written).agg(sql.count("*"), sql.sum("key"), sql.sum(score)).collect()[0]
            assert (found[0], found[1]) == (rows, rows * (rows - 1) // 2), found
            assert sums.setdefault("all", found[2]) == found[2], (name, found, sums)
            return rows * ROW_BYTES

        ways: dict[str, Callable[[Written], Any]] = {
            "by number": Written.by_number,
            "source": Written.source,
            "toDF": lambda of_session: of_session.to_df,
        }
        subjects = [engines.subject(name, partial(run, name, way), ours=True) for name, way in ways.items()]
        measure(subjects, options.rounds, fresh)
    columns = ["x by number" if column == "x Spark" else column for column in COLUMNS]
    table("toDF() into a scalar Arrow UDF", columns, rows_of(f"{rows:,} rows", subjects))
