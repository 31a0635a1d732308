"""Reading a partition, the same for both lanes.

Guarantee: :func:`read` yields every frame of the partition from ``start`` on, exactly once and in
order, each with the dictionary messages that this reader has not been sent yet, and ends only when
the partition is sealed and read to its end. Everything else is an error.

Runs
    What is yielded is a run: frames that could be had without waiting, at least one, and no more once
    they have ``run_bytes``. So small frames can go out in one write, and no frame is kept back for the
    sake of another one.

Who holds what
    A run holds its frames' bytes and the room for their copy. When the consumer comes for the next run
    this one is emptied, so the consumer must have handed the bytes to its transport by then, and must
    keep no reference to what is in it: a reader that waits for room while it holds some could wait for
    another one that does the same.

A reader that starts at frame k (``from``) is sent the dictionaries in force at k, then what changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from .broadcast import EndOfQueue, Gone, Subscription, WouldBlock
from .core import Core
from .dataset import Dataset
from .decoder import SchemaMessage
from .errors import CorruptFrame, InvalidRequest, Unavailable
from .frames import NO_DICTIONARIES, DictionaryMessage, Frame, Payload, missing_messages
from .memory import Reservation
from .partition import Partition, Totals
from .protocol import CRC_TRAILER, FRAMES_TRAILER, FROM_TRAILER, ROWS_TRAILER
from .readback import ReadBack, Reader


@dataclass(slots=True)
class Outgoing:
    """One frame on its way to one reader."""

    frame: Frame
    dictionaries: list[DictionaryMessage]
    payload: Payload
    room: Reservation


async def schema_of(core: Core, dataset: Dataset, reader: Reader) -> SchemaMessage:
    """The dataset's schema, waiting for its first producer if nobody has said it.

    Raises:
        Unavailable: nobody has sent one within ``schema_seconds``.
    """
    if dataset.schema is not None:
        return dataset.schema
    seconds = core.settings.schema_seconds
    try:
        with core.waits.enter(
            "producer",
            dataset=reader.dataset,
            partition=reader.partition,
            peer=reader.peer,
            deadline_seconds=seconds,
        ):
            async with asyncio.timeout(seconds):
                return await dataset.described()
    except TimeoutError:
        raise Unavailable(
            f"dataset {dataset.name!r} has no schema yet: no producer has come within {seconds} s; "
            "start a producer, or create the dataset with its schema",
            dataset=dataset.name,
        ) from None


def end_of_read(totals: Totals, start: int) -> list[tuple[str, str]]:
    """What the trailers of both lanes say at the end of a read from frame ``start``."""
    return [
        (ROWS_TRAILER, str(totals.rows)),
        (FRAMES_TRAILER, str(totals.frames)),
        (CRC_TRAILER, f"{totals.crc32c:08x}"),
        (FROM_TRAILER, str(start)),
    ]


async def read(
    core: Core, dataset: Dataset, reader: Reader, start: int, *, run_bytes: int = 0
) -> AsyncGenerator[list[Outgoing], None]:
    """See the module's text. Close the generator to leave; cancelling it is safe at each step.

    Raises:
        Released: retention has let frame ``start`` go, or a later one before this reader came for it.
        InvalidRequest: the partition is sealed and has fewer than ``start`` frames.
        FlightShuffleError: the partition failed or was dropped.
    """
    partition = dataset.partition(reader.partition)
    dataset.want(reader.partition)
    if dataset.retention.readers is not None:
        run_bytes = 0  # a frame counts as passed when the next is taken: not before it was sent
    subscription, epoch = partition.subscribe(start), partition.epoch
    with core.reading(subscription, reader):
        back = ReadBack(
            reader,
            subscription,
            sends=core.budget.sends,
            threads=core.store.io_threads,
            waits=core.waits,
            counted=core.read_back,
        )
        cursor = _Cursor(core, dataset, subscription, back)
        try:
            while True:
                run = cursor.take(run_bytes)
                if not run and cursor.frame is not None:
                    run.append(await cursor.fetch())
                if run:
                    back.read_ahead()
                    yield run
                    run.clear()
                elif cursor.ended:
                    check_start(partition, start)
                    return
                else:
                    with core.waits.enter(
                        "producer" if dataset.puller is None else "source",
                        dataset=reader.dataset,
                        partition=reader.partition,
                        peer=reader.peer,
                    ):
                        await subscription.wait()
        except Gone as gone:
            raise partition.released(gone) from None
        except CorruptFrame as corrupt:
            raise core.frame_lost(partition, epoch, corrupt).fresh() from corrupt
        finally:
            back.close()


def check_start(partition: Partition, start: int) -> None:
    """A sealed partition has a frame ``start``, or ends just before it.

    Raises:
        InvalidRequest: it has fewer frames.
    """
    frames = partition.totals.frames
    if start > frames:
        raise InvalidRequest(
            f"dataset {partition.dataset!r} partition {partition.index} has {frames} frames: there is nothing to "
            f"read on from {start}",
            dataset=partition.dataset,
            partition=partition.index,
        )


class _Cursor:
    """What one reader has been given so far, and what it takes next."""

    def __init__(
        self, core: Core, dataset: Dataset, subscription: Subscription[Frame], back: ReadBack
    ) -> None:
        self.frame: Frame | None = None  # taken from the subscription, its bytes not yet at hand
        self.ended = False
        self._core = core
        self._dataset = dataset
        self._subscription = subscription
        self._back = back
        self._sent = NO_DICTIONARIES

    def take(self, run_bytes: int) -> list[Outgoing]:
        """The frames that can be had now, no more once they have ``run_bytes``; maybe none."""
        run: list[Outgoing] = []
        size_bytes = 0
        while self.frame is None and not self.ended and (size_bytes < run_bytes or not run):
            try:
                frame = self._subscription.next_nowait()
            except WouldBlock:
                break
            except EndOfQueue:
                self.ended = True
                break
            at_once = self._back.next_nowait(frame)
            if at_once is None:
                self.frame = frame
                break
            size_bytes += frame.size_bytes
            run.append(self._outgoing(frame, *at_once))
        return run

    async def fetch(self) -> Outgoing:
        """The frame that was taken, as soon as its bytes and room for them can be had."""
        assert self.frame is not None
        payload, room = await self._back.next_to_send(self.frame)
        frame, self.frame = self.frame, None
        return self._outgoing(frame, payload, room)

    def _outgoing(self, frame: Frame, payload: Payload, room: Reservation) -> Outgoing:
        dictionaries = missing_messages(self._sent, frame.dictionaries)
        self._sent = frame.dictionaries
        self._dataset.touch()
        self._core.counters.frames_out += 1
        self._core.counters.bytes_out += frame.size_bytes
        return Outgoing(frame, dictionaries, payload, room)
