"""Budgets under a limit of the address space, which is what Spark sets for spark.executor.pyspark.memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flight_server.protocol import CreateRequest, Kind, SealRequest
from spark_client.connection import RemoteServer
from spark_client.merge import DatasetRef
from spark_client.spill import reading_budget, writing_budget
from spark_client.spill.gathered import LEAST_BYTES
from tests.support.python_program import output_of
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
LIMIT_BYTES = 768 * MIB
ROWS = 400 << 17

# Both are run as Spark's worker runs a task: Arrow's allocator, which reserves 1 GiB where it may, is loaded later.
BEGIN = """
import json, resource, sys
limit_bytes, arguments = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
import threading
import numpy as np, pyarrow as pa
from spark_client.arrow import Declared
from spark_client.connection import Reading, RemoteServer
from spark_client.merge import DatasetRef, Portion
from spark_client.jobs.shares import Shares
from spark_client.steps import MapStage
from spark_client.jobs.placements import InTurn
from spark_client.jobs.tasks import Destination, ReadTask, WriteTask

schema = pa.schema([("v", pa.int64())])
"""

WRITE = """
location, dataset, generation, partitions, places = arguments
rows = (pa.RecordBatch.from_arrays([pa.array(np.full(1 << 17, n))], schema=schema) for n in range(400))
declared, placement = Declared("rows", schema), InTurn(partitions)
task = WriteTask(dataset, partitions, declared, placement, budget_bytes=1 << 40)
server = RemoteServer(location)
destination = Destination(server, generation, (location,), places={location: tuple(places)})
print(task.write(destination, rows, 0, "17")["rows"])
"""

READ = """
location, dataset, generation, partitions, places = arguments
server = RemoteServer(location, reading=Reading(budget_bytes=1 << 40))

def slowly(batches):
    yield next(batches)
    while any(thread.name.startswith("merge:") for thread in threading.enumerate()):
        threading.Event().wait(0.01)
    yield from batches

task = ReadTask(
    DatasetRef(server, dataset, generation, (Portion(tuple(places)),)),
    Shares((0, partitions)),
    (MapStage(slowly, Declared("stage", schema)),),
)
print(sum(batch.num_rows for batch in task.run(iter([pa.RecordBatch.from_pydict({"id": [0]})]))))
"""


def limited(code: str, *arguments: object) -> str:
    return output_of(BEGIN + code, json.dumps([LIMIT_BYTES, arguments]))


@pytest.mark.long
def test_a_task_stays_within_its_workers_memory_whatever_its_budgets() -> None:
    with ServerProcess.start(http_port=0) as process:
        server = RemoteServer(process.location)
        for partitions in (200, 1):
            name = f"d{partitions}"
            created = server.action(
                "create", CreateRequest(name, Kind.SHUFFLE, partitions=partitions).encode()
            )
            generation = created["generation"]
            task = (process.location, name, generation, partitions, [f"{process.http}/v1/put"])
            assert int(limited(WRITE, *task)) == ROWS
            server.action("seal", SealRequest(name, generation, {0: "17"}).encode())
        places = DatasetRef.find(server, name, generation).portions[0].locations
        assert int(limited(READ, process.location, name, generation, 1, places)) == ROWS
        server.close()


def test_without_a_limit_budgets_are_the_users() -> None:
    assert reading_budget(1 << 40) == writing_budget(1 << 40) == 1 << 40


def test_a_share_of_what_is_left_is_taken_and_a_little_if_nothing_is() -> None:
    code = """
from pathlib import Path
from spark_client.spill import reading_budget, writing_budget
for left in (400 << 20, 0):
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + left
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit_bytes))
    print(reading_budget(1 << 40), writing_budget(1 << 40), reading_budget(5), writing_budget(5))
"""
    some, none = (list(map(int, line.split())) for line in limited(code).splitlines())
    assert 90 * MIB < some[0] <= 100 * MIB
    assert 45 * MIB < some[1] <= 50 * MIB
    assert none[:2] == [LEAST_BYTES, LEAST_BYTES]
    assert some[2:] == none[2:] == [5, 5]
