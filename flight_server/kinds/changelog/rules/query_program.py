"""The process that runs users' queries: ``python -m NAME FD PARENT MEMORY SHARE SECONDS``, with this module's name.

Guarantee: its address space grows by at most ``MEMORY`` bytes after its start, no request takes longer than ``SECONDS``
and one, and it ends with its parent, at once, also when that is killed. It answers one request after another from the
socket ``FD`` (``query_messages``), and ends with it. It says ``READY`` before the first.

Memory
    The limit is on address space (``RLIMIT_AS``), because the kernel refuses that: DuckDB, Arrow and Python then report
    an allocation that failed. One arena of malloc, and Arrow's pool on it, so that address space is memory that is
    used. After such a failure the process ends with its answer. When the host or the container has no memory left, the
    kernel ends this process before the server (``oom_score_adj``).

End
    The kernel kills it with its parent's thread that started it (``PR_SET_PDEATHSIG``, on Linux), and by a timer when a
    request takes too long, which its parent otherwise does.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections import OrderedDict
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

from flight_server.host import unused_libraries  # noqa: F401  # pandas takes half a second, and 1 GiB of address space
from flight_server.memory import allocator
from flight_server.protocol import FlightShuffleError, KeepRule

from .query_errors import QueryLimits, too_large
from .query_messages import Work, receive_request, rows_of, schema_of, send_answer
from .ranked import Kept
from .sandbox import Sandbox
from .user_query import UserQuery

READY = b"ready"
MAX_QUERIES = 16
"""So many rules are kept as they were checked, the ones used last."""
_PR_SET_PDEATHSIG = 1


class Program:
    """Answers requests."""

    def __init__(self, connection: Connection, limits: QueryLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._sandbox = Sandbox(limits)
        self._queries: OrderedDict[tuple[str, str], tuple[pa.Schema, UserQuery]] = OrderedDict()

    def warm_up(self) -> None:
        """Load what queries need, before address space is limited."""
        given = {"given": pa.record_batch({"value": pa.array([1])})}
        self._sandbox.run("SELECT value, count(*) FROM given GROUP BY value", given)

    def run(self) -> None:
        """Answer until the server closes the socket, or the sandbox is broken."""
        while True:
            try:
                request = receive_request(self._connection)
            except EOFError:
                return
            signal.setitimer(signal.ITIMER_REAL, self._limits.deadline_seconds + 1)
            answer: Kept | FlightShuffleError | None
            try:
                answer = self._answer(*request)
            except FlightShuffleError as error:
                answer = error
            except MemoryError:
                answer = too_large(str(request[1].get("query")), self._limits, "its rows")
                self._sandbox.broken = True
            send_answer(self._connection, answer)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self._sandbox.broken:
                return

    def _answer(self, work: Work, keep: dict[str, object], schema_text: str, body: bytes) -> Kept | None:
        schema, query = self._query(keep, schema_text)
        rows = rows_of(body, schema)
        match work:
            case Work.KEPT:
                return query.kept(rows.rows, rows.counts)
            case Work.CHECK_ROWS:
                query.check_rows(rows.rows, rows.counts, self._limits.deadline_seconds / 2)
            case Work.CHECK_IDEMPOTENT:
                query.check_idempotent(rows.rows)
            case Work.CHECK:
                pass
        return None

    def _query(self, keep: dict[str, object], schema_text: str) -> tuple[pa.Schema, UserQuery]:
        key = str(keep), schema_text
        found = self._queries.pop(key, None)
        if found is None:
            schema = schema_of(schema_text)
            found = schema, UserQuery(KeepRule.parse(keep), schema, self._sandbox)
        self._queries[key] = found
        if len(self._queries) > MAX_QUERIES:
            self._queries.popitem(last=False)
        return found


def end_with(parent: int) -> None:
    """Let the kernel end this process with its parent, which may have ended already."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


def limit_address_space(memory_limit_bytes: int) -> None:
    """Let it grow by so many bytes from now on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    wanted = pages * resource.getpagesize() + memory_limit_bytes
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))


def main(arguments: list[str]) -> None:
    """Run the process; see the module for its arguments."""
    fd, parent, memory_limit_bytes = map(int, arguments[:3])
    end_with(parent)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    limits = QueryLimits(memory_limit_bytes, *map(float, arguments[3:]))
    allocator.tune(memory_limit_bytes)
    pa.set_memory_pool(pa.system_memory_pool())
    with Connection(fd) as connection:
        program = Program(connection, limits)
        program.warm_up()
        limit_address_space(memory_limit_bytes)
        connection.send_bytes(READY)
        program.run()


if __name__ == "__main__":
    main(sys.argv[1:])
