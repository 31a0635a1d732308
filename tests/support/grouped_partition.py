"""One partition of many groups on a server, and the peak memory of a process that groups it, as a Spark task would.

``python -m tests.support.grouped_partition LOCATION GENERATION SCRATCH_DIR`` is that process: it prints a
:class:`Grouped`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_client.arrow import Declared
from spark_client.connection import RemoteServer
from spark_client.jobs import ReadTask, Shares, Shuffles
from spark_client.merge import DatasetRef
from spark_client.spill import TaskMemory
from spark_client.steps import GroupedSide, GroupStage

from .driver_datasets import write_dataset
from .processes import status_bytes

ROOT = Path(__file__).resolve().parents[2]
DATASET = "grouped"
SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
RESULT = pa.schema([("k", pa.int64()), ("rows", pa.int64()), ("total", pa.float64())])
ROW_BYTES = 8 + 8 + 8 + 4 + 40
_BATCH_ROWS = 50_000


@dataclass(frozen=True)
class Grouped:
    """What the process found. ``idle_bytes`` is its resident size before the task, ``peak_bytes`` the largest."""

    idle_bytes: int
    peak_bytes: int
    rows: int
    groups: int
    spilled_bytes: int


def batches(rows: int, groups: int) -> Iterator[pa.RecordBatch]:
    """Rows of ``groups`` keys in random order."""
    random = np.random.default_rng(1)
    texts = pa.array([f"{number:040}" for number in range(10_000)])
    for start in range(0, rows, _BATCH_ROWS):
        count = min(_BATCH_ROWS, rows - start)
        columns = [
            pa.array(random.integers(0, groups, count)),
            pa.array(np.arange(start, start + count)),
            pa.array(random.random(count)),
            texts.take(pa.array(random.integers(0, len(texts), count))),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def put(location: str, rows: int, groups: int) -> tuple[Shuffles, str]:
    """Write the partition; its owner, to be closed, and its generation."""
    server = RemoteServer(location)
    shuffles = Shuffles(server, 60.0)
    source = write_dataset(shuffles, DATASET, SCHEMA, 1, {0: batches(rows, groups)})
    return shuffles, source.generation


def grouped(location: str, generation: str, scratch_dir: Path) -> Grouped:
    """Group the partition in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.support.grouped_partition",
        location,
        generation,
        str(scratch_dir),
    ]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    return Grouped(**json.loads(answer.stdout))


def _count(table: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    return pa.table({"k": table["k"][:1], "rows": [table.num_rows], "total": [pc.sum(table["v"]).as_py()]})


def main() -> None:
    """The process."""
    import pyarrow.compute as pc
    import pyspark.worker  # noqa: F401  # what Spark's worker has loaded before a task

    location, generation, scratch_dir = sys.argv[1:]
    source = DatasetRef.find(RemoteServer(location), DATASET, generation)
    declared = Declared("test", RESULT, by_name=True)
    stage = GroupStage(
        _count, declared, (GroupedSide.alone(("k",), SCHEMA),), with_keys=False, iterates=False
    )
    task = ReadTask(source, Shares.each(1), (stage,))
    idle_bytes = status_bytes("self", "VmRSS")
    rows = groups = 0
    memory = TaskMemory(scratch_dir=scratch_dir)
    for batch in task.run(iter([pa.record_batch({"id": [0]})]), memory):
        rows += pc.sum(batch.column("rows")).as_py()
        groups += batch.num_rows
    print(
        json.dumps(
            asdict(Grouped(idle_bytes, status_bytes("self", "VmHWM"), rows, groups, memory.spilled_bytes))
        )
    )


if __name__ == "__main__":
    main()
