"""A query's source: its offsets, and when Spark asks for which of them. ``stream_read`` and ``changelog_streams`` read
the batches.

Offsets
    ``{"generation": …, POSITION: n, "start": m}``: everything before ``n`` was read, by a query that began at ``m``.
    Spark stores the end of each batch, and not where the first one began, so each end says it. An offset without
    ``start`` is the beginning of a new query.

Spark 4.1 does not say where the last batch ended, and has no limits: the reader keeps the last offset itself.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pyspark.sql.datasource import DataSourceStreamReader

from flight_server.protocol import StaleTicket
from spark_client.executors import portable
from spark_client.merge import DatasetRef
from spark_client.pyspark_parts import ReadAllAvailable, SupportsTriggerAvailableNow

from .spark_schema import SparkSchema

Offset = dict[str, Any]


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
        begin = self._last if start is None else start
        if begin is None:  # Spark 4.1, after a restart: the checkpoint says where the batch begins
            self._last = self._resumed(limit)
            return self._last
        position = self._position(begin)
        end = self._end(begin, position, limit)
        if end == position and "start" in begin:
            return begin
        self._last = {**begin, self.POSITION: end, "start": begin.get("start", position)}
        return self._last

    # Defined by the two readers.

    def _beginning(self) -> Offset:
        raise NotImplementedError

    def _resumed(self, limit: Any) -> Offset:
        """The end of the next batch of a query whose last one only the checkpoint knows."""
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
