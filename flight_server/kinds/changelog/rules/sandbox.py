"""Sandbox: runs a user's query in DuckDB over rows in memory, and lets it reach nothing else.

It sees no file, network, extension, setting, other table or Python object: ``query_text`` checks
the text of the query, and DuckDB runs with external access off and its configuration locked. Nothing goes to disk. A
query uses one thread, so that sums of floating point numbers are the same each time.

It runs in a process of its own (``query_program``), which bounds its memory and its time.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from flight_server.protocol import FlightShuffleError

from .query_errors import QueryLimits, first_line, refused, too_large
from .query_text import check_query


class Sandbox:
    """One database in memory, which holds nothing between queries; for one thread.

    ``broken``: memory was short, or DuckDB found a bug of its own; after either it may fail where it would not.
    """

    def __init__(self, limits: QueryLimits) -> None:
        self.limits = limits
        self.broken = False
        self._database = duckdb.connect(
            ":memory:",
            config={
                "allow_community_extensions": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "enable_external_access": "false",
                "max_temp_directory_size": "0B",
                "memory_limit": f"{int(limits.memory_limit_bytes * limits.duckdb_share)}B",
                "temp_directory": "",
                "threads": 1,
            },
        )
        # Known once DuckDB runs. The host's time zone would decide which date a moment has.
        self._database.execute("SET GLOBAL TimeZone = 'UTC'")
        self._database.execute("SET GLOBAL lock_configuration = true")

    def check(self, query: str) -> None:
        """Raises InvalidRequest for a query that must not be run; see ``query_text``."""
        check_query(query, self._database)

    def run(self, query: str, tables: Mapping[str, pa.RecordBatch], *, users: str | None = None) -> pa.Table:
        """The result of a checked query over tables of these names; or of one of our own, and then errors show the
        query of the user that it works for.

        Raises InvalidRequest if the query fails on these rows, OutOfBudget if it needs more memory.
        """
        users = users or query
        with self._database.cursor() as connection:
            try:
                for name, rows in tables.items():
                    connection.register(name, pa.Table.from_batches([rows]))
                with pa.RecordBatchReader.from_stream(connection.sql(query)) as reader:
                    return reader.read_all()
            except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
                # An error while the result is read arrives as an exception of Arrow, with DuckDB's text.
                raise self._explained(error, users) from error

    def _explained(self, error: Exception, query: str) -> FlightShuffleError:
        text = str(error)[:100].lower()
        short = isinstance(error, MemoryError) or "out of memory" in text or "bad_alloc" in text
        self.broken = self.broken or short or "internal error" in text or "fatal error" in text
        return too_large(query, self.limits, "its work") if short else refused(query, first_line(error))
