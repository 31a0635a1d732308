"""ShuffleClient: a client of one server, for a driver or any Python program.

Guarantees and errors of its calls: ``dataset_calls``, ``pipeline``, ``broadcast.broadcasts``,
``changelogs``, ``lookup.lookups``.

Owned by a client
    The results of its pipelines and its broadcasts. A thread renews their leases until :meth:`ShuffleClient.close`;
    after that every call raises. A dataset of ``put``, and a changelog, stays until it is dropped or the server's
    default lease ends.

``get`` is two things: ``ShuffleClient.get(spark)`` gives the client of a session's ``spark.flight.shuffle.*``, and
``client.get(name)`` a dataset's rows.

The constructor removes files that killed clients left on this host (``host.directories``). The first call that needs a
connection or a thread starts it. Only calls that take or make a session or DataFrame need PySpark. Functions in Spark's
tasks can use broadcasts, but not the client: it cannot be pickled.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.changelog_calls import ChangelogCalls
from spark_client.connection import (
    Reading,
    RemoteServer,
    Timeouts,
    Writing,
    check_locations,
    embedded,
)
from spark_client.dataset_calls import DatasetCalls
from spark_client.either import OnClassOrObject
from spark_client.hosts import Copies, HostFiles
from spark_client.servers import ServerList

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_client.broadcast import Broadcast
    from spark_client.jobs import Shuffles
    from spark_client.pipeline import Pipeline

LEASE_SECONDS = 300.0

_registered: weakref.WeakKeyDictionary[SparkSession, ShuffleClient] = weakref.WeakKeyDictionary()
"""Whose settings each session's source ``flight`` has."""


def _of_session(
    kind: type[ShuffleClient],
    spark: SparkSession,
    *,
    location: str | None = None,
    token: str | Path | None = None,
    tls_root_certs: bytes | None = None,
    timeouts: Timeouts | None = None,
    reading: Reading | None = None,
    writing: Writing | None = None,
    copies: Copies | None = None,
    lease_seconds: float | None = None,
) -> ShuffleClient:
    """``ShuffleClient.get(spark)``: the client of the session's ``spark.flight.shuffle.*``, Classic or Connect.

    Arguments win over the session; this folder's README has the settings. Equal settings and arguments give the same
    client in all sessions of an application, until its ``close`` or the end of the process (``settings.open_clients``).
    The source ``flight`` is registered in the session with the client's settings, see :meth:`register`.

    Raises:
        InvalidRequest: no location, or an unknown or wrong setting; the message names the setting.
    """
    from spark_client.settings import EMBEDDED, client_arguments, open_client  # noqa: PLC0415 - only here

    arguments = client_arguments(
        spark,
        {
            "location": location,
            "token": token,
            "tls_root_certs": tls_root_certs,
            "timeouts": timeouts,
            "reading": reading,
            "writing": writing,
            "copies": copies,
            "lease_seconds": lease_seconds,
        },
    )

    def make() -> ShuffleClient:
        if arguments["location"] != EMBEDDED:
            return kind(**arguments)
        of_server = ("location", "token", "tls_root_certs")
        return kind.embedded(**{k: value for k, value in arguments.items() if k not in of_server})

    client = open_client(spark, arguments, make)
    if _registered.get(spark) is not client:
        client.register(spark)
    return client


class ShuffleClient(DatasetCalls, ChangelogCalls):
    """A client of the server at ``location``; also a context manager that closes it.

    Args:
        location: ``grpc://host:port`` or ``grpc+tls://host:port``, reachable from every executor; of several servers
            all, with commas between, or ``dns+grpc://host:port`` for each address that the name has now. Exchanges are
            spread over all servers; every other dataset is on one, which its name chooses.
        token: the bearer token that the server requires; or the path of a file that has it, on the driver's host and on
            every executor's: then neither plans nor functions of Spark have the token.
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
        token: str | Path | None = None,
        tls_root_certs: bytes | None = None,
        timeouts: Timeouts | None = None,
        reading: Reading | None = None,
        writing: Writing | None = None,
        copies: Copies | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        locations = check_locations(location)
        self._server = RemoteServer(
            locations[0],
            token=token,
            tls_root_certs=tls_root_certs,
            timeouts=timeouts,
            reading=reading,
            writing=writing,
        )
        self._servers = ServerList(self._server, locations)
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
        client._server.embedded = True
        return client

    @property
    def location(self) -> str:
        """That of the server; of several, with commas between."""
        return ",".join(self._servers.locations)

    def __repr__(self) -> str:
        return f"<ShuffleClient {self.location}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            "a ShuffleClient stays in the driver and does not go into tasks: use it outside the function, and "
            "give the function a broadcast"
        )

    get = OnClassOrObject(_of_session, DatasetCalls.get)

    # Spark.

    def pipeline(self, df: DataFrame) -> Pipeline:
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
        recursive: bool = False,
        schema: StructType | pa.Schema | str | None = None,
        merge_schema: bool = False,
        spark: SparkSession | None = None,
    ) -> Pipeline:
        """A pipeline whose first tasks read files, or a dataset, themselves: no row goes through the JVM.

        The driver lists the files and plans the tasks now, from their metadata; see ``scan.scans``.

        Args:
            what: a path, an address (``s3://``, ``gs://``, any other that pyarrow and fsspec know), a directory, which
                may have hive partitions, a pattern such as ``day=*/*.parquet``, a list of these, or a
                ``pyarrow.dataset.Dataset``. In an address ``%20`` is a blank, and ``%25`` a percent sign. A file that
                is listed twice is read twice. Every executor must reach it, with credentials of its own environment:
                the driver's are not sent. A signed address is, and is shown without its signature.
            columns: their names, in the order of the result; None for all.
            filter: an expression of ``pyarrow.compute``, or a list such as ``[("day", ">=", 5)]``, that rows must
                fulfil. Partitions and row groups that cannot have such rows are not read. Comparisons are Arrow's: NaN
                fulfils none but ``!=``, see ``Pipeline.filter``.
            batch_rows: how many rows the batches have that the first stage gets; None for the session's limit.
            format: ``parquet``, ``ipc``, ``csv``, ``orc``, ``json``, or a ``pyarrow.dataset.FileFormat``; None to go
                by the files' names.
            recursive: read all files below a directory, each once, without columns from folders, as Spark's
                ``recursiveFileLookup``. Otherwise plain folders in a directory are passed over.
            schema: the columns and their types, as DDL text, a ``StructType`` or a ``pyarrow.Schema``; None for those
                of the first file. JSON needs one; columns of CSV are texts without one. A column that a file lacks is
                null there, others of a file are left out; folders' columns are added.
            merge_schema: take the columns of all files, whose footers the driver then reads first: a column that a
                file lacks is null there.
            spark: the session; None for the active one, else the client's last one, else the default one.

        Raises:
            InvalidRequest: an argument, or a file that cannot be read or has other columns than the first one.
            NotFound: there is no file.
        """
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above
        from spark_client.scan import Scan  # noqa: PLC0415 - as above

        owned = self._owned()
        session = owned.sessions.choose(spark, "scan")
        scan = Scan.plan(
            session,
            what,
            columns=columns,
            filter=filter,
            batch_rows=batch_rows,
            format=format,
            recursive=recursive,
            schema=schema,
            merge_schema=merge_schema,
        )
        return Pipeline.of_scan(owned, session, scan)

    def collect(self, data: DataFrame | Pipeline) -> pa.RecordBatchReader:
        """The rows of a DataFrame or pipeline, in the order of Spark's partitions, however many there are.

        One Spark job writes them to the server, or none where they are there: a pipeline that ends with an exchange, or
        the DataFrame that ``toDF`` returned for one. The driver reads them within the budget of ``Reading``, not bound
        by ``spark.driver.maxResultSize`` and its heap. Unless a DataFrame reads them, the server drops the rows with
        the last batch, an error, the collection of the reader, the end of a :meth:`scope`, or the client's close, not
        with ``reader.close()``.

        Raises:
            InvalidRequest: ``data`` is neither; otherwise as ``Pipeline.toDF``. The reader raises if it cannot give
                all rows.
        """
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above

        return (data if isinstance(data, Pipeline) else self.pipeline(data)).collect()

    def broadcast(self, data: Any, name: str | None = None) -> Broadcast:
        """A table that tasks on every host share, of a DataFrame of Spark or pandas, a pyarrow Table, or other data as
        for :meth:`put`, see ``broadcast.broadcasts``.
        """
        from spark_client.broadcast import Broadcast  # noqa: PLC0415 - as above

        return Broadcast.create(self._owned(), data, name)

    def ship(self, spark: SparkSession) -> None:
        """Send the package to executors that lack it, once before the session's first job. Twice is fine."""
        from spark_client.executors import ship  # noqa: PLC0415 - as above

        self._open()
        ship(spark)
        if _registered.get(spark) is self:
            self.register(spark)

    def register(self, spark: SparkSession) -> None:
        """Register the source ``flight`` in the session, with this client's server, credentials and settings for the
        options that are not given. Twice is fine; of several clients the last one counts.

        A source that was registered before the package was shipped by hand does not find it: register it again.
        """
        from spark_client.datasource import registered  # noqa: PLC0415 - as above

        # Spark keeps with a source the files that had been shipped when it was registered.
        spark.dataSource.register(registered(self._open(), self.location))
        _registered[spark] = self
        self._owned().sessions.used(spark)

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

    @property
    def closed(self) -> bool:
        return self._closed

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

    def _open(self, name: str | None = None) -> RemoteServer:
        if self._closed:
            raise InvalidRequest("this ShuffleClient is closed; make a new one")
        return self._server if name is None else self._servers.of(name)

    def _owned(self) -> Shuffles:
        from spark_client.jobs import Shuffles  # noqa: PLC0415 - needs PySpark, which get and put do not

        with self._lock:
            server = self._open()
            if self._shuffles is None:
                self._shuffles = Shuffles(
                    server, self._lease_seconds, self._copies, self._embedded, self._servers
                )
            return self._shuffles
