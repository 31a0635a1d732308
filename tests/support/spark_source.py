"""What tests of the data source share: readers and writers for one server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Tables:
    """Datasets of one server, as tables of one session."""

    spark: SparkSession
    location: str

    def load(self, name: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("flight").option("location", self.location)
        return reader.options(**options).load(name)

    def save(self, df: DataFrame, name: str, mode: str = "append", **options: str) -> None:
        writer = df.write.format("flight").option("location", self.location).mode(mode)
        writer.options(**options).save(name)

    def stream(self, name: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("flight").option("location", self.location)
        return reader.options(**options).load(name)

    def start(
        self, df: DataFrame, name: str, checkpoint: object, mode: str = "append", **options: str
    ) -> Any:
        """A query that writes what there is now; it has ended when this returns, or raises its error."""
        writer = df.writeStream.format("flight").option("location", self.location).outputMode(mode)
        writer = writer.option("checkpointLocation", str(checkpoint)).options(**options)
        query = writer.trigger(availableNow=True).start(name)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query
