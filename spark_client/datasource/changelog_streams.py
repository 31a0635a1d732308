"""Streaming reads of changelogs: the deltas of each micro-batch, by versions, with the column ``_diff``.

Guarantee: the micro-batches of a query have each change once, in order of versions, also over restarts from its
checkpoint. A micro-batch that Spark runs again has the same rows: its versions are in the checkpoint, and the server
keeps the versions between them. Where it cannot, or the changelog was dropped or made anew, the query fails with an
error that names the remedy.

Offsets
    Those of ``stream_read``, with the query's ``hold``: the changes up to ``version`` were read. ``start`` null: the
    first batch is the snapshot at its end, each row with ``_diff`` 1. An offset without ``start`` is never an end:
    Spark makes a batch of the first end, also if nothing is new.

Beginning (option ``starting_version``)
    ``earliest``: with all changes if the server has them from version 0 on, else with a snapshot. ``latest``: with the
    changes after the newest version. A number: with those after that version.

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

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
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
from spark_client.changelogs import Changelog, HeldVersions, NamedHold, with_diff
from spark_client.connection import short_traces
from spark_client.merge import DatasetRef
from spark_client.pyspark_parts import ReadAllAvailable
from spark_client.settings import OF_PARTITIONS

from .batch_read import (
    DescribedDataset,
    FlightReader,
    Share,
    VersionRows,
    new_hold,
    owned_by_task,
)
from .source_options import SourceOptions
from .spark_schema import SparkSchema
from .stream_read import Offset, QueryReader

STREAM_LEASE_SECONDS = 24 * 3600.0
NEW_LEASE_SECONDS = 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Span(InputPartition):
    """The versions that the task of a micro-batch reads. ``hold``: the query's, in the first batch of a run: the task,
    and not the driver's part of the source, knows the query's name and run, which it says there.
    """

    versions: Versions
    hold: NamedHold | None = None


@dataclass(frozen=True)
class Following:
    """How a query follows a changelog; see the options of these names."""

    starting_version: str | int = "earliest"
    max_versions: int | None = None
    lease_seconds: float = STREAM_LEASE_SECONDS
    fails_on_loss: bool = True


@short_traces
class ChangelogStreamReader(QueryReader):
    """A query's source."""

    POSITION = "version"
    REPLACED = (
        "changelog {} was dropped and made anew since this query read from it: start the query with a new checkpoint "
        "location"
    )

    def __init__(self, ref: DatasetRef, schema: SparkSchema, following: Following | None = None) -> None:
        super().__init__(ref, schema)
        self._following = following or Following()
        self._named = False  # the query's hold says whose it is
        self._unused: str | None = None  # a hold that is not needed once the batch is done
        # The renewed hold and its version, when that is due again, and the versions that it holds.
        self._renewed: tuple[tuple[str, int | None], float, HeldVersions] | None = None

    @classmethod
    def plan(
        cls, options: SourceOptions, source: DescribedDataset, struct: StructType
    ) -> ChangelogStreamReader:
        """The reader of a changelog. Raises InvalidRequest: an option, a column or a type as for
        ``FlightReader.plan``.
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
        return cls(source.ref, SparkSchema.of(with_diff(source.schema), options.dataset, struct), following)

    # On the driver.

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        hold = new_hold(self._ref, self._new_lease_seconds)
        with self._explained():
            self._until = hold.renew().upper
            hold.release()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One task, or none if there is nothing between the two offsets. From now on the query's hold is a long one.

        Raises as :meth:`latestOffset`.
        """
        begin, version = self._bounds(start, end)
        if start == end:  # a restart, which may repeat the batch up to there: its versions stay held
            return []
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
                self._ref.dataset,
                begin,
                held.since,
            )
            begin = min(held.since, version)
        if begin == version:
            return []
        hold, self._named = None if self._named else self._hold(end), True
        return [Span(Versions(version, begin), hold)]

    def commit(self, end: Offset) -> None:
        """Hold the versions after ``end`` only. An unreachable server keeps more for a while."""
        with contextlib.suppress(Unavailable), self._explained():
            self._hold(end).renew(end["version"])
            if self._unused is not None:
                with contextlib.suppress(NotFound):
                    NamedHold(self._ref, self._unused).release()
                self._unused = None

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """As :meth:`FlightReader.read`, of the versions in between."""
        assert isinstance(partition, Span)
        if partition.hold is not None:
            first = partition.versions.after
            with contextlib.suppress(FlightShuffleError):  # the hold is there without it
                owned_by_task(partition.hold).renew(partition.versions.as_of if first is None else first)
        with self._explained():
            yield from FlightReader(VersionRows(self._ref, partition.versions), self._schema).read(Share(0))

    # Inside.

    @property
    def _new_lease_seconds(self) -> float:
        return min(NEW_LEASE_SECONDS, self._following.lease_seconds)

    def _beginning(self) -> Offset:
        hold = new_hold(self._ref, self._new_lease_seconds)
        with self._explained():
            return self._offset(self._held_first(hold), hold=hold.name)

    def _end(self, begin: Offset, position: int | None, limit: Any) -> int:
        del limit
        with self._explained():
            held = self._looked(begin, position)
        upper = held.upper if self._until is None else min(held.upper, self._until)
        if position is not None and (most := self._following.max_versions) is not None:
            upper = min(upper, position + most)
        return max(upper, held.version if position is None else position)

    def _held_first(self, hold: NamedHold) -> int | None:
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

    def _hold(self, offset: Offset) -> NamedHold:
        lease_seconds = self._following.lease_seconds if "start" in offset else self._new_lease_seconds
        return NamedHold(self._ref, offset["hold"], lease_seconds)

    def _looked(self, offset: Offset, version: int | None) -> HeldVersions:
        """As :meth:`_kept`, but the hold, which the server writes to its disk, is renewed only if it is due: without
        news Spark looks a hundred times a second.
        """
        key, now = (offset["hold"], version), time.monotonic()
        if self._renewed is not None and self._renewed[0] == key and now < self._renewed[1]:
            return replace(self._renewed[2], upper=Changelog(self._ref, pa.schema([])).upper)
        held = self._kept(offset, version)
        self._renewed = key, now + self._hold(offset).lease_seconds / 3, held
        return held

    def _kept(self, offset: Offset, version: int | None) -> HeldVersions:
        """Renew the hold of the offset, at this version if it does not hold a later one."""
        hold = self._hold(offset)
        try:
            return hold.renew(version)
        except Compacted as error:
            if self._following.fails_on_loss:
                raise
            return hold.renew(error.detail["since"])
        except InvalidRequest:
            # An older checkpoint: the server may have compacted its version, and would say so.
            held = hold.renew()
            if version is not None and version > held.upper:
                raise
            return held

    @contextlib.contextmanager
    def _explained(self) -> Generator[None, None, None]:
        name = self._ref.dataset
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
                f"changelog {name!r}, which this query reads, is gone ({error.message})", **error.detail
            ) from error
