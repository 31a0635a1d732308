"""Exchange rates as a changelog, and a stream of orders that lookups enrich with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_client.changelogs import Changelog
from tests.support.rates import RATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def quote(rates: Changelog, time: int, **each: float) -> int:
    """Commit the rates of a time; the version."""
    columns = [list(each), [time] * len(each), list(each.values())]
    return rates.put(pa.table(columns, schema=RATES))


class Orders:
    """A stream of orders out of files, joined by a query that is run for what there is and then stopped."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.files = directory / "orders"
        self.checkpoint = directory / "checkpoint"
        self.files.mkdir(exist_ok=True)
        self.seen: list[tuple[int, list[Any]]] = []

    def arrive(self, *currencies: str) -> None:
        number = len(list(self.files.iterdir()))
        lines = [json.dumps({"id": number * 100 + n, "currency": each}) for n, each in enumerate(currencies)]
        (self.files / f"{number}.json").write_text("\n".join(lines))

    @property
    def stream(self) -> DataFrame:
        reader = self.spark.readStream.schema("id int, currency string").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.files))

    def run(
        self, joined: DataFrame, see: Callable[[DataFrame, int], None] | None = None
    ) -> list[tuple[int, list[Any]]]:
        """Run the query until all files are done; the number and rows of each of its batches."""
        seen: list[tuple[int, list[Any]]] = []

        def collect(df: DataFrame, number: int) -> None:
            seen.append((number, sorted(map(tuple, df.collect()))))

        writer = joined.writeStream.foreachBatch(see or collect).option(
            "checkpointLocation", str(self.checkpoint)
        )
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return seen

    def forget_commit(self, number: int) -> None:
        """As if the driver had been killed after it wrote the batch's offsets, and before its commit."""
        for path in (self.checkpoint / "commits").glob(f"*{number}*"):
            path.unlink()
