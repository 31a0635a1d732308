"""Streaming reads: each partition of a dataset once, in order, as it is sealed. ``changelog_streams`` reads changelogs.

Guarantee: a micro-batch has whole partitions, from the one after the last batch on. A sealed partition never changes,
so a batch that Spark runs again reads the same rows. When the dataset is replaced, dropped or lost, the query fails
with an error that says so.

Offsets
    ``{"generation": …, POSITION: n, "start": m}``: everything before ``n`` was read, by a query that began at ``m``.
    Spark stores the end of each batch, and not where the first one began, so each end says it. An offset without
    ``start`` is the beginning of a new query. Here ``partitions`` counts the ones that were read. Appends
    (``staged_writes`` on the server) add partitions to a generation, so a query goes on over them.

    After a restart Spark first asks for the partitions between the checkpoint's last offset and itself. Spark 4.1 does
    not say otherwise where the last batch ended: the reader keeps the last offset, and begins where there is none.

Admission
    A trigger takes all sealed partitions, or as many as fit one limit, at least one. A partition is not divided. Spark
    4.1 has no limits.

Committing
    The server keeps read partitions, for other readers. A query renews the dataset's lease whenever it looks for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from flight_server.protocol import DatasetRequest, InvalidRequest, NotFound, StaleTicket
from spark_client.connection import short_traces
from spark_client.executors import portable
from spark_client.merge import DatasetRef
from spark_client.pyspark_parts import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_client.settings import LIMITS, OF_CHANGELOGS

from .batch_read import DescribedDataset, FlightReader, Share, for_one_query, pages
from .source_options import SourceOptions
from .spark_schema import SparkSchema

Offset = dict[str, Any]


@short_traces
class QueryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's lives as long as the query; its pickle, without state, goes into the tasks."""

    POSITION: ClassVar[str]
    REPLACED: ClassVar[str]
    """The error for a query whose dataset has another generation by now; ``{}`` is the name."""

    def __init__(self, ref: DatasetRef, schema: SparkSchema) -> None:
        self._ref = ref
        self._schema = schema
        self._until: int | None = None  # of a query that ends with the present data
        self._first: Offset | None = None  # Spark asks for it twice
        self._last: Offset | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(type(self), self._ref, self._schema)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, as below
        """Where a new query begins. Raises as :meth:`latestOffset`."""
        if self._first is None:
            self._first = self._last = self._beginning()
        return self._first

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802 - Spark's name
        """The offset up to which the next batch reads.

        Raises:
            StaleTicket: the dataset was replaced since ``start``.
            NotFound: it is gone.
            Compacted: the versions after ``start`` are gone.
        """
        begin = start or self._last or self.initialOffset()
        position = self._position(begin)
        end = self._end(begin, position, limit)
        if end == position and "start" in begin:
            return begin
        self._last = {**begin, self.POSITION: end, "start": begin.get("start", position)}
        return self._last

    # Defined by the two readers.

    def _beginning(self) -> Offset:
        raise NotImplementedError

    def _end(self, begin: Offset, position: int | None, limit: Any) -> int:
        raise NotImplementedError

    # For them.

    def _offset(self, position: int | None, **others: Any) -> Offset:
        return {"generation": self._ref.generation, self.POSITION: position, **others}

    def _position(self, offset: Offset) -> Any:
        """The offset's position. StaleTicket if it is of another generation."""
        if offset["generation"] != self._ref.generation:
            raise self._replaced()
        return offset[self.POSITION]

    def _bounds(self, start: Offset, end: Offset) -> tuple[Any, Any]:
        first, last = self._position(start), self._position(end)
        self._last = end
        return first if "start" in start else end.get("start", first), last

    def _replaced(self) -> StaleTicket:
        name = self._ref.dataset
        return StaleTicket(self.REPLACED.format(repr(name)), dataset=name)


@short_traces
class FlightStreamReader(QueryReader):
    """A query's source."""

    POSITION = "partitions"
    REPLACED = (
        "dataset {} was replaced since this query read from it: start it with a new checkpoint location"
    )

    def __init__(
        self, ref: DatasetRef, schema: SparkSchema, starting: str = "earliest", limit: Any = None
    ) -> None:
        super().__init__(ref, schema)
        self._starting = starting
        self._limit = limit

    @classmethod
    def plan(cls, options: SourceOptions, source: DescribedDataset, struct: StructType) -> FlightStreamReader:
        """The reader of a dataset. Raises InvalidRequest: several limits, an option, column or type as for
        ``FlightReader.plan``, or a dataset that is spread over servers, of which each knows the rows of its portion.
        """
        options.refuse(OF_CHANGELOGS, "is no changelog")
        if source.ref.is_spread:
            raise InvalidRequest(
                f"dataset {options.dataset!r} is an exchange over several servers, which grows no more: read it with "
                "spark.read",
                dataset=options.dataset,
            )
        schema = SparkSchema.of(source.schema, options.dataset, struct)
        limits = [name for name in LIMITS if options.get(name) is not None]
        if len(limits) > 1:
            raise InvalidRequest(f"give one limit of a trigger, not {' and '.join(limits)}")
        kinds = dict(zip(LIMITS, (ReadMaxRows, ReadMaxBytes, ReadMaxFiles), strict=True))
        if limits and ReadMaxRows is None:
            raise InvalidRequest(f"option {limits[0]!r} needs Spark 4.2 or later")
        limit = kinds[limits[0]](options.get(limits[0])) if limits else None
        return cls(source.ref, schema, options.get("starting"), limit)

    # On the driver.

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's names, as below
        return self._limit or super().getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = self._sealed(0)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """A task for each partition with rows between the two offsets."""
        shares = []
        for index, facts in pages(self._ref, *self._bounds(start, end)):
            if facts is not None and facts["rows"]:
                shares.append(Share(index))
        return for_one_query(shares)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: see *Committing*."""

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return FlightReader(self._ref, self._schema).read(partition)

    # Inside.

    def _beginning(self) -> Offset:
        return self._offset(self._sealed(0) if self._starting == "latest" else 0)

    def _end(self, begin: Offset, position: int | None, limit: Any) -> int:
        del begin
        self._renew()
        return self._sealed(position or 0, limit)

    def _sealed(self, first: int, limit: Any = None) -> int:
        """The end of the sealed partitions from ``first`` on that a limit of Spark's allows."""
        most = [getattr(limit, name, None) for name in ("max_rows", "max_bytes", "max_files")]
        rows = size_bytes = 0
        end = first
        for index, facts in pages(self._ref, first, self._until):
            if facts is not None:
                rows, size_bytes = rows + facts["rows"], size_bytes + facts["bytes"]
                sums = (rows, size_bytes, index + 1 - first)
                fits = all(each is None or count <= each for count, each in zip(sums, most, strict=True))
                if facts["state"] != "sealed" or (index > first and not fits):
                    break
            end = index + 1
        return end

    def _renew(self) -> None:
        ref = self._ref
        try:
            ref.server.action("renew", DatasetRequest(ref.dataset, ref.generation).encode())
        except StaleTicket as error:
            raise self._replaced() from error
        except NotFound as error:
            raise NotFound(
                f"dataset {ref.dataset!r}, which this stream reads, is gone ({error.message})",
                **error.detail,
            ) from error
