"""Pulls: produces the partitions of a source dataset when they are read.

Guarantee: of one partition at most one pull runs at a time, for any number of readers. It runs in a task of the
server's own, so no reader's end stops it or makes it run twice. Under one generation every pull gives the same frames.

Who holds what
    The dataset holds the state of its pulls, :class:`Pulls`, which holds no reference back; a running pull holds the
    dataset. Dropping the dataset cancels its pulls. A replaced dataset is pulled to its end for its readers.

Producing again
    A pull belongs to one epoch of its partition (see ``partition``). When the partition fails and a reader has it
    reopened, the pull is cancelled and its successor waits for its end. A pull of an earlier epoch that comes back
    from an await publishes, seals and fails nothing.

Failure
    Readers get the cause. For ``source_failure_seconds`` a new reader gets it at once; after that a new reader
    starts the next pull. That pull begins at frame 0 and must repeat what was published before (see
    ``repetition``), so tickets stay valid and a reader that resumes at a later frame continues in the same rows.
    When the source has changed or does not repeat itself, the generation is over: the pull fails, and the source is
    opened again as a new generation, for which readers ask get_flight_info.

Memory
    A pulled message is admitted like a producer's before the next one is asked for. Under memory pressure a dataset
    without readers is released instead of spilled (``Dataset.release_unread``) and pulled again for the next reader, by
    ``Partition.reopen`` as after a failure.

Cancelling
    ``Pulls.close``, a successor and the end of the server cancel a pull; its reservations are freed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import structlog

from flight_server.concurrency import Background
from flight_server.datasets import Counters, Dataset, Partition, PartitionState
from flight_server.frames import FrameBuilder
from flight_server.memory import Metadata
from flight_server.protocol import (
    CreateRequest,
    FlightShuffleError,
    InternalError,
    PartitionFailed,
    SourceUnavailable,
    Unavailable,
)
from flight_server.tiering import Admission

from .repetition import Repetition
from .source import Source, SourceChanged

_log = structlog.get_logger("flight_server.sources.pulls")


class _Superseded(Exception):
    """The partition was reopened for another pull."""


@dataclass(frozen=True)
class _Running:
    """A pull, and the epoch of the partition that it is for."""

    task: asyncio.Task[None]
    epoch: int


@dataclass(frozen=True)
class Pulling:
    """What all pulls of a server share.

    Args:
        failure_seconds: how long a failed pull is remembered.
    """

    admission: Admission
    background: Background
    counters: Counters
    metadata: Metadata
    failure_seconds: float


class Pulls:
    """The pulls of one dataset.

    Args:
        request: what the dataset was created with; a ``create`` that asks for the same is recognised by it.
        renew: opens the source again, as a new generation, when this one is over.
    """

    def __init__(
        self,
        pulling: Pulling,
        source: Source,
        request: CreateRequest,
        renew: Callable[[Dataset], Awaitable[None]],
    ) -> None:
        self.request = request
        self._pulling = pulling
        self._source = source
        self._renew = renew
        self._running: dict[int, _Running] = {}
        self._failed_at: dict[int, float] = {}
        self._repetitions: defaultdict[int, Repetition] = defaultdict(Repetition)
        self._started = 0

    def want(self, dataset: Dataset, index: int) -> None:
        """See :class:`~flight_server.datasets.Puller`."""
        partition = dataset.partition(index)
        if partition.state is PartitionState.FAILED and not self._remembered(index):
            partition.reopen()
        running = self._running.get(index)
        if partition.state is PartitionState.OPEN and (running is None or running.epoch != partition.epoch):
            if running is not None:
                running.task.cancel()
            self._started += 1
            self._pulling.counters.pulls += 1
            task = self._pulling.background.start(
                self._pull(dataset, partition, partition.epoch, running),
                f"pull of {dataset.name!r} partition {index}",
            )
            self._running[index] = _Running(task, partition.epoch)

    def close(self) -> None:
        for running in self._running.values():
            running.task.cancel()

    def statistics(self) -> dict[str, Any]:
        """The numbers of pulls that were started, that run, and whose failure is remembered."""
        failed = sum(map(self._remembered, self._failed_at))
        return {"pulls": self._started, "running": len(self._running), "failed": failed}

    def _remembered(self, index: int) -> bool:
        failed_at = self._failed_at.get(index)
        seconds = self._pulling.failure_seconds
        return failed_at is not None and asyncio.get_running_loop().time() < failed_at + seconds

    async def _pull(
        self, dataset: Dataset, partition: Partition, epoch: int, before: _Running | None
    ) -> None:
        index = partition.index
        try:
            if before is not None:
                await asyncio.wait([before.task])
            await self._publish_all(dataset, partition, epoch)
            _check(partition, epoch)
            dataset.end_stream(partition)
            self._failed_at.pop(index, None)
        except asyncio.CancelledError:
            if _fillable(partition, epoch):
                partition.fail(Unavailable(f"{_where(partition)}: the server stopped; read it elsewhere"))
            raise
        except _Superseded:
            pass
        except Exception as error:  # noqa: BLE001  # readers wait, and get any error
            if _fillable(partition, epoch):
                self._failed_at[index] = asyncio.get_running_loop().time()
                self._pulling.counters.pulls_failed += 1
                partition.fail(self._cause(partition, error))
            # Now the next reader may start the next pull, also while the source is renewed.
            self._leave(index)
            if isinstance(error, SourceChanged):
                await self._renew(dataset)
        finally:
            self._leave(index)

    def _leave(self, index: int) -> None:
        running = self._running.get(index)
        if running is not None and running.task is asyncio.current_task():
            del self._running[index]

    async def _publish_all(self, dataset: Dataset, partition: Partition, epoch: int) -> None:
        pulling, index = self._pulling, partition.index
        who: dict[str, Any] = {
            "dataset": dataset.name,
            "partition": index,
            "peer": self._source.describe(index),
        }
        repeated = self._repetitions[index].begin()
        builder = FrameBuilder(pulling.metadata, dataset.name, index)
        async with aclosing(self._source.pull(index, lambda: partition.so_far)) as arriving:
            while True:
                await pulling.admission.room_for_arrivals(who["peer"])
                with pulling.admission.waits.enter("source", **who):
                    pulled = await anext(arriving, None)
                if pulled is None:
                    break
                repeated.check(pulled.accepted.crc32c)
                room = await pulling.admission.admit(pulled.kept_bytes, **who)
                _check(partition, epoch)
                frame = builder.add(pulled, room)
                if frame is not None:
                    partition.publish(frame)
                    pulling.counters.frame_in(frame)
                    dataset.touch()
                del pulled, room, frame  # so that they can be spilled while the next one is awaited
        repeated.end()

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


def _check(partition: Partition, epoch: int) -> None:
    if partition.epoch != epoch:
        raise _Superseded


def _fillable(partition: Partition, epoch: int) -> bool:
    return partition.epoch == epoch and partition.state is PartitionState.OPEN


def _where(partition: Partition) -> str:
    return f"dataset {partition.dataset!r} partition {partition.index}"
