"""ShuffleClient: a client of one server, for a driver or any Python program.

Guarantees and errors of its calls: ``dataset_calls``, ``pipeline``, ``scan.scans``, ``jobs.results``,
``broadcast.broadcasts``, ``changelogs``, ``lookup.lookups``.

Owned by a client
    The results of its pipelines and its broadcasts. A thread renews their leases until :meth:`ShuffleClient.close`;
    after that every call raises. A dataset of ``put``, and a changelog, stays until it is dropped or the server's
    default lease ends.

The constructor removes files that killed clients left on this host (``host.directories``). The first call that needs a
connection or a thread starts it. Only calls that take or make a session or DataFrame need PySpark. Functions in Spark's
tasks can use broadcasts, but not the client: it cannot be pickled.
"""

from __future__ import annotations

import secrets
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    Self,
    Unpack,
)

import pyarrow as pa

from flight_server.protocol import InvalidRequest, KeepRule, check_dataset_name
from spark_client.arrow import html_table
from spark_client.connection import Closable, RemoteServer, check_locations, embedded, short_traces
from spark_client.dataset_calls import DatasetCalls
from spark_client.hosts import Copies, HostFiles
from spark_client.servers import DriverServer, ServerList
from spark_client.settings import (
    CREDENTIALS,
    EMBEDDED,
    EXECUTORS,
    LEASE_SECONDS,
    ClientOptions,
    ServerSettings,
    StartingOptions,
    apart,
    check_options,
    check_settings,
    of_calls,
    open_client,
    session_arguments,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_client.broadcast import Broadcast
    from spark_client.changelogs import Changelog, Columns
    from spark_client.executors import ExecutorServers
    from spark_client.jobs import Shuffles
    from spark_client.lookup import Lookups
    from spark_client.pipeline import Pipeline

_LEAST_BYTES = 256 << 20
"""Of the servers of an executor."""

_registered: weakref.WeakKeyDictionary[SparkSession, ShuffleClient] = weakref.WeakKeyDictionary()
"""Whose settings each session's source ``flight`` has."""


@short_traces
class ShuffleClient(DatasetCalls, Closable):
    """A client of the server at ``location``; also a context manager that closes it.

    Args:
        location: ``grpc://host:port`` or ``grpc+tls://host:port``, reachable from every executor; of several servers
            all, with commas between, or ``dns+grpc://host:port`` for each address that the name has now. Exchanges are
            spread over all servers; every other dataset is on one, which its name chooses.
        token: the bearer token that the server requires; or the path of a file that has it, on the driver's host and on
            every executor's: then neither plans nor functions of Spark have the token.
        tls_root_certs: PEM certificates to trust; None for the system's.
        tls_client_cert, tls_client_key: PEM, what the client presents to a server with ``--tls-client-ca``; or paths of
            files, as for the token. Bytes go into plans and functions of Spark.
        timeouts: the deadlines of all waits.
        reading: lane, memory budget and scratch directory of reads, also in Spark's tasks.
        writing: lane and compression of writes, also in Spark's tasks.
        copies: where hosts keep their copies of broadcasts, and how many bytes of them.
        lease_seconds: how long the client's datasets outlive a driver that died.
    """

    def __init__(self, location: str, **options: Unpack[ClientOptions]) -> None:
        check_options("ShuffleClient()", options)
        locations = check_locations(location)
        self._begin(ServerList(RemoteServer(locations[0], **of_calls(options)), locations), options)

    def _begin(
        self, servers: ServerList, options: ClientOptions, executors: ExecutorServers | None = None
    ) -> None:
        self._servers = servers
        self._server = servers.first
        self._lease_seconds = options.get("lease_seconds") or LEASE_SECONDS
        self._copies = options.get("copies") or Copies()
        HostFiles(self._copies).sweep()
        self._embedded: embedded.Embedded | None = None
        self._executors = executors
        self._shuffles: Shuffles | None = None
        self._lookups: Lookups | None = None
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def getOrCreate(  # noqa: N802 - Spark's name
        cls, spark: SparkSession, *, location: str | None = None, **options: Unpack[ClientOptions]
    ) -> ShuffleClient:
        """The client of the session's ``spark.flight.shuffle.*``, Classic or Connect.

        Arguments win over the session; this folder's README has the settings. Equal settings and arguments give the
        same client in all sessions of an application, until its ``close`` or the end of the process
        (``settings.open_clients``). The source ``flight`` is registered in the session with the client's settings, see
        :meth:`register`.

        Without a location the client has an embedded server where Spark's master is local, and servers in the executors
        (:meth:`in_executors`) elsewhere.

        Raises:
            InvalidRequest: an unknown or wrong setting, or an option of another type; the message names it.
        """
        check_options("ShuffleClient.getOrCreate()", options)
        arguments = session_arguments(spark, {"location": location, **options})

        def make() -> ShuffleClient:
            of_started = {k: value for k, value in arguments.items() if k not in ("location", *CREDENTIALS)}
            match arguments["location"]:
                case where if where == EMBEDDED:
                    return cls.embedded(**of_started)
                case where if where == EXECUTORS:
                    return cls.in_executors(spark, **of_started)
                case _:
                    return cls(**arguments)

        client = open_client(spark, arguments, make)
        if _registered.get(spark) is not client:
            client.register(spark)
        return client

    @classmethod
    def embedded(cls, *, reachable: bool = False, **options: Unpack[StartingOptions]) -> Self:
        """A client with embedded servers on loopback, one for each four cores of this machine, which end with ``close``
        or with this process. They demand a random token; ``headers`` has it for other clients. While they start, Spark
        starts Python for the jobs to come of an active session whose master is local.

        Args:
            reachable: a cluster's executors reach the servers. They listen on the address by which this host reaches
                ``spark.driver.host`` of the session, on Spark Classic that one itself.
                Where executors know this host by another name, as behind a container's ports, give ``host="0.0.0.0"``,
                ``advertise_host=``, ``port=`` and ``http_port=``.
            options: those of the client without credentials; the servers sweep the directories of ``copies``, too. All
                others are the servers' settings, for example ``memory_limit="2g"``, which they share evenly.
                ``workers`` says how many servers there are. With ``port``, ``http_port`` or ``data_dir`` it is one,
                unless it is given.

        Raises:
            InvalidRequest: the server has no such setting; an option has another type; or there is no session to say
                where executors are.
            Unavailable: a server did not start; the message says why.
        """
        own, settings = apart("ShuffleClient.embedded()", options)
        if reachable and "host" not in settings:
            from spark_client.executors import address_of_driver  # noqa: PLC0415 - needs PySpark

            settings["host"] = address_of_driver()
        process = embedded.start(_start_ahead, **_sweeping(own) | settings)
        client = cls(",".join(process.locations), **own | {"token": process.token})
        client._embedded = process
        # Of several, one that ends is a server that is lost, and its supervisor starts it again.
        client._server.embedded = len(process.locations) == 1
        client._server.direct = True
        return client

    @classmethod
    def in_executors(
        cls,
        spark: SparkSession,
        *,
        scratch_dirs: Sequence[str] = (),
        driver: ServerSettings | None = None,
        **options: Unpack[StartingOptions],
    ) -> Self:
        """A client of servers in a cluster's executors, one for each four cores of an executor, started by the first
        task there that writes to an exchange, see ``executors.executor_servers``. They demand a random token, and end
        with their executors, or with ``close``.

        Everything that has a name, and what ``collect`` writes, is on one server on the driver's host, as that of
        ``embedded(reachable=True)``. It is started when it is first needed, and ends like that one.

        Args:
            scratch_dirs: where executors' servers keep what has no room in memory, instead of Spark's local
                directories; the first is used.
            driver: settings of the server on the driver's host, as for :meth:`embedded`.
            options: those of the client without credentials. All others are settings of the executors' servers, such
                as ``workers``, how many each executor has, and ``memory_limit`` of these together, such as ``"2GiB"``:
                half of ``spark.executor.memoryOverhead`` by default, at least 256 MiB. ``offload_to`` is also for the
                driver's.

        Raises:
            InvalidRequest: an option has another type; the session does not say where its driver is. A job that the
                executors cannot run servers for raises it, too: packages are missing, or address space is; the message
                says what to do.
        """
        from spark_client.executors import ExecutorServers, address_of_driver  # noqa: PLC0415 - needs PySpark
        from spark_client.jobs import overhead_bytes  # noqa: PLC0415 - as above

        call = "ShuffleClient.in_executors()"
        own, settings = apart(call, options)
        check_settings(f"{call}: driver", driver or {})
        if settings.get("memory_limit") is None:
            settings["memory_limit"] = max(_LEAST_BYTES, overhead_bytes(spark) // 2)
        shared = {name: settings[name] for name in ("offload_to",) if name in settings}
        of_driver = _sweeping(own) | shared | dict(driver or {})
        if "host" not in of_driver:
            of_driver["host"] = address_of_driver(spark)
        token = secrets.token_urlsafe(32)
        like = RemoteServer(EXECUTORS, direct=True, **of_calls(own) | {"token": token})
        like.patient = True  # those of executors have answered a task before the client knows them
        driver_host = str(spark.conf.get("spark.driver.host"))
        executors = ExecutorServers(token, driver_host, _sweeping(own) | settings, tuple(scratch_dirs))
        client = cls.__new__(cls)
        client._begin(ServerList(like, home=DriverServer(like, of_driver | {"token": token})), own, executors)
        return client

    @property
    def location(self) -> str:
        """That of the server; of several with commas between; ``executors`` for servers in executors."""
        return self._server.location if self._executors is not None else ",".join(self._servers.locations)

    @property
    def headers(self) -> dict[str, str]:
        """The header with the server's token, for its other clients: pyarrow.flight, curl, DuckDB. Empty without one.
        Raises Unauthenticated: the token's file cannot be read, or is empty.
        """
        token = self._server.token
        return {} if token is None else {"authorization": f"Bearer {token}"}

    def __repr__(self) -> str:
        return f"<ShuffleClient {self.location}>"

    def _repr_html_(self) -> str:
        """For a notebook: where the servers are. Asks none."""
        closed = " (closed)" if self._closed else ""
        servers = html_table(["server"], ([each] for each in self.location.split(",")))
        return f"<div>ShuffleClient{closed}{servers}</div>"

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            "a ShuffleClient stays in the driver and does not go into tasks: use it outside the function, and "
            "give the function a broadcast"
        )

    # Spark.

    def ship(self, spark: SparkSession) -> None:
        """Send the package to executors that lack it, before the session's first job. Calling it twice is fine."""
        from spark_client.executors import ship  # noqa: PLC0415 - as above

        self._open()
        ship(spark)
        if _registered.get(spark) is self:
            self.register(spark)

    def register(self, spark: SparkSession) -> None:
        """Register the source ``flight`` in the session, with this client's server, credentials and settings for the
        options that are not given. Calling it twice is fine; of several clients the last one counts.

        A source that was registered before the package was shipped by hand does not find it: register it again.
        """
        # Before: Spark keeps with a source the interpreter and the shipped files of the time when it was registered.
        self._owned().sessions.used(spark)
        self._register(spark)
        _registered[spark] = self

    def _register(self, spark: SparkSession) -> None:
        from spark_client.datasource import Registered  # noqa: PLC0415 - as above
        from spark_client.pyspark_parts import register_source  # noqa: PLC0415 - as above

        servers = self._servers
        # One dataset is on one server: where servers are learnt, on the driver's.
        location = self.location if servers.home is None else servers.main.location
        register_source(spark, Registered(servers.main, location))

    # Spark's rows: pipelines, scans, results and broadcasts.

    def pipeline(self, df: DataFrame) -> Pipeline:
        """A pipeline over the rows of a DataFrame, which has no step yet and runs nothing.

        Raises:
            InvalidRequest: ``df`` is no DataFrame of Spark, or has a column without an Arrow type.
        """
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - needs PySpark, which get and put do not

        return Pipeline.of_frame(self._owned(), df)

    def scan(
        self,
        what: Any,
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - pyarrow's name
        schema: StructType | pa.Schema | str | None = None,
        spark: SparkSession | None = None,
    ) -> Pipeline:
        """A pipeline whose first tasks read Parquet, Arrow IPC, or a dataset themselves: no row goes through the JVM.

        The driver lists the files and plans the tasks now, from their metadata; see ``scan.scans``.

        Args:
            what: a path or an address that pyarrow knows (``s3://``, ``gs://``, …) of a file or a directory, which may
                have hive partitions, a list of these, or a ``pyarrow.dataset.Dataset``. All files below a directory
                are read. Every executor must reach them, with credentials of its own environment, unless the address
                or the Dataset's file system has some.
            columns: their names, in the order of the result; None for all.
            filter: an expression of ``pyarrow.compute``, or a list such as ``[("day", ">=", 5)]``, that rows must
                fulfil. Partitions and row groups that cannot have such rows are not read. Comparisons are Arrow's: NaN
                fulfils none but ``!=``, see ``Pipeline.filter``.
            schema: the columns and their types, as DDL text, a ``StructType`` or a ``pyarrow.Schema``; None for those
                of the first file. A column that a file lacks is null there, others of a file are left out; folders'
                columns are added, with the types that it has for them.
            spark: the session; None for the active one, else the client's last one, else the default one.

        Raises:
            InvalidRequest: an argument, or a file that cannot be read or has other columns than the first one.
            NotFound: there is no file.
        """
        from spark_client.jobs import settings_once  # noqa: PLC0415 - as above
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above
        from spark_client.scan import Scan  # noqa: PLC0415 - as above

        owned = self._owned()
        session = owned.sessions.choose(spark, "scan")
        with settings_once(session):
            scan = Scan.plan(session, what, columns=columns, filter=filter, schema=schema)
            return Pipeline.of_scan(owned, session, scan)

    def collect(self, data: DataFrame | Pipeline) -> pa.RecordBatchReader:
        """The rows of a DataFrame or pipeline, in the order of Spark's partitions, however many there are. Where a
        pipeline ends with an exchange over several servers, the rows of a partition come in no certain order.

        One Spark job writes them to the server, or none where they are there: a pipeline that ends with an exchange, or
        the DataFrame that ``toDF`` returned for one; or where the driver runs the last steps, over little
        (``pipeline.in_driver``). The driver reads them within the budget of ``Reading``, not bound
        by ``spark.driver.maxResultSize`` and its heap. Unless a DataFrame reads them, the server drops the rows with
        the last batch, an error, the collection of the reader, the end of a :meth:`scope`, or the client's close, not
        with ``reader.close()``.

        Raises:
            InvalidRequest: ``data`` is neither; otherwise as ``Pipeline.toDF``. The reader raises if it cannot give
                all rows.
        """
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above

        return (data if isinstance(data, Pipeline) else self.pipeline(data)).toLocalIterator()

    def broadcast(self, data: Any, name: str | None = None) -> Broadcast:
        """A table that tasks on every host share, of a pipeline, a DataFrame of Spark or pandas, a pyarrow Table, or
        other data as for :meth:`put`, see ``broadcast.broadcasts``. The last job of a pipeline writes it.
        """
        from spark_client.broadcast import Broadcast  # noqa: PLC0415 - as above
        from spark_client.pipeline import Pipeline, broadcast_rows  # noqa: PLC0415 - as above

        owned = self._owned()
        if isinstance(data, Pipeline):
            return broadcast_rows(data, name)
        return Broadcast.create(owned, data, name)

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

    # Changelogs.

    def changelog(
        self,
        name: str,
        schema: pa.Schema | None = None,
        *,
        key: Columns = None,
        order_by: Columns = None,
        keep: KeepRule | None = None,
        delay_seconds: float | None = None,
    ) -> Changelog:
        """Create a changelog, or find the one that is declared alike; with a name only, the existing one.

        Args:
            schema: its columns; optional where it exists.
            key: column or columns, as ``keep`` needs them.
            order_by: column or columns, the first counts most; with ``-`` before its name the smallest value counts as
                the greatest.
            keep: ``latest()``, ``top_k(k)``, ``until_closed(…)`` or ``pair(…)``; None keeps every row.
            delay_seconds: how long rows that the rule does not keep can still come back; None for the server's 1 s.

        Raises:
            InvalidRequest: the declaration is wrong, or another than that of the dataset of this name.
            NotFound: there is none, and ``schema`` is None.
        """
        from spark_client.changelogs import Changelog  # noqa: PLC0415 - an add-on, which most clients do not use

        return Changelog.declare(
            self._open(name),
            check_dataset_name(name),
            schema,
            key=key,
            order_by=order_by,
            keep=keep,
            delay_seconds=delay_seconds,
        )

    def lookup(
        self,
        df: DataFrame,
        changelog: str,
        on: str | Sequence[str] | Mapping[str, str],
        how: Literal["left", "inner"] = "left",
        as_of: int | None = None,
    ) -> DataFrame:
        """``df``, a stream or not, joined with the rows of a changelog, which do not go through Spark.

        In a stream each micro-batch has the rows of one version, the newest when it first ran; see ``lookup.lookups``.

        Args:
            on: the key columns of both sides, as in ``df.join``; or for each of ``df`` that of the changelog, which
                is then left out as well.
            as_of: the version; None for the newest.

        Raises:
            InvalidRequest: an argument; types that are not compared; columns of both sides that have one name.
            NotFound: there is no such changelog, or, ``Compacted``, it no longer has the version.
        """
        from spark_client.lookup import Lookups  # noqa: PLC0415 - as above

        owner = self._owned()
        if self._lookups is None:
            # Two threads may make one each: both are closed with the client.
            self._lookups = Lookups(owner)
        return self._lookups.join(df, changelog, on, how, as_of)

    # Life.

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, or the embedded server has ended by itself."""
        return self._closed or (self._embedded is not None and self._embedded.ended)

    def close(self) -> None:
        """Drop the client's results and broadcasts, end threads, connections, embedded server and those in executors.
        Calling it twice is fine. What a server that does not answer holds ends with its lease.
        """
        with self._lock:
            self._closed = True
            shuffles, self._shuffles = self._shuffles, None
        with ExitStack() as ends:  # the last one first; each, also where one before it raises
            if self._embedded is not None:
                ends.callback(self._embedded.close)
            ends.callback(self._server.close)
            ends.callback(self._servers.end)
            if self._executors is not None:
                ends.callback(self._executors.close)
            if self._embedded is not None and not self._server.embedded:
                ends.callback(self._say_ended)
            if shuffles is not None:
                ends.callback(shuffles.close)

    def _say_ended(self) -> None:
        """Of several embedded servers, too, none comes back from now on: a read that is open, and the source ``flight``
        of a session of Spark Classic, do not wait for the supervisor.
        """
        self._server.never_returns()
        for spark in [spark for spark, client in _registered.items() if client is self]:
            # PySpark calls a server of Spark Connect that is gone for minutes.
            if "connect" not in type(spark).__module__:
                with suppress(Exception):  # the session may have ended
                    self._register(spark)

    def __enter__(self) -> Self:
        self._open()
        return self

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
                    server,
                    self._lease_seconds,
                    self._copies,
                    self._embedded,
                    self._servers,
                    executors=self._executors,
                )
            return self._shuffles


def _start_ahead() -> None:
    """A process without a session need not have PySpark."""
    if "pyspark.sql" in sys.modules:
        from spark_client.jobs import start_ahead  # noqa: PLC0415 - as above

        start_ahead()


def _sweeping(options: ClientOptions) -> dict[str, Any]:
    """The setting of a server that sweeps the directories of the client's copies."""
    copies = options.get("copies")
    return {} if copies is None or copies.dirs is None else {"host_file_dirs": copies.dirs}
