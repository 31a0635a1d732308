"""Streaming reads: each partition of a dataset once, in order, as it is sealed. ``changelog_streams`` reads changelogs.

Guarantee: a micro-batch has whole partitions, from the one after the last batch on. A sealed partition never changes,
so a batch that Spark runs again reads the same rows. When the dataset is replaced, dropped or lost, the query fails
with an error that says so.

Offsets
    Those of ``query_reader``; ``partitions`` counts the ones that were read. Appends (``staged_writes`` on the server)
    add partitions to a generation, so a query goes on over them.

Admission
    A trigger takes all sealed partitions, or as many as fit one limit, at least one. A partition is not divided.

Committing
    The server keeps read partitions, for other readers. A query renews the dataset's lease whenever it looks for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from flight_server.protocol import DatasetRequest, InvalidRequest, NotFound, StaleTicket
from spark_client.merge import DatasetRef
from spark_client.pyspark_parts import ReadMaxBytes, ReadMaxFiles, ReadMaxRows
from spark_client.settings import LIMITS, OF_CHANGELOGS

from .batch_read import FlightReader, Found, Share, for_one_query, pages
from .query_reader import Offset, QueryReader
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
    def plan(cls, options: SourceOptions, found: Found, struct: StructType) -> FlightStreamReader:
        """The reader of a dataset. Raises InvalidRequest: several limits, an option, column or type as for
        ``FlightReader.plan``, or a dataset that is spread over servers, of which each knows the rows of its portion.
        """
        options.refuse(OF_CHANGELOGS, "is no changelog")
        if found.ref.is_spread:
            raise InvalidRequest(
                f"dataset {options.dataset!r} is an exchange over several servers, which grows no more: read it with "
                "spark.read",
                dataset=options.dataset,
            )
        schema = SparkSchema.of(found.schema, options.dataset, struct)
        given = [name for name in LIMITS if options.get(name) is not None]
        if len(given) > 1:
            raise InvalidRequest(f"give one limit of a trigger, not {' and '.join(given)}")
        kinds = dict(zip(LIMITS, (ReadMaxRows, ReadMaxBytes, ReadMaxFiles), strict=True))
        if given and ReadMaxRows is None:
            raise InvalidRequest(f"option {given[0]!r} needs Spark 4.2 or later")
        limit = kinds[given[0]](options.get(given[0])) if given else None
        return cls(found.ref, schema, options.get("starting"), limit)

    # On the driver.

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's names, as below
        return self._limit or super().getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = self._sealed(0, _Limit())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """A task for each partition with rows between the two offsets."""
        shares = []
        for index, facts in pages(self._ref, *self._bounds(start, end)):
            if facts is not None and facts["rows"]:
                shares.append(Share((index,)))
        return for_one_query(shares)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: see *Committing*."""

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return FlightReader(self._ref, self._schema).read(partition)

    # Inside.

    def _beginning(self) -> Offset:
        return self._offset(self._sealed(0, _Limit()) if self._starting == "latest" else 0)

    def _resumed(self, limit: Any) -> Offset:
        return self._offset(self._end({}, 0, limit))

    def _end(self, begin: Offset, position: int | None, limit: Any) -> int:
        del begin
        self._renew()
        return self._sealed(position or 0, _Limit.of(limit))

    def _sealed(self, first: int, limit: _Limit) -> int:
        """The end of the sealed partitions from ``first`` on that the limit allows."""
        rows = size_bytes = 0
        end = first
        for index, facts in pages(self._ref, first, self._until):
            if facts is not None:
                rows, size_bytes = rows + facts["rows"], size_bytes + facts["bytes"]
                if facts["state"] != "sealed" or (
                    index > first and not limit.allows(rows, size_bytes, index + 1 - first)
                ):
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
