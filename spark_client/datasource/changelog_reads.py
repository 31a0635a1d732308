"""Reads of changelogs: a version's snapshot, or the deltas between two versions, with the column ``_diff``.

Guarantee: all queries of a ``load`` read one version, whole or an error: the option ``as_of``, or the newest when Spark
plans the first of them. With ``after`` they read the deltas from that version on. One task reads them: a changelog has
one partition.

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
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.memory import MemoryPool
from flight_server.protocol import (
    DIFF_COLUMN,
    Compacted,
    InvalidRequest,
    Versions,
)
from spark_client.changelogs import NamedHold, VersionBatches
from spark_client.connection import LeaseKeeper, owner_of_process
from spark_client.executors import owner_of_task
from spark_client.merge import DatasetRef
from spark_client.settings import OF_PARTITIONS
from spark_client.spill import reading_budget

from .batch_read import FlightReader, Found, Share, replaced
from .source_options import SourceOptions
from .spark_schema import SparkSchema

PLAN_SECONDS = 600.0
AGAIN_SECONDS = 30.0
_DIFF_FIELD = pa.field(DIFF_COLUMN, pa.int64(), nullable=False)


def _ones(count: int) -> pa.Array:
    # Not of Arrow's scalars, nor by its conversion: both import pandas, in each Python process that Spark starts.
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.ones(count, np.int64))])


def with_diff(schema: pa.Schema) -> pa.Schema:
    """The schema of a changelog's deltas."""
    return schema.append(_DIFF_FIELD)


def new_hold(ref: DatasetRef, lease_seconds: float) -> NamedHold:
    """One that no other query has, on the driver."""
    return NamedHold(ref, f"spark-{uuid.uuid4().hex}", lease_seconds, f"Spark, {owner_of_process()}")


def owned_by_task(hold: NamedHold) -> NamedHold:
    """The hold, whose owner is the query of this task of Spark, if it is one."""
    return replace(hold, owner=owner_of_task() or hold.owner)


def newest_version(ref: DatasetRef) -> int:
    """The changelog's newest version. Raises NotFound if it was dropped, StaleTicket if it was made anew since."""
    body = {"dataset": ref.dataset, "limit": 1}
    facts = ref.server.action("statistics", body)["datasets"][ref.dataset]
    if facts["generation"] != ref.generation:
        raise replaced(ref.dataset)
    return int(facts["changelog"]["upper"])


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
                yield batch.append_column(_DIFF_FIELD, _ones(batch.num_rows)) if is_snapshot else batch

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
        keeper = LeaseKeeper(lambda *_: hold.renew(), hold.lease_seconds)
        keeper.add(self.dataset, self.ref.generation)
        held.callback(keeper.close)


def plan_versions(options: SourceOptions, found: Found, struct: StructType) -> FlightReader:
    """The reader of a snapshot or of deltas, which are held from now on.

    Raises:
        Compacted: the version is gone; the error says which there are.
        InvalidRequest: there is no such version yet, or an option, column or type as for :meth:`FlightReader.plan`.
    """
    options.refuse(OF_PARTITIONS, "is a changelog")
    schema = SparkSchema.of(with_diff(found.schema), options.dataset, struct)
    given = options.get("hold_lease_seconds")
    hold = new_hold(found.ref, given or PLAN_SECONDS)
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
    rows = VersionRows(found.ref, Versions(as_of, after), replace(hold, lease_seconds=given or AGAIN_SECONDS))
    return FlightReader(rows, schema, (Share((0,), options.get("limit")),))
