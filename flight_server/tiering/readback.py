"""ReadBack: the bytes of a subscription's frames and dictionaries, from RAM or disk, and room to send them.

Guarantee: :meth:`ReadBack.next_to_send` returns the message's own bytes and a reservation for the copy that the
transport makes of them, or raises; :meth:`ReadBack.next_nowait` returns the same if it need not wait. Messages on
disk come back in runs of up to ``RUN_BYTES`` or one larger message, with one thread hop for each run. If the caller
calls :meth:`ReadBack.read_ahead` before sending, the next run is read meanwhile. Frames read back stay at hand while
a dictionary, which no run foresees, is read before them.

No circular wait
    A reader never waits for bytes of the account ``sends`` while it holds some of it: the caller of ``next_to_send``
    has released all that it got here before. If the room to send is not free at once, the reader first releases
    everything that it has read back, and then asks in one request for twice the frame's size: for its bytes, which
    may be on disk by then, and for their copy. It does not hold the frame's bytes meanwhile: bytes that a waiting
    reader holds cannot be spilled, so producers would wait for readers. Frames read ahead, and those after the first
    of a run, take only room that is free at once.

Disk trouble
    A read that fails is tried again ``len(RETRY_SECONDS)`` times. Then the reader gets
    :class:`~flight_server.protocol.ReadTrouble`, which it can retry; the frame stays on disk.

Unproven readers (``memory.accounts``)
    Their room is in the account's part ``unproven``. :meth:`ReadBack.release_sent` keeps the room of the messages
    sent for the next ones, so that other readers, which may take nothing, do not get it in between; it is released
    before the reader waits. Unproven readers do not read ahead.

Who holds what
    Bytes read back belong to this object, which belongs to one stream; other readers of the same frames share them
    (``Message.at_hand``). A run that a thread still reads when the stream ends stays counted until the thread is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, islice

import structlog

from flight_server.concurrency import Subscription, Waits
from flight_server.frames import Frame, Message, Payload
from flight_server.memory import Budget, MemoryPool, Pace, Reservation, reserve
from flight_server.protocol import CorruptFrame, ReadTrouble
from flight_server.storage import DiskTrouble

_log = structlog.get_logger("flight_server.tiering.readback")

RUN_BYTES = 2 << 20
RUN_FRAMES = 256
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4)

_Run = list[tuple[Message, Reservation]]
_Results = list[bytes | CorruptFrame | DiskTrouble]


@dataclass(frozen=True)
class Reader:
    """Who reads, for waits and errors, and its pace. ``name``: the one in its ticket, see ``datasets.places``."""

    dataset: str
    partition: int
    peer: str
    pace: Pace = field(default_factory=Pace, compare=False)
    name: str | None = None


class ReadBack:
    """The bytes for one subscription.

    Args:
        waiting: messages that the reader has taken from the subscription and asks for next.
        budget: has the account ``sends``.
        threads: where files are read.
        counted: called with the size of each frame read from disk.
    """

    def __init__(
        self,
        reader: Reader,
        subscription: Subscription[Frame],
        waiting: Iterable[Message],
        *,
        budget: Budget,
        threads: Executor,
        waits: Waits,
        counted: Callable[[int], None],
    ) -> None:
        self._reader = reader
        self._subscription = subscription
        self._waiting = waiting
        self._budget = budget
        self._threads = threads
        self._waits = waits
        self._counted = counted
        self._ready: dict[Message, Payload] = {}
        self._ahead: tuple[_Run, asyncio.Future[_Results]] | None = None
        # Of an unproven reader: the room of the messages it was given, and what is kept of that for the next.
        self._taken_bytes = 0
        self._kept: Reservation | None = None
        reader.pace.on_stall = self.drop_ahead

    @property
    def _sends(self) -> MemoryPool:
        return self._budget.sends if self._reader.pace.proven else self._budget.unproven

    def next_nowait(self, frame: Message) -> tuple[Payload, Reservation] | None:
        """The bytes of the next message, and a reservation for their copy.

        None, and nothing changed, if the bytes are not in RAM or the room is not free.
        """
        payload = self._ready.get(frame) or frame.at_hand()
        if payload is None:
            return None
        room = self._room(frame.size_bytes)
        if room is None:
            return None
        self._taken_bytes += frame.size_bytes
        self._ready.pop(frame, None)
        return payload, room

    async def next_to_send(self, frame: Message) -> tuple[Payload, Reservation]:
        """The same, waiting for disk and room. The caller holds no bytes of ``sends`` (see "No circular wait").

        Cancelling is safe: granted room is released.

        Raises:
            CorruptFrame: the bytes came back from disk with another checksum.
            ReadTrouble: the disk returned errors; a later call may succeed.
        """
        if frame not in self._ready and self._ahead is not None and frame.at_hand() is None:
            await self._finish_ahead()
        at_once = self.next_nowait(frame)
        if at_once is not None:
            return at_once
        room = self._room(2 * frame.size_bytes)
        self.drop_kept()
        if room is None:
            self.close()
            room = await self._reserve(2 * frame.size_bytes)
        self._taken_bytes += frame.size_bytes
        payload = self._ready.pop(frame, None) or frame.at_hand()
        if payload is not None:
            room.shrink(frame.size_bytes)
        else:
            self._taken_bytes += frame.size_bytes
            run = self._run_from(frame, room.split(frame.size_bytes))
            with self._wait("disk"):
                results = await self._submit(run)
                for seconds in RETRY_SECONDS:
                    if not isinstance(results[0], DiskTrouble):
                        break
                    await asyncio.sleep(seconds)
                    results = await self._submit(run)
            self._keep(run, results, wanted=frame)
            payload = self._ready.pop(frame)
        return payload, room

    async def _finish_ahead(self) -> None:
        # A separate function, so that no variable holds the run while the reader waits for more room.
        assert self._ahead is not None
        run, future = self._ahead
        self._ahead = None
        with self._wait("disk"):
            self._keep(run, await future, wanted=None)

    def read_ahead(self) -> None:
        """Start to read the next frames if they are on disk and there is room at once."""
        if self._reader.pace.proven and self._ahead is None and len(self._ready) <= 1:
            run = self._run_from(None, None)
            if run:
                self._ahead = run, self._submit(run)

    def release_sent(self, run: Callable[[], object]) -> None:
        """Call ``run``, which drops the messages sent; keep their room if the reader is unproven."""
        self._kept = None
        if self._reader.pace.proven:
            run()
        else:
            self._kept = self._sends.exchange(run, self._taken_bytes)
        self._taken_bytes = 0

    def drop_ahead(self) -> None:
        """Release what was read ahead; a run being read is released when it is done. Twice is fine."""
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None
        self._ready.clear()

    def close(self) -> None:
        """Release everything. Twice is fine."""
        self.drop_ahead()
        self.drop_kept()

    def drop_kept(self) -> None:
        """Release the room that :meth:`release_sent` has kept. The caller calls it before any wait."""
        self._kept = None

    def _room(self, size_bytes: int) -> Reservation | None:
        """A reservation out of the kept room, or of room that is free at once; None if neither."""
        kept = self._kept
        if kept is not None:
            missing_bytes = size_bytes - kept.size_bytes
            if missing_bytes <= 0 or kept.try_grow(missing_bytes):
                return kept.split(size_bytes)
            self._kept = None
            del kept
        return self._sends.try_reserve(size_bytes)

    def _trouble(self, trouble: DiskTrouble) -> ReadTrouble:
        who = self._reader
        _log.warning("frame_not_read", dataset=who.dataset, partition=who.partition, trouble=str(trouble))
        return ReadTrouble(
            f"dataset {who.dataset!r} partition {who.partition}: the disk does not give a frame back now: {trouble}; "
            "nothing is given up, read on from this frame later",
            dataset=who.dataset,
            partition=who.partition,
        )

    def _wait(self, what: str) -> AbstractContextManager[None]:
        who = self._reader
        return self._waits.enter(what, dataset=who.dataset, partition=who.partition, peer=who.peer)

    async def _reserve(self, size_bytes: int) -> Reservation:
        who = self._reader
        return await reserve(
            self._sends, size_bytes, self._waits, dataset=who.dataset, partition=who.partition, peer=who.peer
        )

    def _run_from(self, frame: Message | None, reservation: Reservation | None) -> _Run:
        """The messages to read together: ``frame``, and those of the next ``RUN_FRAMES`` that follow it on disk."""
        run: _Run = []
        size_bytes = 0
        if frame is not None and reservation is not None:
            run.append((frame, reservation))
            size_bytes = frame.size_bytes
        for following in islice(chain(self._waiting, self._subscription.upcoming()), RUN_FRAMES):
            if following is frame:
                continue
            size_bytes += following.size_bytes
            if run and size_bytes > RUN_BYTES:
                break
            if following in self._ready:
                continue
            if following.at_hand() is not None:
                break
            room = self._sends.try_reserve(following.size_bytes)
            if room is None:
                break
            run.append((following, room))
        return run

    def _submit(self, run: _Run) -> asyncio.Future[_Results]:
        # The thread holds the run, so that its reservations outlive a stream that ends meanwhile.
        return asyncio.get_running_loop().run_in_executor(self._threads, _read_all, run)

    def _keep(self, run: _Run, results: _Results, *, wanted: Message | None) -> None:
        for (frame, reservation), data in zip(run, results, strict=True):
            if isinstance(data, DiskTrouble):
                if frame is wanted:
                    raise self._trouble(data)
                return
            if isinstance(data, CorruptFrame):
                if frame is wanted:
                    # Not `data`: its traceback refers to this call's variables, which would keep it, and this run.
                    raise data.fresh()
                return  # raised when the reader gets there
            if isinstance(frame, Frame):
                self._counted(len(data))
            payload = Payload(data, reservation)
            frame.share(payload)
            self._ready[frame] = payload


def _read_all(run: _Run) -> _Results:
    results: _Results = []
    for frame, _ in run:
        try:
            results.append(frame.read_back())
        except CorruptFrame as corrupt:
            # Without its traceback, which leads back here, to the results and the reservations of the run.
            results.append(corrupt.fresh())
        except DiskTrouble as trouble:
            results.append(DiskTrouble(str(trouble), full=trouble.full))
    return results
