"""The code of Spark's tasks: read a partition, run the Python stages, write to the next exchange.

Guarantee: a write task commits all rows of its stages as one attempt, or none, and yields one row, which reports the
attempt. ``shuffles`` seals only attempts whose reports reached the driver: the rows of a failed, retried, speculative
or killed task are never visible.

Attempts are named by ``taskAttemptId``: ``attemptNumber`` repeats when a stage is run again (SPARK-24552).

Beside its stages, a write task holds one batch, or small ones up to a block, and the coalescer's budget
(``arrow.coalescer``), a read task the streams' pool (``merge.merged``), which is small if a stage gathers rows, and
that stage's rows (``spill``).

When the server takes nothing for too long, the task fails with an error that says why, and Spark runs it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from socket import gethostname
from typing import Any, Protocol, cast

import pyarrow as pa
from pyspark import TaskContext

from flight_server.memory import allocator
from flight_server.protocol import DatasetRequest, FlightShuffleError, NotFound, PutCommand, PutCreate
from flight_server.tracing import task_span, traceparent
from spark_client.arrow import BLOCK_BYTES, Coalescer, Declared, counts, gathered
from spark_client.connection import Reading, RemoteServer, refuses
from spark_client.executors import ExecutorServers
from spark_client.lanes import PutStream
from spark_client.merge import DatasetRef, ShareRead
from spark_client.servers import place
from spark_client.spill import TaskMemory, reading_budget, writing_budget
from spark_client.steps import NO_LIMITS, BatchLimits, Both, Count, Pass, Stage, reported, run

from .placements import Placement
from .sealed import TaskWork, added, report
from .shares import NO_SHARES, PartitionSlice, Shares

DECODED_TIMES = 8
"""What is read may be so many times as large in memory as the driver was to read, and what a stage gives, too."""
GATHERING_READ_BYTES = 16 * 1024 * 1024
"""Held of the arriving rows for a stage that gathers them: it takes them as fast as they come, until it writes them."""
WRITE_BUDGET_BYTES = 64 * 1024 * 1024
UNSEEN_LEASE_SECONDS = 86_400.0
"""The least lease of a dataset on a server that a task has started. The driver renews it only when it learns of the
server, by the report that Spark delivers at the end of the job: so long may a job run after a server's last frame, or a
task compute for its next one. The server ends with its executor.
"""
DROP_SECONDS = 10.0
_JOINED_ROWS = 64 * 1024
_KEPT_BYTES = 128 * 1024 * 1024
"""A Python worker keeps so much of the memory that its writing tasks have freed, for the next round and task."""


class TooMuchRead(Exception):
    """The job read more than the driver reads."""


@dataclass
class ReadLimit:
    """Of one job that the driver runs: all its tasks together read at most ``most_bytes``, and one batch, and so much
    gives each stage, in memory.

    How much that is shows only while it runs: a column of texts which are all the same, a compressed file, a frame of
    zeros take a thousandth of it where they are stored, and a join may make a million rows of a thousand. A task that
    takes too much is one of many processes, beside others; the driver is the application, and one thread. So it stops,
    and leaves the job to tasks (``runner``).
    """

    most_bytes: int
    _bytes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, driver_bytes: int) -> ReadLimit:
        """For what was expected to be at most ``driver_bytes``."""
        return cls(DECODED_TIMES * driver_bytes)

    def count(self, name: str, batch: Any) -> None:
        """A batch of what is read, or of a stage, by its name. Raises TooMuchRead."""
        self._bytes[name] += batch.nbytes
        if self._bytes[name] > self.most_bytes:
            raise TooMuchRead(f"{name}: more than {self.most_bytes} bytes in memory")


class TaskSource(Protocol):
    """Parts that tasks read by number: a dataset's partitions, or a scan's splits."""

    def read(self, number: int, memory: TaskMemory, /) -> Iterator[Any]:
        """The batches of one of them, in order. ``memory`` counts the bytes that had to wait on disk."""
        ...


def _read(source: TaskSource, piece: PartitionSlice, how: Pass) -> Iterator[Any]:
    if piece.until is None:
        batches = source.read(piece.partition, how.memory)
    else:
        batches = cast("DatasetRef | ShareRead", source).read_frames(
            piece.partition, piece.first, piece.until, how.memory
        )
    return batches if how.count is None else _counted(batches, how.count)


def _counted(batches: Iterator[Any], count: Count) -> Iterator[Any]:
    for batch in batches:
        count("what it reads", batch)
        yield batch


@dataclass(frozen=True)
class Sides:
    """Two sources whose parts of one number belong together, each with stages of its own."""

    left: TaskSource
    right: TaskSource
    left_stages: tuple[Stage, ...] = ()
    right_stages: tuple[Stage, ...] = ()

    def read_both(self, piece: PartitionSlice, how: Pass) -> Both:
        """Both sides of one part, after their stages; of a cut one, the whole other side."""
        whole = PartitionSlice(piece.partition)
        left = _read(self.left, piece if piece.side == "left" else whole, how)
        right = _read(self.right, piece if piece.side == "right" else whole, how)
        return Both(run(self.left_stages, left, how), run(self.right_stages, right, how))


@dataclass(frozen=True)
class ReadTask:
    """Reads the parts of ``source`` in the shares whose numbers are its input, one after the other, and runs the stages
    over each: a function is called once for each part, or piece of a cut one, and finds the part's number in
    ``TaskContext``, as in Spark. Without a source its input are the rows of a DataFrame.

    ``limits`` are as in :class:`~spark_client.steps.Pass`; ``options`` limit the rows that its stages gather.
    """

    source: TaskSource | Sides | None = None
    shares: Shares = NO_SHARES
    stages: tuple[Stage, ...] = ()
    limits: BatchLimits = NO_LIMITS
    options: Reading = field(default_factory=Reading)
    parent: str | None = field(default_factory=traceparent)
    """The driver's span, for traces."""

    def gives(self, schema: pa.Schema) -> bool:
        """Whether the batches are known to have exactly this schema: the last stage's."""
        return bool(self.stages) and self.stages[-1].declared.schema.equals(schema, check_metadata=True)

    def run(self, rows: Iterator[Any], memory: TaskMemory | None = None) -> Iterator[Any]:
        """The stages' batches, in one span. ``memory`` None makes one."""
        how = Pass(limits=self.limits, memory=memory or self.memory())
        with task_span("reduce", self.parent) as facts:
            if facts is not None:
                name = self.source.dataset if isinstance(self.source, DatasetRef) else None
                facts |= {"dataset": name, "rows": 0, "bytes": 0}
            for batches in self._of_pieces(rows, how):
                if facts is None:
                    yield from batches
                    continue
                for batch in batches:
                    facts["rows"] += batch.num_rows
                    facts["bytes"] += batch.nbytes
                    yield batch

    def batches(
        self,
        rows: Iterator[Any],
        work: TaskWork | None = None,
        *,
        count: Count | None = None,
    ) -> Generator[Any, None, None]:
        """As :meth:`run`, for a task that has a span, whose ``work`` is counted. ``count`` is as in
        :class:`~spark_client.steps.Pass`, and gets what is read, too.
        """
        memory, work = self.memory(), work or TaskWork()
        how = Pass(None, self.limits, memory, count)
        for batches in self._of_pieces(rows, how, work):
            yield from batches
        work.spilled_bytes = memory.spilled_bytes

    def memory(self) -> TaskMemory:
        return TaskMemory(reading_budget(self.options.gathered_bytes), self.options.scratch_dir)

    def _of_pieces(
        self, rows: Iterator[Any], how: Pass, work: TaskWork | None = None
    ) -> Iterator[Iterator[Any]]:
        """The batches of each part, or piece of one, to be taken before the next ones."""
        if self.source is None:
            yield run(self.stages, rows, how)
            return
        source = self.source if all(stage.divisible for stage in self.stages) else _sparing(self.source)
        for numbers in rows:
            for number in numbers.column(0).to_pylist():
                with ExitStack() as opened:
                    pieces = self.shares[number]
                    share = _share_of(source, pieces, how.memory, opened)
                    for piece in pieces:
                        _say_partition(piece.partition)
                        how = replace(how, partition=piece.partition)
                        if work is not None:
                            work.pieces += 1
                        of_pair = isinstance(share, Sides)
                        batches = share.read_both(piece, how) if of_pair else _read(share, piece, how)
                        yield run(self.stages, batches, how)


def _share_of(source: Any, pieces: Sequence[PartitionSlice], memory: TaskMemory, opened: ExitStack) -> Any:
    """The source, which reads all whole partitions of the share over the same streams, until ``opened`` is closed."""
    if isinstance(source, Sides):
        left, right = (_share_of(each, pieces, memory, opened) for each in (source.left, source.right))
        return replace(source, left=left, right=right)
    whole = [piece.partition for piece in pieces if piece.until is None]
    if not (isinstance(source, DatasetRef) and source.shares_streams and len(whole) > 1):
        return source
    return opened.enter_context(ShareRead(source, whole, memory))


def _sparing(source: Any) -> Any:
    """The source, read with little memory, because a stage that gathers the rows holds them."""
    if isinstance(source, Sides):
        return replace(source, left=_sparing(source.left), right=_sparing(source.right))
    return replace(source, most_bytes=GATHERING_READ_BYTES) if isinstance(source, DatasetRef) else source


def _say_partition(partition: int) -> None:
    """Functions use it to name their files: two partitions of one task must not have one number. The pieces of a
    partition have it in common.
    """
    context = TaskContext.get()
    if context is not None:
        context._partitionId = partition


@dataclass(frozen=True)
class Destination:
    """Where the tasks of a job write a dataset: one for each run of the job, filled in by the driver.

    A task chooses one of the servers, in the place of one that accepts no connections the next one, and its put creates
    the dataset there, if it is absent.

    Args:
        server: its credentials and options are those of all servers.
        generation: of the dataset.
        servers: the locations of those that may hold it, in one order for all tasks; with ``executors`` those that are
            known.
        lease_seconds: of the dataset where a put creates it, but with ``executors`` at least ``UNSEEN_LEASE_SECONDS``.
        places: of a server, by its location, those where it takes puts on the bulk lane. The others are asked.
        executors: the task's own executor has the servers, which it starts.
        left: what failed jobs may have left on these, datasets with their generations.
    """

    server: RemoteServer
    generation: str
    servers: tuple[str, ...]
    lease_seconds: float | None = None
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    executors: ExecutorServers | None = None
    left: tuple[tuple[str, str], ...] = ()

    def choose(self, dataset: str, producer: int, tries: int) -> str:
        """The location of the server that a producer writes to; ``tries`` is how often Spark has tried the task before.

        Raises as :meth:`ExecutorServers.here`.
        """
        servers = self.servers if self.executors is None else self.executors.here(tries).locations
        host, chosen = gethostname(), servers[0]
        for more in range(len(servers)):
            chosen = place(dataset, producer, servers, host=host, tries=tries + more)
            if len(servers) == 1 or not refuses([chosen]):
                break
        return chosen

    def drop_left(self, tries: int) -> None:
        """Drop what failed jobs have left in this executor, once there. What a server does not drop now ends with its
        lease. Raises as :meth:`ExecutorServers.here`.
        """
        if self.executors is None or not self.left:
            return
        locations = self.executors.here(tries).locations
        by_name = {" ".join(each): each for each in self.left}
        with self.executors.once(by_name) as names:
            for server in map(self.server.at, locations if names else ()):
                with suppress(FlightShuffleError):  # the put says what is wrong
                    for each in names:
                        with suppress(NotFound):
                            request = DatasetRequest(*by_name[each])
                            server.action("drop", request.encode(), DROP_SECONDS, once=True)

    def create(self, partitions: int) -> PutCreate:
        """What a put says, which creates the dataset."""
        seconds = self.lease_seconds
        if self.executors is not None:
            seconds = max(seconds or 0, UNSEEN_LEASE_SECONDS)
        return PutCreate(partitions, seconds)


@dataclass(frozen=True)
class WriteTask:
    """Writes the rows of ``reading`` to a dataset; yields one report, with the ``arrow.counts`` of the rows if it
    ``counts``. ``part`` is the number of the task's write among the ``parts`` of the dataset.

    Spark numbers the tasks of a union through, or, if all its sides have one partition
    (``spark.sql.unionOutputPartitioning``), runs them in one task: then it is a producer for each part.
    """

    dataset: str
    partitions: int
    declared: Declared
    placement: Placement
    reading: ReadTask = field(default_factory=ReadTask)
    part: int = 0
    parts: int = 1
    counts: bool = False
    budget_bytes: int = field(default=WRITE_BUDGET_BYTES)

    def run(
        self, destination: Destination, batches: Iterator[Any], number: int | None = None
    ) -> Iterator[Any]:
        """In a task of Spark's; its report. ``number``: the task's, where a query would give it another one."""
        context = TaskContext.get()
        assert context is not None
        allocator.keep_freed(_KEPT_BYTES)
        producer = self.producer(context.partitionId() if number is None else number)
        attempt = str(context.taskAttemptId())
        work = TaskWork()
        with task_span("map", self.reading.parent) as facts:
            rows = self.rows(batches, work)
            answer = self.write(destination, rows, producer, attempt, context.attemptNumber())
            if facts is not None:
                facts |= {"dataset": self.dataset, "producer": producer, "attempt": attempt}
                facts |= {name: answer[name] for name in ("rows", "bytes", "frames")}
        yield reported([report(self.dataset, producer, attempt, answer, work)])

    def producer(self, number: int) -> int:
        return number * self.parts + self.part

    def rows(
        self, batches: Iterator[Any], work: TaskWork, count: Count | None = None
    ) -> Generator[Any, None, None]:
        """The batches of the last stage, as :meth:`ReadTask.batches` gives them."""
        return self.reading.batches(batches, work, count=count)

    def write(
        self, destination: Destination, batches: Iterator[Any], producer: int, attempt: str, tries: int = 0
    ) -> dict[str, Any]:
        """Send all batches as one attempt and commit it; the server's answer, ``frames``, ``counts``, and the chosen
        ``server``: its location, its start and all its locations. ``tries`` is how often Spark has tried the task
        before.
        """
        destination.drop_left(tries)
        location = destination.choose(self.dataset, producer, tries)
        command = PutCommand(
            self.dataset,
            producer=producer,
            attempt=attempt,
            generation=destination.generation,
            create=destination.create(self.partitions),
        )
        server, schema = destination.server.at(location), self.declared.schema
        places, compression = destination.places.get(location), server.writing.compression
        counted = list[int]()
        with closing(self._frames(batches, producer, counted)) as frames:
            # Before the put begins: a server that is started again meanwhile costs nothing.
            first = next(frames, None)
            with PutStream(server, command, schema, places, compression) as stream:
                for partition, frame in chain(() if first is None else (first,), frames):
                    stream.write(frame, partition)
                answer = stream.commit()
        chosen = location, answer["start"], answer["locations"]
        return {**answer, "server": chosen, "frames": stream.frames, "counts": counted}

    def _frames(
        self, batches: Iterator[Any], producer: int, counted: list[int]
    ) -> Generator[tuple[int, Any], None, None]:
        """The frames of all batches, each with its partition; ``counted`` gets the counts."""
        schema = self.declared.schema
        coalescer = Coalescer(schema, self.partitions, budget_bytes=writing_budget(self.budget_bytes))
        first_row = 0
        is_cast = self.reading.gives(schema)
        for rows in self._joined(batches):
            ids = self.placement.place(rows, producer, first_row)
            first_row += rows.num_rows
            batch = rows if is_cast else self.declared.cast(rows)
            if self.counts:
                counted[:] = added(counted, counts(batch))
            yield from coalescer.add(batch, ids)
        yield from coalescer.finish()

    def _joined(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The rows in batches that are worth placing: functions give those of Spark's limit, 10,000 rows."""
        return gathered(batches, _JOINED_ROWS, BLOCK_BYTES) if self.partitions > 1 else batches
