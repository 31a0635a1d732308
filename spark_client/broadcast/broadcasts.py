"""Broadcast: one table for every task, one copy per host, which all its processes map (``hosts.host_files``).

Guarantee: :meth:`Broadcast.table` returns the whole table or raises. Its rows are in the order of the DataFrame's
partitions and of the rows in them, on every host and at every call.

Who holds the data
    The server holds the dataset until :meth:`Broadcast.destroy`, ``close`` of the client, or the end of its lease
    after the driver died. A host holds the file until it is withdrawn (``broadcast_copies``), or removed by the bound
    of ``Copies`` or by a sweep (``host.directories``); then the next ``table`` fetches it again. A process keeps its
    mapping while an object of the broadcast lives in it and for a few seconds more (``hosts.open_files``), and a table
    that a function keeps stays readable; pages that are not accessed take no RAM.

Reach of ``unpersist`` and ``destroy``
    Both withdraw the copies of all hosts; ``destroy`` and ``close`` do so by dropping the dataset. After ``destroy``
    the driver's object raises, also when it is pickled; a function that was sent before can read only a copy that its
    host has.

``spark.executor.pyspark.memory`` counts the mapping as address space.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from flight_server.protocol import (
    Conflict,
    FlightShuffleError,
    InvalidRequest,
    OutOfBudget,
    Unavailable,
)
from spark_client.arrow import Declared, OneChunk, counts, fits_one_chunk
from spark_client.connection import short_traces
from spark_client.hosts import HostFiles
from spark_client.jobs import (
    InTurn,
    ReadTask,
    SealedDataset,
    Shuffles,
    Target,
    WriteTask,
    arrow_schema,
    check_frame,
    declared_struct,
)
from spark_client.lanes import as_reader
from spark_client.servers import Holder, HolderKind

from .broadcast_copies import mapped, mapped_table, remove_here, withdraw
from .carried_table import CARRIED_BYTES, CarriedTable, stream_of
from .content import BroadcastContent

_log = logging.getLogger(__name__)


@short_traces
class Broadcast:
    """A table that tasks can use. Its pickle has the content's location, not the content.

    Only the driver's object has ``struct``, the DataFrame's types, of which Arrow's do not show all; ``sealed``, the
    dataset; and ``owner``, the datasets of its client.
    """

    def __init__(
        self, content: BroadcastContent, owner: Shuffles | None = None, struct: StructType | None = None
    ) -> None:
        self.struct = struct
        self.sealed: SealedDataset | None = None
        self._content = content
        self.owner = owner
        self._not_at_close: Callable[[], object] = lambda: None
        self._destroyed = False
        self._small: bytes | None = None

    @classmethod
    def create(cls, owner: Shuffles, data: Any, name: str | None = None) -> Broadcast:
        """Write ``data`` to the server: Spark's tasks write a DataFrame of Spark, the driver any other data that
        ``put`` takes, as one of pandas. Hosts fetch it at its first use.

        Raises:
            InvalidRequest: ``data`` is neither, or a column has no Arrow type.
        """
        name = name or "table"
        label = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
        # A name of digits alone would be a partition's number.
        dataset = f"broadcast/{uuid.uuid4().hex}/{label}{'_' if label.isdigit() else ''}"
        run = Holder(HolderKind.RUN)
        try:
            if not isinstance(data, DataFrame):
                table = _table(data)
                sealed = owner.write_table(dataset, table, run)
                made = cls._made(owner, sealed, name, None, _counts_of(table))
                made._small = stream_of(table) if table.nbytes <= CARRIED_BYTES else None
                return made
            where = f"broadcast {name!r}"
            check_frame(data, where)
            owner.sessions.used(data.sparkSession)
            struct = declared_struct(data.sparkSession, data.schema, where)
            schema = arrow_schema(data.sparkSession, struct, where)
            reading = ReadTask(options=owner.server.reading)
            task = WriteTask(
                dataset, 1, Declared(where, schema), InTurn(1), reading, counts=fits_one_chunk(schema)
            )
            (sealed,) = owner.write([Target([(data, task)], label=where, alone=True)], run)
            return cls.of_sealed(owner, sealed, name, struct)
        finally:
            # Ctrl-C, too, in any line of it: only this function knows the dataset.
            owner.loop.end(run)

    @classmethod
    def of_sealed(
        cls, owner: Shuffles, sealed: SealedDataset, name: str, struct: StructType | None
    ) -> Broadcast:
        """Of a sealed dataset of one partition, which is the broadcast's from now on; its tasks have counted, where
        ``arrow.fits_one_chunk`` takes the schema. Where the rows had no partition, no task has written, and no server
        has the dataset: the driver writes one without rows.
        """
        if not sealed.source.portions:
            made = cls.create(owner, sealed.schema.empty_table(), name)
            made.struct = struct
            return made
        return cls._made(
            owner, sealed, name, struct, sealed.work.counts or _counts_of(sealed.schema.empty_table())
        )

    @classmethod
    def _made(
        cls,
        owner: Shuffles,
        sealed: SealedDataset,
        name: str,
        struct: StructType | None,
        counted: Sequence[int],
    ) -> Broadcast:
        schema = sealed.schema
        one_chunk = tuple(counted) if fits_one_chunk(schema, counted) else None
        if one_chunk is None:
            # The messages' framing, the schema and the end, which the totals do not count.
            size_bytes = sealed.size_bytes + 16 * sealed.frames + schema.serialize().size + 8
        else:
            size_bytes = OneChunk(schema, sealed.rows, one_chunk).size_bytes
        content = BroadcastContent(
            name,
            sealed.source,
            schema,
            sealed.rows,
            size_bytes,
            one_chunk,
            owner.application(),
            owner.copies,
            owner.executors,
        )
        with owner.loop.machine() as machine:
            machine.hold(sealed.source.dataset, Holder(HolderKind.BROADCAST))
        made = cls(content, owner, struct)
        made.sealed = sealed
        made._not_at_close = owner.at_close(partial(_leave, content))
        return made

    @property
    def name(self) -> str:
        return self._content.name

    @property
    def schema(self) -> pa.Schema:
        return self._content.schema

    @property
    def rows(self) -> int:
        return self._content.rows

    @property
    def size_bytes(self) -> int:
        """The size of a host's file; of a table that cannot be in one chunk, smaller if its dataset was compressed."""
        return self._content.size_bytes

    def __repr__(self) -> str:
        return f"<Broadcast {self.name!r}, {self.rows} rows, {self.size_bytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._check()
        return (Broadcast, (self._content,))

    @property
    def value(self) -> pa.Table:
        return self.table()

    def table(self) -> pa.Table:
        """The table, mapped from this host's file; the first caller on the host fetches it. Each column is one chunk,
        but for the types and sizes that ``arrow.one_chunk`` names.

        All calls in a Python process return the same object while a task there has this broadcast.

        Raises:
            Conflict: this object was destroyed.
            NotFound: the dataset is gone: destroyed, its driver has ended, or its server was restarted.
            Unavailable: the server, or the process that fetches the table, took too long.
            OutOfBudget: the host's copies have no room for it.
        """
        self._check()
        return mapped_table(self._content, self)

    def for_join(self) -> Broadcast | CarriedTable:
        """What the tasks of a join get: a small table that the driver had itself is carried with their plan."""
        return self if self._small is None else CarriedTable(self._small, self._check)

    def unpersist(self) -> None:
        """Withdraw the copies of all hosts; a later ``table`` fetches it again. Calling it twice is fine.

        This host's copy is removed at once; the others when the tasks that use them have ended, or when a task there
        fetches another broadcast. A task that has the table can still read it.

        Raises:
            FlightShuffleError: the server did not answer; this host's copy is removed.
        """
        self._check()
        content = self._content
        mapped.forget(content.key)
        HostFiles(content.copies).remove(content.key)
        withdraw(content)
        remove_here(content)

    def destroy(self) -> None:
        """Withdraw copies as :meth:`unpersist` does, by dropping the dataset. Calling it twice is fine.

        Raises:
            InvalidRequest: called in a task, not in the driver.
            FlightShuffleError: the server did not answer. It is destroyed, the dataset ends with its lease, and other
                hosts remove their copies after that.
        """
        if self._destroyed:
            return
        if self.owner is None:
            raise InvalidRequest(
                f"broadcast {self.name!r} is destroyed by the driver that made it, not in a task"
            )
        # Also if the server does not answer: then nothing renews the lease of the dataset, with which it ends.
        self._destroyed = True
        self._not_at_close()
        _leave(self._content)
        dataset = self._content.source.dataset
        self.owner.loop.release(lambda machine: machine.release(dataset))

    def _check(self) -> None:
        if self._destroyed:
            raise Conflict(f"broadcast {self.name!r} was destroyed; make a new one")


@dataclass(frozen=True)
class SmallTable:
    """A broadcast of a few MiB that no user has asked for: where a host can keep no copy, each task reads its own."""

    broadcast: Broadcast

    def table(self) -> pa.Table:
        """As :meth:`Broadcast.table`; raises NotFound or Unavailable."""
        try:
            return self.broadcast.table()
        except (Unavailable, OutOfBudget, OSError) as error:
            _log.info("%r is read into the task's own memory: %s", self.broadcast, error)
            content = self.broadcast._content
            with closing(content.source.read(0)) as batches:
                return pa.Table.from_batches(batches, content.schema)

    @property
    def size_bytes(self) -> int:
        return self.broadcast.size_bytes


def _counts_of(table: pa.Table) -> list[int]:
    """Its ``arrow.counts``; none where it cannot be in one chunk."""
    return counts(table) if fits_one_chunk(table.schema) else []


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, str | Path):
        raise InvalidRequest(
            f"cannot broadcast the path {str(data)!r}: give what reads it, such as ShuffleClient.scan(path).toDF()"
        )
    if hasattr(data, "toDF"):
        raise InvalidRequest(f"cannot broadcast a {type(data).__name__}: give what its toDF() returns")
    try:
        return as_reader(data).read_all()
    except InvalidRequest as error:
        raise InvalidRequest(
            f"cannot broadcast {type(data).__name__}: give a DataFrame of Spark or pandas, or a table ({error.message})"
        ) from error


def _leave(content: BroadcastContent) -> None:
    """Before its dataset is dropped: the server is to list no copy of this host."""
    mapped.forget(content.key)
    with contextlib.suppress(FlightShuffleError, OSError):
        remove_here(content)
