"""ShuffleClient: a client of one server, for a driver or any Python program.

Guarantee: ``get`` gives the whole dataset or an error; when ``put`` returns, its dataset is complete on the server.
Errors are those of ``flight_server.protocol.errors``, with the server's own sentence.

What a client owns
    The results of its pipelines and its broadcasts. A thread renews their leases until :meth:`ShuffleClient.close`;
    after that every call raises. A dataset of ``put`` stays until it is dropped or the server's default lease ends.

The constructor removes files that killed clients left on this host (``host.directories``). The first call that needs
a connection or a thread starts it. Only ``pipeline``, ``scan``, ``collect``, ``broadcast``, ``ship``, ``release`` and
``scope`` need PySpark. Functions in Spark's tasks can use broadcasts, but not the client: it cannot be pickled.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import pyarrow as pa

from flight_server.memory import MemoryPool
from flight_server.protocol import DatasetRequest, InvalidRequest, PutCommand, check_dataset_name
from spark_client.connection import (
    Compression,
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
    """A dataset as the server lists it; ``rows`` and ``size_bytes`` are -1 while it is written."""

    name: str
    partitions: int
    rows: int
    size_bytes: int
    schema: pa.Schema


class ShuffleClient:
    """A client of the server at ``location``; also a context manager that closes it.

    Args:
        location: ``grpc://host:port`` or ``grpc+tls://host:port``, reachable from every executor.
        token: the bearer token that the server requires.
        tls_root_certs: PEM certificates to trust; None for the system's.
        timeouts: the deadlines of all waits.
        reading: lane, memory budget, scratch directory and check of reads, also in Spark's tasks.
        writing: lane, check and compression of writes, also in Spark's tasks.
        copies: where hosts keep their copies of broadcasts, and how many bytes of them.
        lease_seconds: how long the client's datasets outlive a driver that died.
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
        """A client with an embedded server on loopback, which ends with ``close`` or with this process.

        Args:
            copies: as for the client, like the others; the server sweeps these directories, too.
            server_options: the server's settings, for example ``memory_limit="2GiB"``.

        Raises:
            InvalidRequest: the server has no such setting.
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

    def put(self, name: str, data: Any, *, mode: str = "create", compression: Compression = None) -> int:
        """Store ``data`` as dataset ``name`` and return its number of rows. Readers get it while it is written.

        Args:
            name: 1 to 200 of ``A-Z a-z 0-9 . _ / -``.
            data: a Table, RecordBatch, RecordBatchReader, iterable of RecordBatches, or object with
                ``__arrow_c_stream__``. Batches above about 4 MiB are sent in several frames.
            mode: ``"create"`` refuses a name that exists; ``"overwrite"`` replaces it, while readers of the old
                dataset finish.
            compression: of the batches' buffers, as Arrow's IPC format has it: ``"lz4"``, ``"zstd"``, or ``"auto"``,
                LZ4 for what shrinks (``Writing``). None by default: some Arrow readers have no codec.

        Raises:
            AlreadyExists: the name exists; its dataset is unchanged.
            FlightShuffleError: the put failed or was not confirmed. Its dataset is failed; with ``overwrite`` the old
                one stays.
        """
        server, command, reader = self._open(), _put_command(name, mode), as_reader(data)
        with (
            about(name, server.location),
            PutStream(server, command, reader.schema, compression=compression) as stream,
        ):
            for batch in reader:
                stream.write(batch)
            stream.commit()
            return stream.rows

    def get(self, name: str, *, ordered: bool = False) -> pa.RecordBatchReader:
        """The rows of all partitions of a dataset, which may still be written. The reader raises if it cannot give
        them all.

        Args:
            name: the dataset.
            ordered: partition by partition; batches of later partitions that do not fit the memory budget wait in a
                local file. Otherwise in order of arrival, each partition's in its order.

        Raises:
            NotFound: there is no dataset of that name.
        """
        return self._merge(merge, name, ordered=ordered).to_reader()

    async def aput(
        self, name: str, data: Any, *, mode: str = "create", compression: Compression = None
    ) -> int:
        """As :meth:`put`, without blocking the event loop; ``data`` may also be an async iterable of batches.

        Cancelling it ends the stream without a commit, so readers get an error and not a short dataset.
        """
        server = self._open()
        with about(name, server.location):
            return await put_async(server, _put_command(name, mode), data, compression)

    async def aget(self, name: str, *, ordered: bool = False) -> AsyncMergedStream:
        """As :meth:`get`: an async iterator of RecordBatches, and an async context manager that ends it."""
        return await asyncio.to_thread(self._merge, merge_async, name, ordered=ordered)

    def drop(self, name: str) -> None:
        """Drop a dataset; its readers get an error.

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
        """What each waiting stream of the server, or of one dataset, waits for, how long, and its peer."""
        return list(self._open().action("why", DatasetRequest(name).encode()).get("waits", []))

    # Spark.

    def pipeline(self, df: DataFrame) -> Pipeline:
        """A pipeline over ``df``, see ``pipeline.plan``."""
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - needs PySpark, which get and put do not

        return Pipeline.of_frame(self._owned(), df)

    def scan(
        self,
        what: Any,
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - pyarrow's name
        batch_rows: int | None = None,
        format: Any = None,  # noqa: A002 - pyarrow's name
        spark: SparkSession | None = None,
    ) -> Pipeline:
        """A pipeline whose first tasks read files, or a dataset, themselves: no row goes through the JVM.

        The driver lists the files and plans the tasks now, from their metadata; see ``scan.scans``.

        Args:
            what: a path, an address (``s3://``, ``gs://``, what else pyarrow and fsspec know), a directory, which may
                have hive partitions, a list of these, or a ``pyarrow.dataset.Dataset``. Every executor must reach it,
                with credentials of its own environment: the driver's are not sent.
            columns: their names, in the order of the result; None for all.
            filter: an expression of ``pyarrow.compute``, or a list such as ``[("day", ">=", 5)]``, that rows must
                fulfil. Partitions and row groups that cannot have such rows are not read.
            batch_rows: how many rows the batches have that the first stage gets; None for the session's limit.
            format: ``parquet``, ``ipc``, ``csv``, ``orc``, ``json``, or a ``pyarrow.dataset.FileFormat``; None to go
                by the files' names.
            spark: the session; None for the active one.

        Raises:
            InvalidRequest: an argument, or a file that cannot be read or has other columns than the first one.
            NotFound: there is no file.
        """
        from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above
        from spark_client.scan import Scan  # noqa: PLC0415 - as above

        session = spark or SparkSession.getActiveSession()
        if session is None:
            raise InvalidRequest("scan: there is no active Spark session; make one, or give it as spark=")
        owned = self._owned()
        scan = Scan.plan(session, what, columns=columns, filter=filter, batch_rows=batch_rows, format=format)
        return Pipeline.of_scan(owned, session, scan)

    def collect(self, data: DataFrame | Pipeline) -> pa.RecordBatchReader:
        """The rows of a DataFrame or pipeline, in the order of Spark's partitions, however many there are.

        One Spark job writes them to the server, or none where they are there: a pipeline that ends with an exchange, or
        what ``toDF`` returned for one. The driver reads them within the budget of ``Reading``, not bound by
        ``spark.driver.maxResultSize`` and its heap. What no DataFrame reads, the server drops with the last batch, an
        error, the collection of the reader, the end of a :meth:`scope`, or the client's close, not ``reader.close()``.

        Raises:
            InvalidRequest: ``data`` is neither; otherwise as ``Pipeline.toDF``. The reader raises if it cannot give
                all rows.
        """
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above

        return (data if isinstance(data, Pipeline) else self.pipeline(data)).collect()

    def broadcast(self, data: DataFrame | pa.Table, name: str | None = None) -> Broadcast:
        """A table that tasks on every host share, see ``broadcast.broadcasts``."""
        from spark_client.broadcast import Broadcast  # noqa: PLC0415 - as above

        return Broadcast.create(self._owned(), data, name)

    def ship(self, spark: SparkSession) -> None:
        """Send the package to executors that lack it, once before the session's first job. Twice is fine."""
        from spark_client.executors import ship  # noqa: PLC0415 - as above

        self._open()
        ship(spark)

    def release(self, result: DataFrame) -> None:
        """Drop the results that a DataFrame reads: one that ``toDF`` returned, or all that it was made from.

        Frames, views and caches made from them cannot be computed again.

        Raises:
            InvalidRequest: ``result`` is no DataFrame, or reads no result that this client still has.
            FlightShuffleError: the server could not be reached; the datasets end with their leases.
        """
        self._owned().results.release(result)

    def scope(self) -> AbstractContextManager[None]:
        """``with client.scope():`` releases at its end the results that ``toDF`` returned in the block.

        A program that makes many results needs this or :meth:`release`: garbage collection of a DataFrame releases
        nothing.
        """
        return self._owned().results.scope()

    # Life.

    def close(self) -> None:
        """Drop the client's results and broadcasts, end threads, connections and embedded server. Twice is fine."""
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
    # With an attempt the server requires a commit, so a stream that ends early fails its dataset.
    return PutCommand(check_dataset_name(name), producer=0, attempt=uuid.uuid4().hex, mode=check_mode(mode))
