"""A task's peak memory while it groups one partition: of 50 MB, which fits its budget, to 1.5 GB in 3,000 groups.

The task is the client's own, in a process that has loaded what Spark's worker has, against a server in another one. The
peak is the kernel's count of the process's resident memory, of which the interpreter and its libraries have the part
that is printed as idle; so a Spark task with the same partition has it, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support.grouped_partition import ROW_BYTES, grouped, put
from tests.support.server_process import ServerProcess

GROUPS = 3_000
COLUMNS = ["partition MB", "groups", "idle MiB", "peak MiB", "spilled MB", "seconds"]


def main(arguments: list[str]) -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(prog="large_partition")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 150, 1_500])
    options = parser.parse_args(arguments)
    rows = [_row(megabytes) for megabytes in options.megabytes]
    console.print(conditions(1))
    table("A grouped partition", COLUMNS, rows)


def _row(megabytes: int) -> list[str]:
    count = megabytes * 1_000_000 // ROW_BYTES
    with ServerProcess.start(memory_limit="2GiB") as server, tempfile.TemporaryDirectory() as scratch:
        shuffles, generation = put(server.location, count, GROUPS)
        began = time.perf_counter()
        found = grouped(server.location, generation, Path(scratch))
        seconds = time.perf_counter() - began
        shuffles.close()
    if (found.rows, found.groups) != (count, GROUPS):
        raise AssertionError(f"{found.rows} rows in {found.groups} groups, of {count} in {GROUPS}")
    return [
        str(megabytes),
        str(GROUPS),
        f"{found.idle_bytes / MIB:.0f}",
        f"{found.peak_bytes / MIB:.0f}",
        f"{found.spilled_bytes / 1e6:.0f}",
        f"{seconds:.1f}",
    ]
