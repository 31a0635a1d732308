"""Sandbox: runs a user's query in DuckDB over rows in memory, and lets it reach nothing else.

It sees no file, network, extension, setting, other table or Python object: :mod:`flight_server.rules.query_text` checks
the text of the query, and DuckDB runs with external access off and its configuration locked.

Limits (:class:`QueryLimits`). Nothing goes to disk. The rows that go in are not copied and not counted. The result is
counted while it is read. A query ends at its deadline: a thread interrupts it, and goes on until it has stopped. A
query uses one thread, so that sums of floating point numbers are the same each time.

Any thread may run queries, several at the same time. Each has a connection of its own to one database in memory, which
holds nothing between queries.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import duckdb
import pyarrow as pa

from flight_server.protocol import FlightShuffleError, OutOfBudget, Unavailable

from .query_limits import QueryLimits
from .query_text import check_query, first_line, refused, shown

_RETRY_SECONDS = 0.05


@dataclass(frozen=True)
class Sandbox:
    """Runs queries within these limits. It holds nothing; any number of them may be made."""

    limits: QueryLimits

    def check(self, query: str) -> None:
        """Raises InvalidRequest for a query that must not be run; see :mod:`flight_server.rules.query_text`."""
        with self._connected() as connection:
            check_query(query, connection)

    def run(self, query: str, tables: Mapping[str, pa.RecordBatch], *, users: str | None = None) -> pa.Table:
        """The result of a checked query over tables of these names; or of one of our own, and then errors show the
        query of the user that it works for.

        Raises InvalidRequest if the query fails on these rows, OutOfBudget if it needs more memory, Unavailable at its
        deadline.
        """
        users = users or query
        with self._connected() as connection, self._deadline(connection) as passed:
            batches: list[pa.RecordBatch] = []
            size_bytes = 0
            try:
                for name, rows in tables.items():
                    connection.register(name, pa.Table.from_batches([rows]))
                with pa.RecordBatchReader.from_stream(connection.sql(query)) as reader:
                    for batch in reader:
                        batches.append(batch)
                        size_bytes += batch.nbytes
                        if size_bytes > self.limits.memory_limit_bytes:
                            raise self.too_large(users, "its result")
                    return pa.Table.from_batches(batches, reader.schema)
            except (duckdb.Error, pa.ArrowException) as error:
                # What fails while the result is read arrives as an exception of Arrow, with DuckDB's text.
                raise self._explained(error, users, deadline_passed=passed.is_set()) from error

    def too_large(self, query: str, what: str) -> FlightShuffleError:
        """The error of a query whose ``what`` passes the memory limit."""
        limit = self.limits.memory_limit_bytes >> 20
        return OutOfBudget(
            f"the rule's query {shown(query)} needs more memory than {limit} MiB for {what}: give "
            "the rule a key, so that it runs over the keys that changed, or keep less"
        )

    def _explained(self, error: Exception, query: str, *, deadline_passed: bool) -> FlightShuffleError:
        if deadline_passed:
            return Unavailable(
                f"the rule's query {shown(query)} did not end within {self.limits.deadline_seconds:g} s and was "
                "stopped: give the rule a key, so that it runs over the keys that changed, or make the query simpler"
            )
        if "out of memory" in str(error)[:100].lower():
            return self.too_large(query, "its work")
        return refused(query, first_line(error))

    @contextmanager
    def _connected(self) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = _database(self.limits.memory_limit_bytes).cursor()
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _deadline(self, connection: duckdb.DuckDBPyConnection) -> Iterator[threading.Event]:
        """Interrupts the connection from the deadline on until the block has ended. Gives an event that is set then."""
        ended, passed = threading.Event(), threading.Event()

        def watch() -> None:
            if not ended.wait(self.limits.deadline_seconds):
                passed.set()
                connection.interrupt()
                # An interrupt between two statements of the block is forgotten.
                while not ended.wait(_RETRY_SECONDS):
                    connection.interrupt()

        watcher = threading.Thread(target=watch, name="query-deadline", daemon=True)
        watcher.start()
        try:
            yield passed
        finally:
            ended.set()
            watcher.join()


@cache
def _database(memory_limit_bytes: int) -> duckdb.DuckDBPyConnection:
    """One for each limit, for the life of the process: to make one takes tens of milliseconds."""
    database = duckdb.connect(
        ":memory:",
        config={
            "allow_community_extensions": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "enable_external_access": "false",
            "max_temp_directory_size": "0B",
            "memory_limit": f"{memory_limit_bytes}B",
            "temp_directory": "",
            "threads": 1,
        },
    )
    # Known once DuckDB runs. The host's time zone would decide which date a moment has.
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET GLOBAL lock_configuration = true")
    return database
