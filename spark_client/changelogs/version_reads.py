"""Snapshots and deltas of a changelog, as tables or as batches, each with the version that it is of.

Guarantee: all rows of one version of one generation, or an error (``lanes.version_cursor``). A table that broke off
while it was fetched is fetched again from its start, as often as ``Timeouts.tries`` says; batches of which the
consumer may have some are not: the iterator raises ``CutRead``.

Who holds the data
    One thread drains the stream, within the budget of ``Reading``, as for any dataset (``merge.merged``). A table
    takes memory beyond this budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from flight_server.memory import MemoryPool
from flight_server.protocol import Ticket, Versions
from spark_client.connection import Closable, retrying
from spark_client.lanes import Batch, CutRead, ReadStream, VersionCursor
from spark_client.merge import DatasetRef, merge


def version_stream(ref: DatasetRef, cursor: VersionCursor) -> ReadStream:
    """A stream of versions of a changelog, not opened yet."""
    (portion,) = ref.portions
    return ReadStream(ref.server, cursor, locations=portion.locations, lane=ref.server.reading.lane)


def version_cursor(ref: DatasetRef, versions: Versions) -> VersionCursor:
    """Before the first of these versions of a changelog."""
    return VersionCursor(Ticket(ref.dataset, generation=ref.generation or None, versions=versions))


@dataclass(frozen=True)
class Snapshot:
    """The rows that the rule keeps at ``version``, each as often as it counts there."""

    version: int
    table: pa.Table


@dataclass(frozen=True)
class Deltas:
    """The changes up to ``version``. The last column of ``table``, ``_diff: int64``, says how often a row was asserted
    (above zero) or retracted (below zero).
    """

    version: int
    table: pa.Table


class VersionBatches(Closable):
    """An iterator of the batches of one snapshot, or of deltas; also a context manager that ends the read.

    There is at least one batch, which may have no rows. Every error of the read is raised by the call that waits:
    ``Compacted`` if the versions begin before the changelog's ``since``, ``InvalidRequest`` if they end after its
    ``upper``, ``StaleTicket`` if the changelog was dropped.
    """

    def __init__(self, ref: DatasetRef, versions: Versions, pool: MemoryPool | None = None) -> None:
        server = ref.server
        reading = server.reading
        self._cursor = version_cursor(ref, versions)
        self._merged = merge(
            [version_stream(ref, self._cursor)],
            pool=pool or MemoryPool(reading.budget_bytes, "merge"),
            scratch_dir=reading.scratch_dir,
            timeouts=server.timeouts,
        )
        self._first: deque[Batch] = deque()

    @property
    def schema(self) -> pa.Schema:
        """Of every batch. Blocks until the server has sent it."""
        return self._merged.schema

    @property
    def version(self) -> int:
        """The version of all batches. Blocks until the first has come."""
        if self._cursor.version is None:
            self._first.append(next(self._merged))
        assert self._cursor.version is not None
        return self._cursor.version

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self._first.popleft() if self._first else next(self._merged)

    def close(self) -> None:
        """End the read. Twice, and after the end, is fine."""
        self._merged.close()


def fetch(ref: DatasetRef, versions: Versions) -> tuple[int, pa.Table]:
    """The version, and all rows. Raises as :class:`VersionBatches`."""

    def once() -> tuple[int, pa.Table]:
        with VersionBatches(ref, versions) as batches:
            table = pa.Table.from_batches(list(batches), batches.schema)
            return batches.version, table

    return retrying(ref.server.timeouts, once, (CutRead,))
