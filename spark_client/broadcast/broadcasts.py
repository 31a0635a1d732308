"""Broadcast: one table for every task, one copy per host, which all its processes map (``hosts.host_files``).

Guarantee: :meth:`Broadcast.table` returns the whole table or raises. Its rows are in the order of the DataFrame's
partitions and of the rows in them, on every host and at every call.

Who holds the data
    The server holds the dataset until :meth:`Broadcast.destroy`, ``close`` of the client, or the end of its lease
    after the driver died. A host holds the file until ``unpersist``, ``destroy`` or ``close`` there, or until a
    sweep: after a driver was killed (``host.directories``), or under the bound of ``Copies``. A process keeps its
    mapping, in which it can still read the table, until it ends or finds the file removed; pages that are not
    accessed take no RAM.

Reach of ``unpersist`` and ``destroy``
    Both remove this host's copy; with a Spark session also those of the hosts where its tasks happen to run. Other
    hosts keep theirs until a sweep. After ``destroy`` the driver's object raises, also when it is pickled; a function
    that was sent before can read only a copy that its host has.

The file
    An Arrow IPC stream, because dictionaries may differ from batch to batch; not compressed, so that tasks read it in
    the mapping. ``spark.executor.pyspark.memory`` counts the mapping as address space.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from flight_server.protocol import Conflict, InvalidRequest, NotFound, PartitionFailed, PutCommand
from spark_client.arrow import Declared
from spark_client.executors import Portable
from spark_client.hosts import Copies, HostFile, HostFiles
from spark_client.jobs import (
    InTurn,
    Readable,
    Shuffles,
    WriteTask,
    arrow_schema,
    check_frame,
    declared_struct,
)
from spark_client.lanes import PutStream

FETCH_SECONDS = 600.0
"""How long a process waits for another of its host to fetch the table."""

SWEEP_TASKS = 64


@dataclass
class _Mapped:
    file: HostFile
    table: pa.Table


_mapped: dict[str, _Mapped] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Content:
    """The dataset of a broadcast, and its totals."""

    name: str
    source: Readable
    schema: pa.Schema
    rows: int
    size_bytes: int
    application: str
    copies: Copies

    @property
    def key(self) -> str:
        """The name of a host's file, unique to this driver and content."""
        source = self.source
        text = f"{source.server.location}\n{source.dataset}\n{source.generation}"
        return f"{self.application}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def fetch(self, path: Path) -> None:
        """Write the content to a file, or raise ``NotFound``."""
        try:
            with (
                contextlib.closing(self.source.read(0)) as rows,
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_stream(sink, self.schema) as writer,
            ):
                for batch in rows:
                    writer.write_batch(batch)
        except NotFound as error:
            restarted = error.detail.get("restarted")
            why = "its server was restarted" if restarted else "it was destroyed, or its driver has ended"
            raise NotFound(
                f"broadcast {self.name!r} is gone: {why} ({error.message})", **error.detail
            ) from error

    def map(self, file: HostFile) -> pa.Table:
        """The table in a file that ``fetch`` wrote, mapped without a copy.

        Raises:
            PartitionFailed: the file, now removed, has another number of rows, which only a crash of the host can
                cause.
        """
        table = pa.ipc.open_stream(pa.BufferReader(file.map())).read_all()
        if table.num_rows != self.rows:
            HostFiles(self.copies).remove(self.key)
            raise PartitionFailed(
                f"{file.path} has {table.num_rows} rows, the broadcast {self.name!r} has {self.rows}: the file "
                "was removed, and is fetched again at the next try"
            )
        return table


class Broadcast:
    """A table that tasks can use. Its pickle has the content's location, not the content."""

    def __init__(self, content: Content, owner: Shuffles | None = None) -> None:
        self._content = content
        self._owner = owner
        self._destroyed = False

    @classmethod
    def create(cls, owner: Shuffles, data: DataFrame | pa.Table, name: str | None = None) -> Broadcast:
        """Write ``data`` to the server: Spark's tasks write a DataFrame, the driver a table. Hosts fetch it at its
        first use.

        Raises:
            InvalidRequest: ``data`` is neither, or a column has no Arrow type.
        """
        name = name or "table"
        label = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
        dataset = f"broadcast/{uuid.uuid4().hex}/{label}"
        if isinstance(data, pa.Table):
            schema = data.schema
            source, totals = _write_table(owner, dataset, data)
        elif hasattr(data, "mapInArrow"):
            where = f"broadcast {name!r}"
            check_frame(data, where)
            struct = declared_struct(data.sparkSession, data.schema, where)
            schema = arrow_schema(data.sparkSession, struct, where)

            def task(generation: str) -> WriteTask:
                return WriteTask(owner.server, dataset, generation, 1, Declared(where, schema), InTurn(1))

            source, totals = owner.write(dataset, 1, schema, data, task, label=where)
        else:
            raise InvalidRequest(
                f"cannot broadcast {type(data).__name__}: give a DataFrame or a pyarrow.Table"
            )
        content = Content(
            name, source, schema, totals["rows"], totals["bytes"], owner.application(), owner.copies
        )
        owner.at_close(partial(_remove, content))
        return cls(content, owner)

    @property
    def name(self) -> str:
        """The broadcast's name in messages."""
        return self._content.name

    @property
    def schema(self) -> pa.Schema:
        return self._content.schema

    @property
    def rows(self) -> int:
        return self._content.rows

    @property
    def size_bytes(self) -> int:
        """About the size of a host's file."""
        return self._content.size_bytes

    def __repr__(self) -> str:
        return f"<Broadcast {self.name!r}, {self.rows} rows, {self.size_bytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._check()
        return (Broadcast, (self._content,))

    def table(self) -> pa.Table:
        """The table, mapped from this host's file; the first caller on the host fetches it.

        Raises:
            Conflict: this object was destroyed.
            NotFound: the dataset is gone: destroyed, its driver has ended, or its server was restarted.
            Unavailable: the server, or the process that fetches the table, took too long.
            OutOfBudget: the host's copies have no room for it.
        """
        self._check()
        content = self._content
        with _lock:
            _forget_removed()
            if (known := _mapped.get(content.key)) is not None:
                return known.table
        file = HostFiles(content.copies).open_or_make(
            content.key, content.size_bytes, content.fetch, FETCH_SECONDS
        )
        try:
            table = content.map(file)
        except BaseException:
            file.close()
            raise
        with _lock:
            kept = _mapped.setdefault(content.key, _Mapped(file, table))
        if kept.file is not file:
            file.close()  # another thread stored one first
        return kept.table

    def unpersist(self, spark: SparkSession | None = None) -> set[str]:
        """Remove copies, see the module; the hosts where there was one. A later ``table`` fetches it again.

        Args:
            spark: the session whose tasks remove copies of other hosts, too.
        """
        self._check()
        return self._remove_copies(spark)

    def destroy(self, spark: SparkSession | None = None) -> None:
        """Remove copies as :meth:`unpersist` does, and drop the dataset. Twice is fine.

        Raises:
            InvalidRequest: called in a task, not in the driver.
        """
        if self._destroyed:
            return
        if self._owner is None:
            raise InvalidRequest(
                f"broadcast {self.name!r} is destroyed by the driver that made it, not in a task"
            )
        self._remove_copies(spark)
        self._owner.drop(self._content.source.dataset)
        self._destroyed = True

    def _remove_copies(self, spark: SparkSession | None) -> set[str]:
        removed = {socket.gethostname()} if _remove(self._content) else set()
        if spark is not None:
            sweep = spark.range(0, SWEEP_TASKS, 1, SWEEP_TASKS).mapInArrow(
                Portable(partial(_remove_in_task, self._content)), "host string"
            )
            removed |= {row["host"] for row in sweep.collect()}
        return removed

    def _check(self) -> None:
        if self._destroyed:
            raise Conflict(f"broadcast {self.name!r} was destroyed; make a new one")


def _write_table(owner: Shuffles, dataset: str, table: pa.Table) -> tuple[Readable, dict[str, Any]]:
    """Send a table from the driver. After an error the dataset is dropped."""
    generation, places = owner.create(dataset, table.schema, 1)
    try:
        command = PutCommand(dataset, producer=0, attempt="driver", generation=generation)
        compression = owner.server.writing.compression
        with PutStream(owner.server, command, table.schema, places, compression) as stream:
            for batch in table.to_batches():
                stream.write(batch, 0)
            stream.commit()
        return owner.seal(dataset, generation, {0: "driver"})
    except BaseException:
        owner.discard(dataset)
        raise


def _remove(content: Content) -> bool:
    with _lock:
        if (known := _mapped.pop(content.key, None)) is not None:
            known.file.close()
    return HostFiles(content.copies).remove(content.key)


def _remove_in_task(content: Content, numbers: Iterator[Any]) -> Iterator[Any]:
    for _ in numbers:
        if _remove(content):
            yield pa.RecordBatch.from_pydict({"host": [socket.gethostname()]})


def _forget_removed() -> None:
    """Drop the mappings of removed files; tables in use keep theirs."""
    for key in [key for key, known in _mapped.items() if not known.file.is_current]:
        _mapped.pop(key).file.close()
