"""Streaming reads: each partition of a dataset once, in order, as it is sealed. ``changelog_streams`` reads changelogs.

Guarantee: a micro-batch has whole partitions, from the one after the last batch on. A sealed partition never changes,
so a batch that Spark runs again reads the same rows. When the dataset is replaced, dropped or lost, the query fails
with an error that says so.

Offsets
    ``{"generation": …, "partitions": n, "start": m}``: the first ``n`` partitions were read, by a query that began
    after the first ``m``. Spark stores the end of each batch, and not where the first one began, so each end says it.
    Appends (``staged_writes`` on the server) add partitions to a generation, so a query goes on over them.

Admission
    A trigger takes all sealed partitions, or as many as fit one limit, at least one. A partition is not divided.

Committing
    The server keeps what was read, for other readers. A query renews the dataset's lease whenever it looks for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from flight_server.protocol import DatasetRequest, InvalidRequest, NotFound, StaleTicket
from spark_client.executors import portable
from spark_client.jobs import Readable
from spark_client.pyspark_parts import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_client.settings import LIMITS, OF_CHANGELOGS

from .batch_read import FlightReader, Found, Share, for_one_query, pages
from .source_options import SourceOptions
from .spark_schema import SparkSchema


@dataclass(frozen=True)
class _Limit:
    """At most so many rows, bytes and partitions in a batch, after its first partition; None is no limit."""

    rows: int | None = None
    size_bytes: int | None = None
    partitions: int | None = None

    @classmethod
    def of(cls, limit: Any) -> _Limit:
        return cls(
            getattr(limit, "max_rows", None),
            getattr(limit, "max_bytes", None),
            getattr(limit, "max_files", None),
        )

    def allows(self, rows: int, size_bytes: int, partitions: int) -> bool:
        return (
            (self.rows is None or rows <= self.rows)
            and (self.size_bytes is None or size_bytes <= self.size_bytes)
            and (self.partitions is None or partitions <= self.partitions)
        )


class FlightStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's source. The driver's lives as long as the query; its pickle goes into the tasks."""

    def __init__(
        self, readable: Readable, schema: SparkSchema, starting: str = "earliest", limit: Any = None
    ) -> None:
        self._readable = readable
        self._schema = schema
        self._starting = starting
        self._limit = limit
        self._last: int | None = None  # of a query that ends with what there is
        self._first: dict[str, Any] | None = None  # Spark asks for it twice
        self._at: dict[str, Any] | None = None  # Spark 4.1 does not say where the last batch ended

    @classmethod
    def plan(cls, options: SourceOptions, found: Found, struct: StructType) -> FlightStreamReader:
        """The reader of a dataset.

        Raises:
            InvalidRequest: several limits, or an option, column or type as for ``FlightReader.plan``.
        """
        options.refuse(OF_CHANGELOGS, "is no changelog")
        schema = SparkSchema.of(found.schema, options.dataset, struct)
        given = [name for name in LIMITS if options.get(name) is not None]
        if len(given) > 1:
            raise InvalidRequest(f"give one limit of a trigger, not {' and '.join(given)}")
        kinds = dict(zip(LIMITS, (ReadMaxRows, ReadMaxBytes, ReadMaxFiles), strict=True))
        if given and ReadMaxRows is None:
            raise InvalidRequest(f"option {given[0]!r} needs Spark 4.2 or later")
        limit = kinds[given[0]](options.get(given[0])) if given else None
        return cls(found.readable, schema, options.get("starting"), limit)

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(FlightStreamReader, self._readable, self._schema)

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, as below
        if self._first is None:
            begin = self._sealed(0, _Limit()) if self._starting == "latest" else 0
            self._first = self._at = self._offset(begin)
        return self._first

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's
        return self._limit or ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's
        """The offset up to which the next batch reads, see *Admission*.

        Raises:
            StaleTicket: the dataset was replaced since ``start``.
            NotFound: it is gone.
        """
        begin = self._at if start is None else start
        first = 0 if begin is None else self._count(begin)
        self._renew()
        end = self._sealed(first, _Limit.of(limit))
        if begin is None:  # Spark 4.1, after a restart: the checkpoint says where the batch begins
            return self._offset(end)
        if end == first and "start" in begin:
            return begin
        return self._offset(end, start=begin.get("start", first))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        self._last = self._sealed(0, _Limit())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A task for each partition with rows between the two offsets."""
        first, last = self._count(start), self._count(end)
        if "start" not in start:
            first = end.get("start", first)
        self._at = end
        shares = []
        for index, facts in pages(self._readable, first, last):
            if facts is not None and facts["rows"]:
                shares.append(Share((index,)))
        return for_one_query(shares)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: see *Committing*."""

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """As :meth:`FlightReader.read`."""
        return FlightReader(self._readable, self._schema).read(partition)

    # Inside.

    def _offset(self, partitions: int, **start: int) -> dict[str, Any]:
        return {"generation": self._readable.generation, "partitions": partitions, **start}

    def _count(self, offset: dict[str, Any]) -> int:
        if offset["generation"] != self._readable.generation:
            raise self._replaced()
        return int(offset["partitions"])

    def _sealed(self, first: int, limit: _Limit) -> int:
        """The end of the sealed partitions from ``first`` on that the limit allows."""
        rows = size_bytes = 0
        end = first
        for index, facts in pages(self._readable, first, self._last):
            if facts is not None:
                rows, size_bytes = rows + facts["rows"], size_bytes + facts["bytes"]
                if facts["state"] != "sealed" or (
                    index > first and not limit.allows(rows, size_bytes, index + 1 - first)
                ):
                    break
            end = index + 1
        return end

    def _renew(self) -> None:
        readable = self._readable
        try:
            readable.server.action("renew", DatasetRequest(readable.dataset, readable.generation).encode())
        except StaleTicket as error:
            raise self._replaced() from error
        except NotFound as error:
            raise NotFound(
                f"dataset {readable.dataset!r}, which this stream reads, was dropped, or lost with its server "
                f"({error.message})",
                **error.detail,
            ) from error

    def _replaced(self) -> StaleTicket:
        return StaleTicket(
            f"dataset {self._readable.dataset!r} was replaced since this query read from it: start it with a new "
            "checkpoint location",
            dataset=self._readable.dataset,
        )
