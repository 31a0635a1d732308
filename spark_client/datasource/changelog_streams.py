"""Streaming reads of changelogs: the deltas of each micro-batch, by versions, with the column ``_diff``.

Guarantee: the micro-batches of a query have each change once, in order of versions, also over restarts from its
checkpoint. A micro-batch that Spark runs again has the same rows: its versions are in the checkpoint, and the server
keeps what lies between them. Where it cannot, or the changelog was dropped or made anew, the query fails with an error
that says what to do.

Offsets
    ``{"generation": …, "version": v, "hold": …, "start": s}``: the changes up to version ``v`` were read, by a query
    that began at ``s``. Spark stores the end of each batch, and not where the first one began: so each end says it.
    ``s`` null: the first batch is the snapshot at its end, each row with ``_diff`` 1. An offset without ``start`` is
    the beginning of a new query, and never an end: Spark makes a batch of the first end, also if nothing is new.

Beginning (option ``starting_version``)
    ``earliest``: with all changes if the server has them from version 0 on, else with a snapshot. ``latest``: with
    what comes after the newest version. A number: with what comes after that version.

Admission
    A batch has all versions that there are, or at most ``max_versions_per_trigger``; a snapshot is not divided.

Holding
    The query holds the version up to which its last finished batch has read, by a name that is in its offsets: so a
    query that was stopped can go on, for as long as ``hold_lease_seconds``. Looking for more versions renews it and
    moves it forward, as :meth:`ChangelogStreamReader.commit` does: Spark looks when the last batch is done. Before an
    offset of the query is in its checkpoint, by which a later run finds the hold, it lasts ``NEW_LEASE_SECONDS``.

Loss
    A query that was stopped for longer than its hold, or whose hold was released, finds its version or fails. With
    the option ``fail_on_data_loss`` as ``false`` it goes on with the changes after the oldest version that there is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from flight_server.protocol import (
    Compacted,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    StaleTicket,
    Unavailable,
    Versions,
)
from spark_client.executors import portable
from spark_client.jobs import Readable
from spark_client.pyspark_parts import ReadAllAvailable, SupportsTriggerAvailableNow
from spark_client.settings import OF_PARTITIONS

from .batch_read import FlightReader, Found, Share
from .changelog_reads import Held, QueryHold, VersionRows, newest_version, with_diff
from .source_options import SourceOptions
from .spark_schema import SparkSchema

STREAM_LEASE_SECONDS = 24 * 3600.0
NEW_LEASE_SECONDS = 3600.0

Offset = dict[str, Any]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Span(InputPartition):
    """What the task of a micro-batch reads.

    Args:
        hold: the query's, in the first batch of a run: the task, and not the driver's part of the source, knows the
            query's name and run, which it says there.
    """

    versions: Versions
    hold: QueryHold | None = None


@dataclass(frozen=True)
class Following:
    """How a query follows a changelog; see the options of these names."""

    starting_version: str | int = "earliest"
    max_versions: int | None = None
    lease_seconds: float = STREAM_LEASE_SECONDS
    fails_on_loss: bool = True


class ChangelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's source. The driver's lives as long as the query; its pickle goes into the tasks."""

    def __init__(self, readable: Readable, schema: SparkSchema, following: Following | None = None) -> None:
        self._readable = readable
        self._schema = schema
        self._following = following or Following()
        self._until: int | None = None  # of a query that ends with what there is
        self._first: Offset | None = None  # Spark asks for it twice
        self._last: Offset | None = None  # Spark 4.1 does not say where the last batch ended
        self._named = False  # the query's hold says whose it is
        self._unused: str | None = None  # a hold that is not needed once the batch is done
        # Which hold was renewed for which version, when that is due again, and what it holds.
        self._renewed: tuple[tuple[str, int | None], float, Held] | None = None

    @classmethod
    def plan(cls, options: SourceOptions, found: Found, struct: StructType) -> ChangelogStreamReader:
        """The reader of a changelog.

        Raises:
            InvalidRequest: an option, a column or a type as for ``FlightReader.plan``.
        """
        options.refuse(OF_PARTITIONS, "is a changelog")
        most = options.get("max_versions_per_trigger")
        if most is not None and ReadAllAvailable is None:
            raise InvalidRequest("option 'max_versions_per_trigger' needs Spark 4.2 or later")
        following = Following(
            options.get("starting_version"),
            most,
            options.get("hold_lease_seconds") or STREAM_LEASE_SECONDS,
            options.get("fail_on_data_loss"),
        )
        return cls(
            found.readable, SparkSchema.of(with_diff(found.schema), options.dataset, struct), following
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(ChangelogStreamReader, self._readable, self._schema)

    # On the driver.

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, as below
        """Where a new query begins.

        Raises:
            Compacted, InvalidRequest: ``starting_version`` is a version that is gone, or not there yet.
        """
        if self._first is None:
            hold = QueryHold.new(self._readable, self._new_lease_seconds)
            with self._explained():
                self._first = self._last = self._offset(self._beginning(hold), hold.name)
        return self._first

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's
        return ReadAllAvailable()

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: ARG002, N802 - Spark's
        """The offset up to which the next batch reads, see *Admission*.

        Raises:
            Compacted: what comes after ``start`` is gone.
            StaleTicket: the changelog was dropped and made anew since then.
            NotFound: it is gone.
        """
        begin = self._last if start is None else start
        if begin is None:  # Spark 4.1, after a restart
            hold = QueryHold.new(self._readable, self._following.lease_seconds)
            with self._explained():
                self._last = self._offset(hold.renew().version, hold.name, start=None)
            return self._last
        version = self._version(begin)
        with self._explained():
            held = self._looked(begin, version)
        upper = held.upper if self._until is None else min(held.upper, self._until)
        if version is not None and (most := self._following.max_versions) is not None:
            upper = min(upper, version + most)
        upper = max(upper, held.version if version is None else version)
        if upper == version and "start" in begin:
            return begin
        self._last = self._offset(upper, begin["hold"], start=begin.get("start", version))
        return self._last

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        hold = QueryHold.new(self._readable, self._new_lease_seconds)
        with self._explained():
            self._until = hold.renew().upper
            hold.release()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One task, or none if there is nothing between the two offsets. From now on the query's hold is a long one.

        Raises as :meth:`latestOffset`.
        """
        begin, version = self._version(start), self._version(end)
        if "start" not in start:
            begin = end.get("start", version)  # an older client left it out where nothing was new
        is_same = start["hold"] == end["hold"]
        if not is_same:
            self._unused = start["hold"]
        with self._explained():
            held = self._kept(end, begin if is_same else None)
        if (
            begin is not None
            and version is not None
            and begin < held.since
            and not self._following.fails_on_loss
        ):
            _log.warning(
                "changelog %s: the changes after version %d up to %d were compacted, and this query goes on "
                "without them",
                self._readable.dataset,
                begin,
                held.since,
            )
            begin = min(held.since, version)
        self._last = end
        if begin == version:
            return []
        hold, self._named = None if self._named else self._hold(end), True
        return [Span(Versions(version, begin), hold)]

    def commit(self, end: Offset) -> None:
        """Hold what comes after ``end`` only. An unreachable server keeps more for a while."""
        with contextlib.suppress(Unavailable), self._explained():
            self._hold(end).renew(end["version"])
            if self._unused is not None:
                QueryHold(self._readable, self._unused, 0).release()
                self._unused = None

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """As :meth:`FlightReader.read`, of the versions in between."""
        assert isinstance(partition, Span)
        if partition.hold is not None:
            first = partition.versions.after
            with contextlib.suppress(FlightShuffleError):  # the hold is there without it
                partition.hold.renew(partition.versions.as_of if first is None else first)
        with self._explained():
            yield from FlightReader(VersionRows(self._readable, partition.versions), self._schema).read(
                Share((0,))
            )

    # Inside.

    @property
    def _new_lease_seconds(self) -> float:
        return min(NEW_LEASE_SECONDS, self._following.lease_seconds)

    def _beginning(self, hold: QueryHold) -> int | None:
        """The version that a new query begins after, which is held; None for a snapshot."""
        start = self._following.starting_version
        if isinstance(start, int):
            return hold.renew(start).version
        if start == "latest":
            return hold.renew().version
        try:
            return hold.renew(0).version
        except Compacted:
            hold.renew()
            return None

    def _offset(self, version: int | None, hold: str, **start: int | None) -> Offset:
        return {"generation": self._readable.generation, "version": version, "hold": hold, **start}

    def _version(self, offset: Offset) -> int | None:
        """The offset's version. StaleTicket if it is of another changelog."""
        if offset["generation"] != self._readable.generation:
            raise self._replaced()
        version: int | None = offset["version"]
        return version

    def _hold(self, offset: Offset) -> QueryHold:
        lease_seconds = self._following.lease_seconds if "start" in offset else self._new_lease_seconds
        return QueryHold(self._readable, offset["hold"], lease_seconds)

    def _looked(self, offset: Offset, version: int | None) -> Held:
        """As :meth:`_kept`, but the hold, which the server writes to its disk, is renewed only if it is due: without
        news Spark looks a hundred times a second.
        """
        key, now = (offset["hold"], version), time.monotonic()
        if self._renewed is not None and self._renewed[0] == key and now < self._renewed[1]:
            return replace(self._renewed[2], upper=newest_version(self._readable))
        held = self._kept(offset, version)
        self._renewed = key, now + self._hold(offset).lease_seconds / 3, held
        return held

    def _kept(self, offset: Offset, version: int | None) -> Held:
        """Renew the hold of the offset, at this version if it does not hold a later one."""
        hold = self._hold(offset)
        try:
            return hold.renew(version)
        except Compacted as error:
            if self._following.fails_on_loss:
                raise
            return hold.renew(error.detail["since"])
        except InvalidRequest:
            # An older checkpoint: the server may have compacted what it asks for, and would say so.
            held = hold.renew()
            if version is not None and version > held.upper:
                raise
            return held

    @contextlib.contextmanager
    def _explained(self) -> Generator[None, None, None]:
        """Say with an error of the server what it means for this query."""
        name = self._readable.dataset
        try:
            yield
        except Compacted as error:
            raise Compacted(
                f"changelog {name!r} is compacted beyond the version that this query reads from ({error.message}): "
                "start it with a new checkpoint location, where it begins with a snapshot, or as the option "
                "'starting_version' says; or with the option 'fail_on_data_loss' as 'false', and it goes on without "
                "the changes in between. A query that is to be stopped for longer needs more 'hold_lease_seconds'",
                **error.detail,
            ) from error
        except StaleTicket as error:
            raise self._replaced() from error
        except NotFound as error:
            raise NotFound(
                f"changelog {name!r}, which this query reads, was dropped ({error.message})", **error.detail
            ) from error

    def _replaced(self) -> StaleTicket:
        return StaleTicket(
            f"changelog {self._readable.dataset!r} was dropped and made anew since this query read from it: start the "
            "query with a new checkpoint location",
            dataset=self._readable.dataset,
        )
