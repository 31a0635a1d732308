"""The content of a broadcast: a sealed dataset, and how a host's file of it is written and read.

The file has each column in one chunk (``arrow.one_chunk``), so that a column is one NumPy array or tensor in the
mapping. A table that cannot be so, for its types or the size of its texts, is an Arrow IPC stream with the chunks in
which it came. Neither is compressed. Batches are written while the next ones are received; none is kept.

Passing on
    Where executors have servers, a task reads a broadcast from ``TREE_BYTES`` on through the server of its executor,
    which passes it on to other hosts while it arrives; for a smaller one starting that takes longer. The bursts are
    those of the broadcast's server, each once and in order, wherever they came from. All comes from that server itself
    where the executor has none, and for what is left when that one fails.

    The executor's server has the frames as a dataset of kind ``source`` (``kinds.source.relay``), within its own limits
    of memory and disk, while it is read and for ``LEASE_SECONDS`` more. The servers ask each other with the token that
    all of them have; so the broadcast's server must have the same one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from flight_server.protocol import (
    AlreadyExists,
    FlightShuffleError,
    NotFound,
    PartitionFailed,
    ServerLost,
    dump_json,
)
from spark_client.arrow import OneChunk
from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers
from spark_client.hosts import Copies, HostFile, HostFiles, PartFile
from spark_client.lanes import BatchBurst, ReadStream
from spark_client.merge import DatasetRef

_log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
TREE_BYTES = 16 << 20
_CREATE_SECONDS = 30.0


def bursts(
    source: DatasetRef, servers: ExecutorServers | None, host: str | None, file: str
) -> Generator[BatchBurst, None, None]:
    """The bursts of the only partition. Raises as ``ReadStream.read_burst``.

    Args:
        servers: of the executors; None to read from the broadcast's server.
        host, file: as this host has named itself and its file to the broadcast's server (``broadcast_copies.keep``).
    """
    first = 0
    if servers is not None and host is not None:
        try:
            with _near(source, servers, host, file) as near:
                while near is not None and (burst := near.read_burst()) is not None:
                    first = near.cursor.next_frame
                    yield burst
            if near is not None:
                return
        except FlightShuffleError as error:
            _log.info("broadcast %r is read from its server: %s", source.dataset, error)
    with closing(source.stream(0, first)) as stream:
        while (burst := stream.read_burst()) is not None:
            yield burst


@contextmanager
def _near(source: DatasetRef, servers: ExecutorServers, host: str, file: str) -> Iterator[ReadStream | None]:
    """The stream of the executor's server; None if that is the broadcast's, or has another token."""
    origin, here = source.server, servers.here()
    if here.location == origin.location or origin.token != servers.token:
        yield None
        return
    name = f"copies/{file}"
    spec = {
        "flight": origin.location,
        "dataset": source.dataset,
        "generation": source.generation,
        "token": servers.token,
        "tree": {"host": host, "file": file, "location": here.location},
    }
    body = {"dataset": name, "kind": "source", "source": spec, "lease_seconds": LEASE_SECONDS}
    timeouts = replace(origin.timeouts, tries=1)  # the broadcast's server has it, too
    server = RemoteServer(
        here.location, token=servers.token, timeouts=timeouts, reading=origin.reading, direct=True
    )
    with closing(server):
        # It exists where another directory of this host has made it.
        with suppress(AlreadyExists):
            server.action("create", dump_json(body), _CREATE_SECONDS, once=True)
        with closing(DatasetRef.find(server, name).stream(0)) as stream:
            yield stream


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
        # A read says so by its class, and the server's answer to a call by its detail.
        lost = isinstance(error, ServerLost) or error.detail.get("restarted")
        why = "its server was restarted" if lost else "it was destroyed, or its driver has ended"
        return NotFound(f"broadcast {self.name!r} is gone: {why} ({error.message})", **error.detail)

    def _fetch(self, part: PartFile) -> None:
        # A tree passes no dictionaries on.
        in_tree = self.counts is not None and self.size_bytes >= TREE_BYTES
        servers = self.servers if in_tree else None
        arriving = bursts(self.source, servers, HostFiles(self.copies).place, self.key)
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
