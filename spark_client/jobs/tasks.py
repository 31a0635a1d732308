"""The code of Spark's tasks: read a partition, run the Python stages, write to the next exchange.

Guarantee: a write task commits all rows of its stages as one attempt, or none, and yields one row, which reports the
attempt. ``shuffles`` seals only attempts whose reports reached the driver: the rows of a failed, retried, speculative
or killed task are never visible.

Attempts are named by ``taskAttemptId``: ``attemptNumber`` repeats when a stage is run again (SPARK-24552).

Beside its stages, a write task holds one batch and the coalescer's budget (``arrow.coalescer``), a read task the
streams' pool (``merge.merged``), which is small if a stage gathers rows, and that stage's rows (``spill``).

When the server takes nothing for too long, the task fails with an error that says why, and Spark runs it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from socket import gethostname
from time import perf_counter
from typing import Any, Protocol, cast

from pyspark import TaskContext

from flight_server.memory import allocator
from flight_server.protocol import PutCommand, PutCreate
from spark_client.arrow import Coalescer, Declared, counts
from spark_client.connection import Reading, RemoteServer
from spark_client.executors import ExecutorServers
from spark_client.lanes import PutStream
from spark_client.merge import DatasetRef
from spark_client.servers import place
from spark_client.spill import TaskMemory, reading_budget, writing_budget
from spark_client.steps import NO_LIMITS, BatchLimits, Both, Pass, Stage, run

from .placements import Placement
from .shares import PartitionSlice, Shares
from .task_reports import TaskWork, added, report

GATHERING_READ_BYTES = 16 * 1024 * 1024
"""Held of the arriving rows for a stage that gathers them: it takes them as fast as they come, until it writes them."""

WRITE_BUDGET_BYTES = 64 * 1024 * 1024
UNSEEN_LEASE_SECONDS = 3600.0
"""The least lease of a dataset on a server that a task has started. The driver renews it only when it learns of the
server, by the report that Spark delivers at the end of the job.
"""
_KEPT_BYTES = 128 * 1024 * 1024
"""A Python worker keeps so much of the memory that its writing tasks have freed, for the next round and task."""


class TaskSource(Protocol):
    """Parts that tasks read by number: a dataset's partitions, or a scan's splits."""

    def read(self, number: int, memory: TaskMemory, /) -> Iterator[Any]:
        """The batches of one of them, in order. ``memory`` counts the bytes that had to wait on disk."""
        ...


class CutSource(TaskSource, Protocol):
    """One whose partitions consist of frames."""

    def read_frames(self, number: int, first: int, until: int, memory: TaskMemory, /) -> Iterator[Any]:
        """The batches of the frames from ``first`` to before ``until``, in order."""
        ...


def _read(source: TaskSource, piece: PartitionSlice, memory: TaskMemory) -> Iterator[Any]:
    if piece.until is None:
        return source.read(piece.partition, memory)
    return cast(CutSource, source).read_frames(piece.partition, piece.first, piece.until, memory)


@dataclass(frozen=True)
class Sides:
    """Two sources whose parts of one number belong together, each with stages of its own."""

    left: TaskSource
    right: TaskSource
    left_stages: tuple[Stage, ...] = ()
    right_stages: tuple[Stage, ...] = ()

    def read_both(self, piece: PartitionSlice, how: Pass) -> Both:
        """Both sides of one part, after their stages; of a cut one, the whole other side."""
        how = replace(how, kept=True)
        whole = PartitionSlice(piece.partition)
        left = _read(self.left, piece if piece.side == "left" else whole, how.memory)
        right = _read(self.right, piece if piece.side == "right" else whole, how.memory)
        return Both(run(self.left_stages, left, how), run(self.right_stages, right, how))


@dataclass(frozen=True)
class ReadTask:
    """Reads the parts of ``source`` in the shares whose numbers are its input, one after the other, and runs the stages
    over each: a function is called once for each part, or piece of a cut one, and finds the part's number in
    ``TaskContext``, as in Spark.

    ``kept`` and ``limits`` are as in :class:`~spark_client.steps.Pass`; ``options`` limit the rows that its stages
    gather.
    """

    source: TaskSource | Sides
    shares: Shares
    stages: tuple[Stage, ...] = ()
    limits: BatchLimits = NO_LIMITS
    kept: bool = False
    options: Reading = field(default_factory=Reading)

    def run(
        self, numbers: Iterator[Any], memory: TaskMemory | None = None, work: TaskWork | None = None
    ) -> Iterator[Any]:
        """The stages' batches. ``memory`` None makes one; ``work`` counts."""
        memory = memory or _memory(self.options)
        clock = None if work is None else work.clock
        source = self.source if all(stage.divisible for stage in self.stages) else _sparing(self.source)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for piece in self.shares[number]:
                    _say_partition(piece.partition)
                    how = Pass(self.kept, piece.partition, self.limits, memory, clock)
                    if work is not None:
                        work.pieces += 1
                    given = (
                        source.read_both(piece, how)
                        if isinstance(source, Sides)
                        else _read(source, piece, memory)
                    )
                    yield from run(self.stages, given, how)


def _sparing(source: Any) -> Any:
    """The source, read with little memory, because a stage that gathers the rows holds them."""
    if isinstance(source, Sides):
        return replace(source, left=_sparing(source.left), right=_sparing(source.right))
    return replace(source, most_bytes=GATHERING_READ_BYTES) if isinstance(source, DatasetRef) else source


def _memory(options: Reading) -> TaskMemory:
    return TaskMemory(reading_budget(options.gathered_bytes), options.scratch_dir)


def _say_partition(partition: int) -> None:
    """Functions use it to name their files: two partitions of one task must not have one number. The pieces of a
    partition have it in common.
    """
    context = TaskContext.get()
    if context is not None:
        context._partitionId = partition


@dataclass(frozen=True)
class WriteTask:
    """Runs the stages over its input, or over its ``shares`` of ``source``, and writes the result; yields one report,
    with the ``arrow.counts`` of the result if it ``counts``.

    ``generation`` is empty until the dataset is created. ``places`` are the server's for puts on the bulk lane; None to
    ask the server. ``servers`` are the locations of all, if there are several: the task chooses one, and its put
    creates the dataset there, with a lease of ``lease_seconds``; with ``executors`` it takes its executor's,
    and the lease is at least ``UNSEEN_LEASE_SECONDS``. ``target`` is the dataset's number in the job, ``part``
    that of the task's write among the ``parts`` of the dataset.

    Spark numbers the tasks of a union through, or, if all its sides have one partition
    (``spark.sql.unionOutputPartitioning``), runs them in one task: then it is a producer for each part.
    """

    server: RemoteServer
    dataset: str
    generation: str
    partitions: int
    declared: Declared
    placement: Placement
    stages: tuple[Stage, ...] = ()
    source: TaskSource | Sides | None = None
    shares: Shares | None = None
    limits: BatchLimits = NO_LIMITS
    budget_bytes: int = field(default=WRITE_BUDGET_BYTES)
    places: tuple[str, ...] | None = None
    servers: tuple[str, ...] = ()
    executors: ExecutorServers | None = None
    lease_seconds: float | None = None
    target: int = 0
    part: int = 0
    parts: int = 1
    counts: bool = False

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        producer, attempt = context.partitionId() * self.parts + self.part, str(context.taskAttemptId())
        began = perf_counter()
        work = TaskWork()
        memory = _memory(self.server.reading)
        if self.source is not None and self.shares is not None:
            reading = ReadTask(self.source, self.shares, self.stages, self.limits, kept=True)
            rows = reading.run(batches, memory, work)
        else:
            rows = run(
                self.stages, batches, Pass(kept=True, limits=self.limits, memory=memory, clock=work.clock)
            )
        answer = self.write(rows, producer, attempt, context.attemptNumber())
        work.spilled_bytes = memory.spilled_bytes
        work.ended(perf_counter() - began)
        yield report(self.target, producer, attempt, answer, work)

    def write(self, batches: Iterator[Any], producer: int, attempt: str, tries: int = 0) -> dict[str, Any]:
        """Send all batches as one attempt and commit it; the server's answer, ``location`` of a chosen one, ``frames``
        and ``counts``. ``tries`` is how often Spark has tried the task before.
        """
        allocator.keep_freed(_KEPT_BYTES)
        command = PutCommand(self.dataset, producer=producer, attempt=attempt, generation=self.generation)
        server, chosen, lease_seconds = self.server, dict[str, str](), self.lease_seconds
        location = None
        if self.executors is not None:
            location = self.executors.here(tries).location
            lease_seconds = max(lease_seconds or 0, UNSEEN_LEASE_SECONDS)
        elif self.servers:
            (location,) = place(self.dataset, producer, self.servers, host=gethostname(), tries=tries)
        if location is not None:
            server, chosen = server.at(location), {"location": location}
            command = replace(command, create=PutCreate(self.partitions, lease_seconds))
        schema, compression = self.declared.schema, self.server.writing.compression
        coalescer = Coalescer(schema, self.partitions, budget_bytes=writing_budget(self.budget_bytes))
        with PutStream(server, command, schema, self.places, compression) as stream:
            first_row, counted = 0, list[int]()
            for given in batches:
                batch, ids = self.placement.place(given, producer, first_row)
                first_row += batch.num_rows
                cast = self.declared.cast(batch)
                if self.counts:
                    counted = added(counted, counts(cast))
                for partition, frame in coalescer.add(cast, ids):
                    stream.write(frame, partition)
            for partition, frame in coalescer.finish():
                stream.write(frame, partition)
            return {**stream.commit(), **chosen, "frames": stream.frames, "counts": counted}
