"""ShuffleClient: one server, seen from a driver or from any Python program.

Guarantee: what ``get`` gives is the whole dataset or an error; what ``put`` returns from is complete on the
server. Errors are those of :mod:`flight_server.protocol.errors`, with the server's own sentence.

What a client owns
    The results of its pipelines and its broadcasts. They are leased, renewed in the background while the
    client is open, and dropped by :meth:`ShuffleClient.close`, after which every call is an error. What ``put``
    stores has no owner: it stays until it is dropped, or until the server's own default lease ends.

A client begins with removing what clients that were killed left on its host (see
:mod:`flight_server.host.directories`). Nothing is opened, and no thread started, before it is needed. Without
PySpark everything works that does not take a DataFrame. The client stays in the driver: closures that run in
Spark's tasks can take broadcasts with them, not the client.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import pyarrow as pa

from flight_server.memory import MemoryPool
from flight_server.protocol import DatasetRequest, InvalidRequest, PutCommand, check_dataset_name
from spark_client.connection import (
    Reading,
    Server,
    Timeouts,
    Writing,
    about,
    check_location,
    check_mode,
    embedded,
)
from spark_client.hosts import Copies, HostFiles
from spark_client.lanes import PutStream, as_reader, partition_streams, put_async
from spark_client.merge import AsyncMergedStream, merge, merge_async

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_client.broadcast import Broadcast
    from spark_client.jobs import Shuffles
    from spark_client.pipeline import Pipeline

LEASE_SECONDS = 300.0
_Merged = TypeVar("_Merged")


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset as the server lists it; ``rows`` and ``size_bytes`` are -1 while it is being written."""

    name: str
    partitions: int
    rows: int
    size_bytes: int
    schema: pa.Schema


class ShuffleClient:
    """A client of the server at ``location``; also a context manager that closes it.

    Args:
        location: ``grpc://host:port`` or ``grpc+tls://host:port``, reachable from every executor.
        token: the bearer token that the server asks for.
        tls_root_certs: PEM certificates to trust; None for the system's.
        timeouts: how long waits may last.
        reading: lane, memory budget and scratch directory of what is read, here and in Spark's tasks.
        writing: lane of what is written, here and in Spark's tasks.
        copies: where hosts keep their copies of broadcasts, and how many bytes of them.
        lease_seconds: how long what the client owns outlives a driver that died.
    """

    def __init__(
        self,
        location: str,
        *,
        token: str | None = None,
        tls_root_certs: bytes | None = None,
        timeouts: Timeouts | None = None,
        reading: Reading | None = None,
        writing: Writing | None = None,
        copies: Copies | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._server = Server(
            check_location(location),
            token=token,
            tls_root_certs=tls_root_certs,
            timeouts=timeouts,
            reading=reading,
            writing=writing,
        )
        self._lease_seconds = lease_seconds
        self._copies = copies or Copies()
        # What clients that were killed left on this host.
        HostFiles(self._copies).sweep()
        self._embedded: embedded.Embedded | None = None
        self._shuffles: Shuffles | None = None
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def embedded(
        cls,
        *,
        lease_seconds: float = LEASE_SECONDS,
        timeouts: Timeouts | None = None,
        reading: Reading | None = None,
        writing: Writing | None = None,
        copies: Copies | None = None,
        **server_options: Any,
    ) -> Self:
        """A client with a server of its own on loopback, which ends with ``close`` or with this process.

        Args:
            server_options: the server's settings, for example ``memory_limit="2GiB"``.
            lease_seconds: as for the client.
            timeouts: as for the client.
            reading: as for the client.
            writing: as for the client.
            copies: as for the client; the server sweeps there, too.

        Raises:
            Unavailable: the server did not start; the message says why.
        """
        if copies is not None and copies.dirs is not None:
            server_options.setdefault("host_file_dirs", copies.dirs)
        process = embedded.start(**server_options)
        token = server_options.get("token")
        client = cls(
            process.location,
            token=token,
            lease_seconds=lease_seconds,
            timeouts=timeouts,
            reading=reading,
            writing=writing,
            copies=copies,
        )
        client._embedded = process
        return client

    @property
    def location(self) -> str:
        """The server's address."""
        return self._server.location

    def __repr__(self) -> str:
        return f"<ShuffleClient {self.location}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            "a ShuffleClient stays in the driver and does not go into tasks: use it outside the function, and "
            "give the function a broadcast"
        )

    # Datasets.

    def put(self, name: str, data: Any, *, mode: str = "create") -> int:
        """Store ``data`` as dataset ``name`` and return its number of rows. Readers get it while it is written.

        Args:
            name: 1 to 200 of ``A-Z a-z 0-9 . _ / -``.
            data: a Table, RecordBatch, RecordBatchReader, an iterable of RecordBatches, or anything with
                ``__arrow_c_stream__``. Batches above 4 MiB are sent in several frames.
            mode: ``"create"`` refuses a name that exists; ``"overwrite"`` replaces it, while those who read
                the old one finish.

        Raises:
            AlreadyExists, InvalidRequest, Unavailable: nothing is left under the name but a failed dataset.
        """
        server, command, reader = self._open(), _put_command(name, mode), as_reader(data)
        with about(name, server.location), PutStream(server, command, reader.schema) as stream:
            for batch in reader:
                stream.write(batch)
            stream.commit()
            return stream.rows

    def get(self, name: str, *, ordered: bool = False) -> pa.RecordBatchReader:
        """The rows of dataset ``name``, of all its partitions, while it may still be being written.

        Reading ends with an error, never early, when the dataset cannot be read to its end.

        Args:
            name: the dataset.
            ordered: partition by partition; otherwise batches come as they arrive, and those of one partition
                in their order. Batches of later partitions then wait in a local file when they do not fit.

        Raises:
            NotFound: there is none of that name.
        """
        return self._merge(merge, name, ordered=ordered).to_reader()

    async def aput(self, name: str, data: Any, *, mode: str = "create") -> int:
        """As :meth:`put`, without blocking the event loop; ``data`` may also be an async iterable of batches.

        Cancelling it ends the stream without its commit, so that readers get an error and not a short
        dataset.
        """
        server = self._open()
        with about(name, server.location):
            return await put_async(server, _put_command(name, mode), data)

    async def aget(self, name: str, *, ordered: bool = False) -> AsyncMergedStream:
        """As :meth:`get`: an async iterator of RecordBatches, and an async context manager that ends it."""
        return await asyncio.to_thread(self._merge, merge_async, name, ordered=ordered)

    def drop(self, name: str) -> None:
        """Drop a dataset; those who read it get an error.

        Raises:
            NotFound: there is none of that name.
        """
        server = self._open()
        with about(name, server.location):
            server.action("drop", DatasetRequest(check_dataset_name(name)).encode())

    def datasets(self, prefix: str = "") -> list[DatasetInfo]:
        """The datasets whose names begin with ``prefix``."""
        return [
            DatasetInfo(
                info.descriptor.path[0].decode(),
                len(info.endpoints),
                info.total_records,
                info.total_bytes,
                info.schema,
            )
            for info in self._open().list_flights(prefix)
        ]

    def statistics(self, name: str | None = None) -> dict[str, Any]:
        """The server's counters and its first 1,000 datasets, or one dataset's first 1,000 partitions."""
        return self._open().action("statistics", DatasetRequest(name).encode())

    def why(self, name: str | None = None) -> list[dict[str, Any]]:
        """Every stream of the server that waits: for what, for how long, for which peer."""
        return list(self._open().action("why", DatasetRequest(name).encode()).get("waits", []))

    # Spark.

    def pipeline(self, df: DataFrame) -> Pipeline:
        """A pipeline over ``df``, see :mod:`spark_client.pipeline.plan`."""
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - needs PySpark, which get and put do not

        return Pipeline.start(self._owned(), df)

    def broadcast(self, data: DataFrame | pa.Table, name: str | None = None) -> Broadcast:
        """A table that tasks on every host share, see :mod:`spark_client.broadcast.broadcasts`."""
        from spark_client.broadcast import Broadcast  # noqa: PLC0415 - as above

        return Broadcast.create(self._owned(), data, name)

    def ship(self, spark: SparkSession) -> None:
        """Let Spark take the package along to executors that do not have it, see ``shipping``.

        Call it once for a session, before the first job. Twice is fine.
        """
        from spark_client.executors import ship  # noqa: PLC0415 - as above

        self._open()
        ship(spark)

    def release(self, result: DataFrame) -> None:
        """Drop what a frame reads: that which ``toDF`` returned, or one made from it, of several results all.

        They, and every other frame, view and cache made from them, cannot be computed again.

        Raises:
            InvalidRequest: it reads no result of this client, or what it reads was released before.
        """
        self._owned().results.release(result)

    def scope(self) -> AbstractContextManager[None]:
        """``with client.scope():`` releases at its end the results that ``toDF`` gave in the block.

        Results are not released when their DataFrames are garbage-collected: :mod:`spark_client.jobs.results` says why.
        A program that makes many of them releases them, or works in scopes.
        """
        return self._owned().results.scope()

    # Life.

    def close(self) -> None:
        """Drop what the client owns, end its threads, connections and embedded server. Twice is fine."""
        with self._lock:
            self._closed = True
            shuffles, self._shuffles = self._shuffles, None
        if shuffles is not None:
            shuffles.close()
        self._server.close()
        if self._embedded is not None:
            self._embedded.close()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _merge(self, how: Callable[..., _Merged], name: str, *, ordered: bool) -> _Merged:
        server = self._open()
        with about(name, server.location):
            info = server.flight_info(check_dataset_name(name))
        reading = server.reading
        streams = partition_streams(server, info.endpoints, lane=reading.lane)
        return how(
            streams,
            pool=MemoryPool(reading.budget_bytes, "merge"),
            scratch_dir=reading.scratch_dir,
            order="stream" if ordered else "arrival",
            timeouts=server.timeouts,
        )

    def _open(self) -> Server:
        if self._closed:
            raise InvalidRequest("this ShuffleClient is closed; make a new one")
        return self._server

    def _owned(self) -> Shuffles:
        from spark_client.jobs import Shuffles  # noqa: PLC0415 - needs PySpark, which get and put do not

        with self._lock:
            server = self._open()
            if self._shuffles is None:
                self._shuffles = Shuffles(server, self._lease_seconds, self._copies, self._embedded)
            return self._shuffles


def _put_command(name: str, mode: str) -> PutCommand:
    # With an attempt the server wants a commit, so that a stream which ends early fails its dataset.
    return PutCommand(check_dataset_name(name), producer=0, attempt=uuid.uuid4().hex, mode=check_mode(mode))
