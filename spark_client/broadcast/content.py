"""The content of a broadcast: a sealed dataset, and how a host's file of it is written and read.

The file has each column in one chunk (``arrow.one_chunk``), so that a column is one NumPy array or tensor in the
mapping. A table that cannot be so, for its types or the size of its texts, is an Arrow IPC stream with the chunks in
which it came. Neither is compressed. Batches are written while the next ones are received; none is kept.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from flight_server.protocol import NotFound, PartitionFailed
from spark_client.arrow import OneChunk
from spark_client.executors import ExecutorServers
from spark_client.hosts import Copies, HostFile, HostFiles, PartFile
from spark_client.lanes import BatchBurst
from spark_client.merge import DatasetRef

from . import passing_on


@dataclass(frozen=True)
class BroadcastContent:
    """The dataset of a broadcast, and its totals; ``counts`` as in ``arrow.one_chunk``, or None for an IPC stream.
    ``servers``: those through which hosts pass it on to each other, if executors have some.
    """

    name: str
    source: DatasetRef
    schema: pa.Schema
    rows: int
    size_bytes: int
    counts: tuple[int, ...] | None
    application: str
    copies: Copies
    servers: ExecutorServers | None = None

    @property
    def key(self) -> str:
        """The name of a host's file, unique to this driver and content."""
        source = self.source
        text = f"{source.server.location}\n{source.dataset}\n{source.generation}"
        return f"{self.application}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def fetch(self, part: PartFile) -> None:
        """Write the content to a file, or raise ``NotFound``."""
        try:
            self._fetch(part)
        except NotFound as error:
            raise self.gone(error) from error

    def gone(self, error: NotFound) -> NotFound:
        restarted = error.detail.get("restarted")
        why = "its server was restarted" if restarted else "it was destroyed, or its driver has ended"
        return NotFound(f"broadcast {self.name!r} is gone: {why} ({error.message})", **error.detail)

    def _fetch(self, part: PartFile) -> None:
        # A tree passes no dictionaries on.
        in_tree = self.counts is not None and self.size_bytes >= passing_on.TREE_BYTES
        servers = self.servers if in_tree else None
        arriving = passing_on.bursts(self.source, servers, HostFiles(self.copies).place, self.key)
        with closing(arriving), ThreadPoolExecutor(1) as writing:
            if self.counts is None:
                with pa.ipc.new_stream(pa.PythonFile(part, mode="w"), self.schema) as writer:
                    for burst in arriving:
                        for batch in burst.batches:
                            writer.write_batch(batch)
                return
            columns = OneChunk(self.schema, self.rows, self.counts)
            written: Future[None] | None = None
            for burst in arriving:
                if written is not None:
                    written.result()
                written = writing.submit(_append, columns, part, burst)
            if written is not None:
                written.result()
            columns.finish(part.write_at)

    def map(self, file: HostFile) -> pa.Table:
        """The table in a file that ``fetch`` wrote, mapped without a copy. Raises PartitionFailed: the file, now
        removed, has another number of rows or bytes, which only a crash of the host can cause.
        """
        try:
            if self.counts is not None:
                return OneChunk(self.schema, self.rows, self.counts).read(file.map())
            table = pa.ipc.open_stream(pa.BufferReader(file.map())).read_all()
            if table.num_rows != self.rows:
                raise ValueError(f"has {table.num_rows} rows instead of {self.rows}")
        except ValueError as error:
            HostFiles(self.copies).remove(self.key)
            raise PartitionFailed(
                f"{file.path}, of the broadcast {self.name!r}, {error}: the file was removed, and is fetched again at "
                "the next try"
            ) from error
        return table


def _append(columns: OneChunk, part: PartFile, burst: BatchBurst) -> None:
    for batch in burst.batches:
        columns.append(batch, part.write_at)
