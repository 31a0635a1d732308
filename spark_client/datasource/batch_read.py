"""Batch reads: the plan on the driver, and the tasks that read it.

Guarantee: a DataFrame reads one generation of the dataset, whole, or fails. It is the one that ``load`` finds; with a
schema of the user's, the one of the first plan, because Spark then asks for nothing before. While the dataset is
replaced a query finishes the partitions that it has begun to read; a task or a query that begins later fails, with an
error that says so.

Batches go to Spark as they are, but Spark makes rows of them: 4.1 to 4.3 have no columnar reader for Python sources.

Plan
    One input partition for each partition of the dataset. Of a sealed dataset the server knows the rows: empty ones
    are left out. A dataset that is still written is read up to its end.

Changelogs
    A version's snapshot, or the deltas between two versions, with the column ``_diff``. All queries of a ``load`` read
    one version, whole or an error: the option ``as_of``, or the newest when Spark plans the first of them. With
    ``after`` they read the deltas from that version on. One task reads them: a changelog has one partition.

Why not the newest of each query
    Spark asks for the reader and its partitions once for each ``load``, and keeps both for later queries. A task could
    ask for the newest version, but not whether it is run again and must give the same rows.

The column ``_diff``
    A 64-bit integer, after the declared columns: how often a row came (above zero) or went. A snapshot has each row as
    often as it counts, each with 1. Spark asks for the schema of a name without saying whether it is for a batch or a
    stream, so both have it; the option ``columns`` or a schema without it leaves it out.

Holding
    A ``load`` holds its version under a name of its own, because Spark may read much later, or again. The hold lasts
    for ``PLAN_SECONDS`` until a task reads. A task that reads renews it; it ends ``AGAIN_SECONDS`` after the last task
    has ended or died: Spark tells neither the source nor its tasks when a query ends, and runs a task again within that
    time if its attempt or its executor failed. With the option ``hold_lease_seconds`` both last for so long: for a
    DataFrame that is read again later. After that the version stays readable until the changelog is compacted beyond
    it; then the error names the remedy. Two ``load`` s in one query are planned each by itself: with ``as_of`` both
    read one version.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from flight_server.memory import MemoryPool
from flight_server.protocol import (
    Compacted,
    InvalidRequest,
    Kind,
    NotFound,
    Released,
    StaleTicket,
    Versions,
    dump_json,
    parse_json,
)
from spark_client.changelogs import NamedHold, VersionBatches, counted, with_diff
from spark_client.connection import LeaseKeeper, RemoteServer, about, owner_of_process, short_traces
from spark_client.executors import owner_of_task, portable
from spark_client.merge import DatasetRef
from spark_client.settings import OF_CHANGELOGS
from spark_client.spill import reading_budget

from .source_options import SourceOptions
from .spark_schema import SparkSchema

_PAGE = 1000


@dataclass(frozen=True)
class DescribedDataset:
    """A dataset, as the server describes it; ``sealed`` if its rows do not change."""

    ref: DatasetRef
    schema: pa.Schema
    partitions: int
    sealed: bool
    kind: str

    @property
    def is_changelog(self) -> bool:
        return self.kind == Kind.CHANGELOG


def find(server: RemoteServer, dataset: str, generation: str | None = None) -> DescribedDataset:
    """Ask the server. ``generation`` is the one that is wanted, None for the present one.

    Raises:
        StaleTicket: the dataset was replaced.
        NotFound: there is no such dataset.
        Unavailable: its schema is not known yet, or the server cannot be reached.
    """
    with about(dataset, server.location):
        info = server.flight_info(dataset)
        schema = info.schema if info.schema.names else server.schema(dataset)
    facts = parse_json(info.app_metadata, "the FlightInfo")
    ref = DatasetRef.of(server, dataset, info)
    if generation not in (None, ref.generation):
        raise replaced(dataset)
    partitions = DatasetRef.spread_partitions(info) or len(info.endpoints)
    return DescribedDataset(ref, schema, partitions, bool(facts["sealed"]), str(facts["kind"]))


@dataclass(frozen=True)
class Share(InputPartition):
    """The partition that a task reads; None for none. ``reader`` names the planned query where retention counts
    readers: a task that Spark tries again counts once. Of two attempts that run at once the later one goes on, and the
    earlier one fails.
    """

    partition: int | None
    reader: str | None = field(default=None, compare=False)


@short_traces
class FlightReader(DataSourceReader):
    """Reads one generation. Made on the driver; its pickle goes into the tasks."""

    def __init__(
        self, ref: DatasetRef | VersionRows, schema: SparkSchema, shares: tuple[Share, ...] = ()
    ) -> None:
        self._ref = ref
        self._schema = schema
        self._shares = shares

    @classmethod
    def plan(cls, options: SourceOptions, source: DescribedDataset, struct: StructType) -> FlightReader:
        """Share the dataset out. Raises InvalidRequest: a column or an option that the dataset does not have, or a type
        that cannot be cast to ``struct``'s.
        """
        options.refuse(OF_CHANGELOGS, "is no changelog")
        schema = SparkSchema.of(source.schema, options.dataset, struct)
        # Of a spread dataset the server knows the rows of its own portion only.
        partitions = (
            _filled(source) if source.sealed and not source.ref.is_spread else range(source.partitions)
        )
        # Without one Spark would make one of its own.
        return cls(source.ref, schema, tuple(map(Share, partitions)) or (Share(None),))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the shares: each task gets its own.
        return portable(FlightReader, self._ref, self._schema)

    def partitions(self) -> Sequence[InputPartition]:
        return for_one_query(self._shares)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The share's batches, as Spark takes them.

        Raises:
            NotFound: the dataset was dropped or replaced, or the server restarted.
            Released: as many readers have read it as its retention declares; a query planned anew is another one.
            InvalidRequest: a value does not fit Spark's type.
        """
        assert isinstance(partition, Share)
        if partition.partition is None:
            return
        rows = self._ref
        if isinstance(rows, DatasetRef):
            rows = replace(rows, reader=partition.reader)
        with contextlib.closing(self._batches(rows, partition.partition)) as batches:
            yield from map(self._schema.cast, batches)

    def _batches(self, rows: DatasetRef | VersionRows, number: int) -> Generator[Any, None, None]:
        try:
            yield from rows.read(number)
        except (Released, Compacted):
            raise
        except NotFound as error:
            ref = self._ref
            if isinstance(error, StaleTicket):
                raise replaced(ref.dataset) from error
            raise NotFound(
                f"dataset {ref.dataset!r} went away while Spark read it ({error.message})",
                **error.detail,
            ) from error


def for_one_query(shares: Iterable[Share]) -> list[InputPartition]:
    """The shares, named for a newly planned query."""
    reader = uuid.uuid4().hex
    return [replace(share, reader=reader) for share in shares]


def replaced(dataset: str) -> StaleTicket:
    """The error for a DataFrame whose dataset has another generation by now."""
    return StaleTicket(
        f"dataset {dataset!r} was replaced after this DataFrame was made: load it again", dataset=dataset
    )


def pages(ref: DatasetRef, first: int, end: int | None) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Each partition from ``first`` to before ``end``, or to the last, with its state, rows and bytes on the server;
    None for one that is empty and sealed. The answers are not of one moment.

    Raises:
        StaleTicket: the dataset was replaced.
        NotFound: it is gone.
    """
    while end is None or first < end:
        body = {"dataset": ref.dataset, "first": first, "limit": _PAGE}
        answer = ref.server.action("statistics", dump_json(body))
        facts = answer["datasets"][ref.dataset]
        if facts["generation"] != ref.generation:
            raise replaced(ref.dataset)
        last = min(first + _PAGE, answer["count"], answer["count"] if end is None else end)
        for index in range(first, last):
            known = facts["partitions"].get(str(index))
            if known is None and not facts["sealed"]:
                return
            yield index, known
        if last == answer["count"]:
            return
        first = last


def _filled(source: DescribedDataset) -> list[int]:
    """The partitions of a sealed dataset that are not empty."""
    facts = pages(source.ref, 0, source.partitions)
    return [index for index, known in facts if known is not None and known["rows"]]


PLAN_SECONDS = 600.0
AGAIN_SECONDS = 30.0


def new_hold(ref: DatasetRef, lease_seconds: float) -> NamedHold:
    """One that no other query has, on the driver."""
    return NamedHold(ref, f"spark-{uuid.uuid4().hex}", lease_seconds, f"Spark, {owner_of_process()}")


def owned_by_task(hold: NamedHold) -> NamedHold:
    """The hold, whose owner is the query of this task of Spark, if it is one."""
    return replace(hold, owner=owner_of_task() or hold.owner)


@dataclass(frozen=True)
class VersionRows:
    """The rows of a changelog that ``versions`` name, read as a partition 0. ``hold`` is renewed meanwhile."""

    ref: DatasetRef
    versions: Versions
    hold: NamedHold | None = None

    @property
    def dataset(self) -> str:
        return self.ref.dataset

    def read(self, partition: int) -> Generator[Any, None, None]:  # noqa: ARG002 - there is one
        """The batches, with ``_diff``.

        Raises:
            Compacted: the versions are gone.
            StaleTicket, NotFound: the changelog was replaced or dropped.
        """
        with contextlib.ExitStack() as held:
            if self.hold is not None:
                self._keep(self.hold, held)
            pool = MemoryPool(reading_budget(self.ref.server.reading.budget_bytes), "merge")
            is_snapshot = self.versions.after is None
            for batch in held.enter_context(VersionBatches(self.ref, self.versions, pool)):
                yield counted(batch, 1) if is_snapshot else batch

    def _keep(self, hold: NamedHold, held: contextlib.ExitStack) -> None:
        hold = owned_by_task(hold)
        version = self.versions.as_of if self.versions.after is None else self.versions.after
        try:
            hold.renew(version)
        except Compacted as error:
            raise Compacted(
                f"changelog {self.dataset!r}: version {version}, which this query was to read, is gone: nothing held "
                f"it for {hold.lease_seconds:g} s, or its hold was released. A DataFrame reads the version of its "
                "first query: load it again for the newest, or give the option 'hold_lease_seconds' more "
                f"({error.message})",
                **error.detail,
            ) from error
        keeper = LeaseKeeper(hold.renew, hold.lease_seconds, f"a hold of {self.dataset}")
        keeper.begin()
        held.callback(keeper.close)


def plan_versions(options: SourceOptions, source: DescribedDataset, struct: StructType) -> FlightReader:
    """The reader of a snapshot or of deltas, which are held from now on.

    Raises:
        Compacted: the version is gone; the error says which there are.
        InvalidRequest: there is no such version yet, or an option, column or type as for :meth:`FlightReader.plan`.
    """
    schema = SparkSchema.of(with_diff(source.schema), options.dataset, struct)
    lease_seconds = options.get("hold_lease_seconds")
    hold = new_hold(source.ref, lease_seconds or PLAN_SECONDS)
    as_of, after = options.get("as_of"), options.get("after")
    held = hold.renew(as_of if after is None else after)
    if as_of is None:
        as_of = held.version if after is None else held.upper
    elif not (after or 0) <= as_of <= held.upper:
        raise InvalidRequest(
            f"changelog {options.dataset!r} is at version {held.upper}: option 'as_of' is a version up to that, not "
            f"before 'after', and not {as_of}",
            dataset=options.dataset,
        )
    rows = VersionRows(
        source.ref, Versions(as_of, after), replace(hold, lease_seconds=lease_seconds or AGAIN_SECONDS)
    )
    return FlightReader(rows, schema, (Share(0),))
