"""Pulls: produces the partitions of a source dataset when they are read.

Guarantee: of one partition at most one pull runs at a time, in a task of the server's own, for any number of readers.
No reader's end stops it or makes it run twice. Under one generation every pull gives the same frames.

Who holds what
    The dataset holds its :class:`Pulls`, which holds no reference back; a running pull holds the dataset. Dropping the
    dataset cancels its pulls. A replaced dataset is pulled to its end for its readers.

A source is one snapshot of its data, taken when it was opened (:class:`Source`). A pull belongs to one epoch of its
partition (see ``partition``); once the partition is reopened the pull is over, too. A pull that is over and comes back
from an await publishes, seals and fails nothing. The pull of the next epoch cancels it and waits for its end.

Failure
    Readers get the cause, new ones for ``source_failure_seconds``; the next reader after that starts the next pull. It
    begins at frame 0 and must repeat the published frames (:class:`Repetition`), so tickets stay valid, and a
    reader that resumes goes on in the same rows. When the source has changed or does not repeat itself, the generation
    is over: the pull fails, and the source is opened as a new generation, for which readers ask get_flight_info.

Waiting
    A pull whose source gives no message for ``idle_seconds`` fails, whether readers wait for it or have left: it is to
    the server what a producer is (``--put-idle-seconds``).

Memory
    A pulled message is admitted like a producer's before the next one is asked for. Under memory pressure a dataset
    without readers is released instead of spilled (``Dataset.release_unread``) and pulled again for the next reader.

Cancelling
    ``Pulls.close``, a successor and the end of the server cancel a pull; its reservations are freed.
"""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from flight_server.access import FlightLocation
from flight_server.concurrency import Background
from flight_server.datasets import Attachment, Counters, Dataset, Partition, PartitionState, Sees, Totals
from flight_server.frames import Checked, FrameBuilder, SchemaMessage
from flight_server.memory import Budget, Reservation
from flight_server.protocol import (
    FlightShuffleError,
    InternalError,
    PartitionFailed,
    SourceUnavailable,
    Unavailable,
)
from flight_server.tiering import Admission


class SourceChanged(Exception):
    """The data on which the source was opened is no longer there, or has changed."""


class Source(Protocol):
    """One snapshot of the data; holds neither tasks nor open files between pulls. ``held_bytes``: about how much it
    holds beside the schema.

    Guarantee: every pull of a partition gives the same messages, byte for byte, or fails; with :class:`SourceChanged`
    where a new snapshot would differ.
    """

    schema: SchemaMessage
    partition_count: int
    held_bytes: int

    def describe(self, index: int) -> str:
        """The origin of partition ``index``, for errors and ``why``; without secrets."""

    def pull(self, index: int, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        """The partition's messages, in order, each when it is asked for. Cancelling is safe.

        Args:
            so_far: the totals of the frames that this pull has published, to compare with the source's own.

        Raises:
            SourceChanged: see the class.
            FlightShuffleError: any other failure; its message does not name the dataset.
        """


class Repetition:
    """The messages of one partition: each pull must give those that earlier pulls gave.

    Guarantee: a message is let through only if no earlier pull had another one in its place. So a reader that got its
    first k frames from one pull, and the rest from another, has read one state of the source.

    Dictionaries count, too: the same indices into another one are other rows. The CRC-32C of each message is kept, four
    bytes. Comparing only at the end, or where an earlier pull broke off, is not enough: of three pulls the second may
    be shorter than the first and different, and its readers resume in the third.
    """

    def __init__(self) -> None:
        self._known = array("I")
        self._whole = False

    def check(self, place: int, crc32c: int) -> None:
        """Check a pull's message at this place; an earlier pull may not have ended yet. Raises SourceChanged: another
        message was in its place, or the partition had ended before it.
        """
        if place == len(self._known) and not self._whole:
            self._known.append(crc32c)
        elif place == len(self._known) or self._known[place] != crc32c:
            raise SourceChanged(f"its message {place} is not what it was when it was pulled before")

    def end(self, count: int) -> None:
        """A pull has ended after so many messages. Raises SourceChanged: earlier pulls had more."""
        if count < len(self._known):
            raise SourceChanged(
                f"it ends after {count} messages; it had {len(self._known)} when it was pulled before"
            )
        self._whole = True


_log = structlog.get_logger("flight_server.kinds.source.pulls")


class _Over(Exception):
    """The pull can publish nothing any more."""


class _Pull:
    """One production of a partition, for the epoch in which the partition is now. ``failed_at``: when it failed."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.epoch
        self.over = False
        self.failed_at: float | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def fillable(self) -> bool:
        """Whether the partition waits for this pull."""
        return self.partition.epoch == self.epoch and self.partition.state is PartitionState.OPEN

    def check(self) -> None:
        """Raise _Over: the pull is over, or the partition was reopened."""
        if self.over or self.partition.epoch != self.epoch:
            raise _Over

    def cancel(self) -> None:
        if not self.over and self.task is not None:
            self.task.cancel()
        self.over = True


@dataclass(frozen=True)
class Pulling:
    """What all sources of a server share.

    Args:
        failure_seconds: how long a failed pull is remembered.
        idle_seconds: how long a source may give nothing; None for no limit.
        roots, s3, flight: the places that sources may read: directories, S3, other servers.
        max_message_bytes: of a source's message.
    """

    admission: Admission
    background: Background
    counters: Counters
    budget: Budget
    failure_seconds: float
    idle_seconds: float | None
    roots: Sequence[Path]
    s3: bool
    flight: Sequence[FlightLocation]
    max_message_bytes: int
    full_validation: bool
    keepalive_seconds: float

    def reaches(self, location: FlightLocation) -> bool:
        """Whether a source may pull from there."""
        return any(each.covers(location) for each in self.flight)


class Pulls(Attachment):
    """The pulls of one dataset.

    Args:
        request: the source that was asked for; a ``create`` of the same is recognised by it.
        renew: opens the source again, as a new generation, when this one is over.
        room: counts what the source and the request hold, as long as this object lives.
    """

    pulled = True
    remedy = "create it again, with its source"
    unextendable = "is pulled from a source"

    def __init__(
        self,
        pulling: Pulling,
        source: Source,
        request: dict[str, Any] | None,
        renew: Callable[[Dataset], Awaitable[None]],
        room: Reservation | None = None,
    ) -> None:
        self.request = request
        self._room = room
        self._pulling = pulling
        self._source = source
        self._renew = renew
        # Of each partition the last one, while it runs and after it has failed.
        self._pulls: dict[int, _Pull] = {}
        self._repetitions: defaultdict[int, Repetition] = defaultdict(Repetition)
        self._started = 0

    def want(self, dataset: Dataset, index: int) -> None:
        """Start a pull if the partition needs one."""
        partition = dataset.partition(index)
        last = self._pulls.get(index)
        if partition.state is PartitionState.FAILED and not self._remembered(last):
            partition.reopen()
        if partition.state is PartitionState.OPEN and (last is None or last.epoch != partition.epoch):
            if last is not None:
                last.cancel()
            self._started += 1
            self._pulling.counters.pulls += 1
            pull = self._pulls[index] = _Pull(partition)
            pull.task = self._pulling.background.start(
                self._run(pull, dataset, last), f"pull of {dataset.name!r} partition {index}"
            )

    def close(self, _: str) -> None:
        for pull in self._pulls.values():
            pull.cancel()

    def statistics(self, _: Sees) -> dict[str, Any]:
        """The numbers of pulls that were started, that run, and whose failure is remembered."""
        pulls = self._pulls.values()
        running = sum(pull.failed_at is None for pull in pulls)
        failed = sum(map(self._remembered, pulls))
        return {"source": {"pulls": self._started, "running": running, "failed": failed}}

    def _remembered(self, pull: _Pull | None) -> bool:
        if pull is None or pull.failed_at is None:
            return False
        return asyncio.get_running_loop().time() < pull.failed_at + self._pulling.failure_seconds

    async def _run(self, pull: _Pull, dataset: Dataset, before: _Pull | None) -> None:
        partition = pull.partition
        try:
            if before is not None and before.task is not None:
                await asyncio.wait([before.task])
            await self._publish_all(pull, dataset)
            pull.check()
            dataset.end_stream(partition)
            pull.over = True
        except asyncio.CancelledError:
            pull.over = True
            if pull.fillable:
                partition.fail(Unavailable(f"{_where(partition)}: the server stopped; read it elsewhere"))
            raise
        except _Over:
            pull.over = True
        except Exception as error:  # noqa: BLE001  # readers wait, and get any error
            self._fail(pull, error)
            # Now the next reader may start the next pull, also while the source is renewed.
            if isinstance(error, SourceChanged):
                await self._renew(dataset)
        finally:
            self._leave(pull)

    def _fail(self, pull: _Pull, error: Exception) -> None:
        if not pull.over and pull.fillable:
            cause = self._cause(pull.partition, error)
            pull.failed_at = asyncio.get_running_loop().time()
            pull.task = None  # it would keep what the reader that began it has in its context
            self._pulling.counters.pulls_failed += 1
            pull.partition.fail(cause)
        pull.over = True
        self._leave(pull)

    def _leave(self, pull: _Pull) -> None:
        index = pull.partition.index
        if pull.failed_at is None and self._pulls.get(index) is pull:
            del self._pulls[index]

    async def _publish_all(self, pull: _Pull, dataset: Dataset) -> None:
        pulling, partition, index = self._pulling, pull.partition, pull.partition.index
        who: dict[str, Any] = {
            "dataset": dataset.name,
            "partition": index,
            "peer": self._source.describe(index),
        }
        repetition, count = self._repetitions[index], 0
        builder = FrameBuilder(pulling.budget.metadata, dataset.name, index)
        async with aclosing(self._source.pull(index, lambda: partition.so_far)) as arriving:
            while True:
                await pulling.admission.room_for_arrivals(who["peer"])
                pulled = await self._next(arriving, who)
                if pulled is None:
                    break
                repetition.check(count, pulled.accepted.crc32c)
                count += 1
                room = await pulling.admission.admit(pulled.kept_bytes, **who)
                pull.check()
                frame = builder.add(pulled, room)
                if frame is not None:
                    partition.publish(frame)
                    pulling.counters.batch_in(frame.rows, frame.size_bytes)
                    dataset.touch()
                del pulled, room, frame  # so that they can be spilled while the next one is awaited
        repetition.end(count)

    async def _next(self, arriving: AsyncGenerator[Checked, None], who: dict[str, Any]) -> Checked | None:
        """The source's next message; None at its end. Raises SourceUnavailable: there was none in time."""
        seconds = self._pulling.idle_seconds
        timeout = asyncio.timeout(seconds)
        try:
            with self._pulling.admission.waits.enter("source", **who, deadline_seconds=seconds):
                async with timeout:
                    return await anext(arriving, None)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise SourceUnavailable(f"it gave nothing for {seconds:g} s (--put-idle-seconds)") from None

    def _cause(self, partition: Partition, error: Exception) -> FlightShuffleError:
        where = f"{_where(partition)}: the pull from {self._source.describe(partition.index)} failed"
        facts: dict[str, Any] = {"dataset": partition.dataset, "partition": partition.index}
        match error:
            case SourceChanged():
                _log.warning("source_changed", reason=str(error), **facts)
                return SourceUnavailable(
                    f"{where}: {error}; get_flight_info will have a new generation", **facts
                )
            case Unavailable() | PartitionFailed():
                _log.warning("pull_failed", reason=error.message, **facts)
                return type(error)(f"{where}: {error.message}", **{**error.detail, **facts})
            case FlightShuffleError():
                _log.warning("pull_failed", reason=error.message, **facts)
                return PartitionFailed(f"{where}: {error.message}", **facts)
            case _:
                error_id = secrets.token_hex(6)
                _log.error("pull_failed_internally", error_id=error_id, exc_info=error, **facts)
                return InternalError(
                    f"{where} with internal error {error_id}: the server's log has the cause under this id",
                    error_id=error_id,
                    **facts,
                )


def _where(partition: Partition) -> str:
    return f"dataset {partition.dataset!r} partition {partition.index}"
