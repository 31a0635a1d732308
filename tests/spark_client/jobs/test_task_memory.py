"""A Python worker uses the memory of one round of rows again for the next one, and gathers rows within its budget."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.grouped_partition import ROW_BYTES, grouped, put
from tests.support.python_program import output_of
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
PAGE_BYTES = 4096

WRITE_TWICE = """
import resource, sys
from itertools import repeat
import numpy as np, pyarrow as pa
from flight_server.memory import allocator
from spark_client.arrow import Declared
from spark_client.connection import RemoteServer
from spark_client.jobs import InTurn, WriteTask
from spark_client.jobs.tasks import _KEPT_BYTES, Destination

allocator.keep_freed(_KEPT_BYTES)  # as WriteTask.run in a worker
rows = pa.record_batch({"n": np.arange(1 << 18), "m": np.arange(1 << 18)})
server = RemoteServer(sys.argv[1])
task = WriteTask("d", 16, Declared("test", rows.schema), InTurn(16))
destination = Destination(server, f"{1:016x}", (server.location,), 60.0)
faults = [0, 0]
for attempt in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    task.write(destination, repeat(rows, 64), 0, str(attempt))
    faults[attempt] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(64 * rows.nbytes, faults[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages of Linux, and settings of glibc")
def test_a_later_task_of_a_worker_writes_its_rows_without_new_memory_for_each_round() -> None:
    with ServerProcess.start(memory_limit="1GiB") as server:
        written_bytes, faults = map(int, output_of(WRITE_TWICE, server.location).split())
    assert faults * PAGE_BYTES < written_bytes / 3, f"{faults} page faults for {written_bytes} bytes"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's count of a process's memory")
def test_a_task_groups_a_partition_of_several_times_its_budget_within_it(tmp_path: Path) -> None:
    rows, groups = 240_000_000 // ROW_BYTES, 500
    with ServerProcess.start(memory_limit="1GiB") as server:
        shuffles, generation = put(server.location, rows, groups)
        found = grouped(server.location, generation, tmp_path)
        shuffles.close()
    assert (found.rows, found.groups) == (rows, groups)
    assert found.spilled_bytes > rows * ROW_BYTES
    # CPython and its modules take 99 to 119 MiB, as the version is.
    assert found.peak_bytes - found.idle_bytes < 156 << 20
