"""The class that Spark makes of the format ``flight``: which reader or writer an operation gets.

Guarantee: options are checked when Spark makes the reader or writer, on the driver; a wrong one is named.

Where it runs
    Spark makes it in a Python process beside the driver, for each step of the planning anew: nothing is kept between
    two steps but pickles. So it also needs the package there: installed, or sent by ``ship`` before. It has no session
    there: :class:`Registered` gives it the defaults of its options.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_client.changelogs import with_diff
from spark_client.connection import RemoteServer, short_traces
from spark_client.executors import portable
from spark_client.settings import ANY_READ, BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE

from .batch_read import FlightReader, find, plan_versions
from .changelog_streams import ChangelogStreamReader
from .source_options import SourceOptions
from .spark_schema import spark_struct
from .stream_read import FlightStreamReader
from .writers import FlightStreamWriter, FlightWriter

NAME = "flight"


@short_traces
class FlightDataSource(DataSource):
    """The data source ``flight``; see the README beside it for its options."""

    defaults: ClassVar[RemoteServer | None] = None
    """The values of options that are not given."""
    location: ClassVar[str] = ""
    """That of ``defaults``, or of all servers of its client."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._generation: str | None = None  # of the schema that Spark was told

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Spark's schema of the dataset, as the server has it now. Raises as :func:`find` and :func:`spark_struct`."""
        options = self._options_for(ANY_READ)
        source = find(options.server(), options.dataset)
        self._generation = source.ref.generation
        schema = with_diff(source.schema) if source.is_changelog else source.schema
        return spark_struct(schema, options.dataset, options.get("columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options_for(BATCH_READ)
        server = options.server()
        server.patient = server.patient or self._generation is not None  # the ``load`` has reached it
        source = find(server, options.dataset, self._generation)
        plan = plan_versions if source.is_changelog else FlightReader.plan
        return plan(options, source, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's call, as below
        return FlightWriter.plan(self._options_for(BATCH_WRITE), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        options = self._options_for(STREAM_READ)
        source = find(options.server(), options.dataset)
        plan = ChangelogStreamReader.plan if source.is_changelog else FlightStreamReader.plan
        return plan(options, source, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's signature
        return FlightStreamWriter.plan(self._options_for(STREAM_WRITE), schema, overwrite=overwrite)

    def _options_for(self, use: str) -> SourceOptions:
        return SourceOptions(self.options, use, self.defaults, self.location)


class Registered:
    """The argument of ``spark.dataSource.register`` for the source with these defaults: where Spark unpickles it, the
    class; where the package is missing, an error that names the remedy. ``location`` has all servers, if there are
    several.
    """

    def __init__(self, defaults: RemoteServer, location: str = "") -> None:
        self._arguments = defaults, location

    @staticmethod
    def name() -> str:
        return NAME

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(_with_defaults, *self._arguments)


def _with_defaults(defaults: RemoteServer, location: str) -> type[FlightDataSource]:
    attributes = {"defaults": defaults, "location": location}
    return type(FlightDataSource.__name__, (FlightDataSource,), attributes)
