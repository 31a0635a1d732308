"""The code of Spark's tasks: read a partition, run the Python stages, write to the next exchange.

Guarantee: a write task commits all rows of its stages as one attempt, or none, and yields one row, which reports the
attempt. ``shuffles`` seals only attempts whose reports reached the driver: the rows of a failed, retried, speculative
or killed task are never visible.

Attempts are named by ``taskAttemptId``: ``attemptNumber`` repeats when a stage is run again (SPARK-24552).

Beside its stages, a write task holds one batch and the coalescer's budget (``arrow.coalescer``), a read task the
streams' pool (``merge.merged``).

When the server takes nothing for too long, the task fails with an error that says why, and Spark runs it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext

from flight_server.memory import allocator
from flight_server.protocol import PutCommand
from spark_client.arrow import Coalescer, Declared, array_over, values
from spark_client.connection import Server
from spark_client.lanes import PutStream
from spark_client.placement import partition_ids, round_robin_ids, round_robin_start

from . import stages as stages_
from .limits import NO_LIMITS, BatchLimits
from .shares import Shares
from .stages import Pass, Stage
from .worker_memory import writing_budget

WRITE_BUDGET_BYTES = 64 * 1024 * 1024
_KEPT_BYTES = 128 * 1024 * 1024
"""What a Python worker keeps of the memory that its writing tasks have freed, for the next round and task."""

REPORT_DDL = "producer int, attempt string, rows long, frames long, bytes long"
_REPORT = pa.schema(
    [
        ("producer", pa.int32()),
        ("attempt", pa.string()),
        ("rows", pa.int64()),
        ("frames", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def _report(producer: int, attempt: str, answer: dict[str, Any]) -> Any:
    # Not by ``pa.array``: see ``array_over``.
    name = attempt.encode()
    bounds = pa.py_buffer(np.array([0, len(name)], np.int32))
    columns = [
        array_over(np.array([producer], np.int32)),
        pa.Array.from_buffers(pa.string(), 1, [None, bounds, pa.py_buffer(name)]),
        *(array_over(np.array([answer[each]], np.int64)) for each in ("rows", "frames", "bytes")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_REPORT)


class Placement(Protocol):
    """Splits each batch of a task into the rows to send and their partitions."""

    def place(self, batch: Any, producer: int, first_row: int) -> tuple[Any, NDArray[np.int32]]:
        """The batch to send, and each row's partition. ``first_row`` rows of the task came before."""
        ...


@dataclass(frozen=True)
class ByColumn:
    """Spark has computed the partitions: they are the last column."""

    def place(self, batch: Any, producer: int, first_row: int) -> tuple[Any, NDArray[np.int32]]:
        *columns, ids = batch.columns
        schema = pa.schema(list(batch.schema)[:-1])
        return pa.RecordBatch.from_arrays(columns, schema=schema), values(ids, np.int32)


@dataclass(frozen=True)
class ByKeys:
    """Spark's hash of the keys, computed in the task."""

    keys: tuple[str, ...]
    partitions: int

    def place(self, batch: Any, producer: int, first_row: int) -> tuple[Any, NDArray[np.int32]]:
        return batch, partition_ids(batch, self.keys, self.partitions)


@dataclass(frozen=True)
class InTurn:
    """Round robin, from a start that depends on the producer."""

    partitions: int

    def place(self, batch: Any, producer: int, first_row: int) -> tuple[Any, NDArray[np.int32]]:
        start = round_robin_start(producer, self.partitions) + first_row
        return batch, round_robin_ids(batch.num_rows, start, self.partitions)


class Source(Protocol):
    """What tasks read by number: a dataset's partitions, or a scan's splits."""

    def read(self, number: int, /) -> Iterator[Any]:
        """The batches of one of them, in order."""
        ...


@dataclass(frozen=True)
class ReadTask:
    """Reads the parts of ``source`` in the shares whose numbers are its input, one after the other, and runs the stages
    over each: a function is called once for each part, and finds its number in ``TaskContext``, as in Spark.

    ``kept`` and ``limits`` are as in :class:`~spark_client.jobs.Pass`.
    """

    source: Source
    shares: Shares
    stages: tuple[Stage, ...] = ()
    limits: BatchLimits = NO_LIMITS
    kept: bool = False

    def run(self, numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for partition in self.shares[number]:
                    _say_partition(partition)
                    how = Pass(self.kept, partition, self.limits)
                    yield from stages_.run(self.stages, self.source.read(partition), how)


def _say_partition(partition: int) -> None:
    """Functions use it to name what they write: two partitions of one task must not have one number."""
    context = TaskContext.get()
    if context is not None:
        context._partitionId = partition


@dataclass(frozen=True)
class WriteTask:
    """Runs the stages over its input, or over what ``source`` reads of its ``shares``, and writes the result; yields
    one report.

    ``places`` are the server's for puts on the bulk lane; None to ask the server.
    """

    server: Server
    dataset: str
    generation: str
    partitions: int
    declared: Declared
    placement: Placement
    stages: tuple[Stage, ...] = ()
    source: Source | None = None
    shares: Shares | None = None
    limits: BatchLimits = NO_LIMITS
    budget_bytes: int = field(default=WRITE_BUDGET_BYTES)
    places: tuple[str, ...] | None = None

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        producer, attempt = context.partitionId(), str(context.taskAttemptId())
        if self.source is not None and self.shares is not None:
            rows = ReadTask(self.source, self.shares, self.stages, self.limits, kept=True).run(batches)
        else:
            rows = stages_.run(self.stages, batches, Pass(kept=True, limits=self.limits))
        answer = self.write(rows, producer, attempt)
        yield _report(producer, attempt, answer)

    def write(self, batches: Iterator[Any], producer: int, attempt: str) -> dict[str, Any]:
        """Send all batches as one attempt and commit it; the server's answer and ``frames``."""
        allocator.keep_freed(_KEPT_BYTES)
        command = PutCommand(self.dataset, producer=producer, attempt=attempt, generation=self.generation)
        schema, compression = self.declared.schema, self.server.writing.compression
        coalescer = Coalescer(schema, self.partitions, budget_bytes=writing_budget(self.budget_bytes))
        with PutStream(self.server, command, schema, self.places, compression) as stream:
            first_row = 0
            for given in batches:
                batch, ids = self.placement.place(given, producer, first_row)
                first_row += batch.num_rows
                for partition, frame in coalescer.add(self.declared.cast(batch), ids):
                    stream.write(frame, partition)
            for partition, frame in coalescer.finish():
                stream.write(frame, partition)
            return {**stream.commit(), "frames": stream.frames}
