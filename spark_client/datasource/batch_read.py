"""Batch reads: the plan on the driver, and the tasks that read it.

Guarantee: a DataFrame reads one generation of the dataset, whole (or the partitions and the number of rows asked for),
or fails. It is the one that ``load`` finds; with a schema of the user's, the one of the first plan, because Spark then
asks for nothing before. While the dataset is replaced a query finishes the partitions that it has begun to read; a
task or a query that begins later fails, with an error that says so.

Batches go to Spark as they are, but Spark makes rows of them: 4.1 to 4.3 have no columnar reader for Python sources.
Changelogs are planned by ``changelog_reads``.

Plan
    One input partition for each partition of the dataset. Of a sealed dataset the server knows the rows: empty ones
    are left out, and a limit takes only as many as it needs. Where it does not know them, one task reads the
    partitions in turn until the limit is reached. A dataset that is still written is read up to its end.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from flight_server.protocol import (
    Compacted,
    InvalidRequest,
    Kind,
    NotFound,
    Released,
    StaleTicket,
    dump_json,
    parse_json,
)
from spark_client.connection import RemoteServer, about
from spark_client.executors import portable
from spark_client.merge import DatasetRef
from spark_client.settings import OF_CHANGELOGS

from .source_options import SourceOptions
from .spark_schema import SparkSchema

_PAGE = 1000


@dataclass(frozen=True)
class Found:
    """A dataset, as the server describes it; ``sealed`` if its rows do not change."""

    ref: DatasetRef
    schema: pa.Schema
    partitions: int
    sealed: bool
    kind: str

    @property
    def is_changelog(self) -> bool:
        return self.kind == Kind.CHANGELOG


def find(server: RemoteServer, dataset: str, generation: str | None = None) -> Found:
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
    return Found(ref, schema, partitions, bool(facts["sealed"]), str(facts["kind"]))


@dataclass(frozen=True)
class Share(InputPartition):
    """The work of one task: partitions, one after the other, and up to how many rows of them all. ``reader`` names the
    planned query where retention counts readers: a task that Spark tries again counts once. Of two attempts that run at
    once the later one goes on, and the earlier one fails.
    """

    partitions: tuple[int, ...]
    limit: int | None = None
    reader: str | None = field(default=None, compare=False)


class ReadRows(Protocol):
    """The rows of a dataset that a task reads, by partitions."""

    @property
    def dataset(self) -> str: ...

    def read(self, partition: int) -> Generator[Any, None, None]: ...


class FlightReader(DataSourceReader):
    """Reads one generation. Made on the driver; its pickle goes into the tasks."""

    def __init__(self, ref: ReadRows, schema: SparkSchema, shares: tuple[Share, ...] = ()) -> None:
        self._ref = ref
        self._schema = schema
        self._shares = shares

    @classmethod
    def plan(cls, options: SourceOptions, found: Found, struct: StructType) -> FlightReader:
        """Share the dataset out. Raises InvalidRequest: a partition, a column or an option that the dataset does not
        have, or a type that cannot be cast to ``struct``'s.
        """
        options.refuse(OF_CHANGELOGS, "is no changelog")
        wanted = options.get("partitions")
        if wanted is not None and wanted[-1] >= found.partitions:
            raise InvalidRequest(
                f"option 'partitions': dataset {options.dataset!r} has partitions 0 to {found.partitions - 1}, not "
                f"{wanted[-1]}",
                dataset=options.dataset,
            )
        schema = SparkSchema.of(found.schema, options.dataset, struct)
        # Of a spread dataset the server knows the rows of its own portion only.
        rows = _rows(found) if found.sealed and not found.ref.is_spread else None
        shares = share_out(wanted or range(found.partitions), rows, options.get("limit"))
        return cls(found.ref, schema, tuple(shares))

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
        left = partition.limit
        rows = self._ref
        if isinstance(rows, DatasetRef):
            rows = replace(rows, reader=partition.reader)
        for number in partition.partitions:
            with contextlib.closing(self._batches(rows, number)) as batches:
                for batch in batches if left != 0 else ():
                    taken = batch if left is None or batch.num_rows <= left else batch.slice(0, left)
                    yield self._schema.cast(taken)
                    if left is not None and not (left := left - taken.num_rows):
                        return

    def _batches(self, rows: ReadRows, number: int) -> Generator[Any, None, None]:
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


def share_out(partitions: Sequence[int], rows: dict[int, int] | None, limit: int | None) -> Iterator[Share]:
    """The tasks' shares, at least one. ``rows`` has the partitions that are not empty; None if that is not known."""
    if rows is None and limit is not None:
        yield Share(tuple(partitions), limit)
        return
    left, made = limit, 0
    for partition in partitions:
        if (rows is not None and not rows.get(partition)) or left == 0:
            continue
        made += 1
        if rows is None or left is None or rows[partition] <= left:
            yield Share((partition,))
        else:
            yield Share((partition,), left)
        if rows is not None and left is not None:
            left = max(0, left - rows[partition])
    if not made:
        yield Share(())  # Spark would make one of its own


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


def _rows(found: Found) -> dict[int, int]:
    """The rows of each partition of a sealed dataset that is not empty."""
    facts = pages(found.ref, 0, found.partitions)
    return {index: known["rows"] for index, known in facts if known is not None and known["rows"]}
