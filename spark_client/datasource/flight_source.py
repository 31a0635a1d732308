"""The class that Spark makes of the format ``flight``: which reader or writer an operation gets.

Guarantee: options are checked when Spark makes the reader or writer, on the driver; a wrong one is named.

Where it runs
    Spark makes it in a Python process beside the driver, for each step of the planning anew: nothing is kept between
    two steps but what is pickled. So it also needs the package there: installed, or sent by ``ship`` before.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .batch_read import FlightReader, find
from .batch_write import FlightWriter
from .source_options import ANY_READ, BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE, SourceOptions
from .spark_schema import spark_struct
from .stream_read import FlightStreamReader
from .stream_write import FlightStreamWriter

NAME = "flight"


class FlightDataSource(DataSource):
    """The data source ``flight``; see the README for its options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._generation: str | None = None  # of the schema that Spark was told

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Spark's schema of the dataset, as the server has it now. Errors are those of :meth:`FlightReader.plan`."""
        options = SourceOptions(self.options, ANY_READ)
        found = find(options.server(), options.dataset)
        self._generation = found.readable.generation
        return spark_struct(found.schema, options.dataset, options.get("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions(self.options, BATCH_READ)
        return FlightReader.plan(options, schema, self._generation)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's call, as below
        return FlightWriter.plan(SourceOptions(self.options, BATCH_WRITE), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        return FlightStreamReader.plan(SourceOptions(self.options, STREAM_READ), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        return FlightStreamWriter.plan(SourceOptions(self.options, STREAM_WRITE), schema, overwrite=overwrite)
