"""ReadBack: gets the bytes of a subscription's frames and their dictionaries, from RAM or disk, and room to send them.

Guarantee: :meth:`ReadBack.next_to_send` returns the message's own bytes and a reservation for the copy
that the transport makes of them, or raises; :meth:`ReadBack.next_nowait` does so if that takes no
waiting. Messages on disk come back in runs of up to ``RUN_BYTES``, one thread hop for each, and the next
run is read while the present one is being sent, if :meth:`ReadBack.read_ahead` is called before sending. What was
read stays at hand when a dictionary, which no run foresees, has to be read before it.

No circular wait
    A reader never waits for bytes of the ``sends`` account while it holds some of it, so the caller of
    ``next_to_send`` has released all that it got here before. If the room to send is not free at once,
    the reader first lets go of everything that it has read back, and then asks in one request for twice
    the frame's size: for its bytes, if they are on disk by then, and for their copy. Nor does it hold
    the frame's bytes meanwhile: what a waiting reader held could not be spilled, and producers would
    wait for readers. Frames read ahead, or after the first one of a run, take only what is free at once.

Disk trouble
    A read that the disk refuses is tried again ``len(RETRY_SECONDS)`` times. Then the reader gets
    :class:`~flight_server.protocol.ReadTrouble`, which it can retry, and the frame stays where it is.

Readers that are not proven (``budget``)
    Their room is of the account's part ``unproven``. :meth:`ReadBack.let_go` keeps the room of the messages
    that have been sent for those that come next, so that others, which may take nothing, do not get in
    between; it is released as soon as the reader has to wait. They do not read ahead.

Who holds what
    What was read back belongs to this object, which belongs to one stream; while it is here, other
    readers of the same frames use it too (``Frame.at_hand``). A run that a thread is still reading
    when the stream ends stays counted until that thread is done.
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
    """Who reads, for waits and errors, and whether it takes what it gets; ``name`` is its own, see ``places``."""

    dataset: str
    partition: int
    peer: str
    pace: Pace = field(default_factory=Pace, compare=False)
    name: str | None = None


class ReadBack:
    """The bytes for one subscription.

    Args:
        waiting: what the reader has taken from the subscription and asks for next.
        budget: whose account ``sends`` is charged.
        threads: where files are read.
        counted: told the size of each frame that came from disk.
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
        # Of an unproven reader: what its last messages took, and what is kept of that for the next.
        self._taken_bytes = 0
        self._kept: Reservation | None = None
        reader.pace.on_stall = self.drop_ahead

    @property
    def _sends(self) -> MemoryPool:
        return self._budget.sends if self._reader.pace.proven else self._budget.unproven

    def next_nowait(self, frame: Message) -> tuple[Payload, Reservation] | None:
        """The bytes of the frame that the subscription has just given out, and room for their copy.

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
        """The same, waiting for disk and room. The caller holds no bytes of the account (see above).

        Cancelling is safe: what was granted is given back.

        Raises:
            CorruptFrame: they did not come back from disk as they went there.
            ReadTrouble: the disk did not give them; the next try may succeed.
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
        # A function of its own, so that no variable holds the run while its reader waits for more room.
        assert self._ahead is not None
        run, future = self._ahead
        self._ahead = None
        with self._wait("disk"):
            self._keep(run, await future, wanted=None)

    def read_ahead(self) -> None:
        """Start to read the frames that follow, if they are on disk and there is room at once."""
        if self._reader.pace.proven and self._ahead is None and len(self._ready) <= 1:
            run = self._run_from(None, None)
            if run:
                self._ahead = run, self._submit(run)

    def let_go(self, run: Callable[[], object]) -> None:
        """Call ``run``, which drops the messages that were sent; an unproven reader keeps their room."""
        self._kept = None
        if self._reader.pace.proven:
            run()
        else:
            self._kept = self._sends.exchange(run, self._taken_bytes)
        self._taken_bytes = 0

    def drop_ahead(self) -> None:
        """Let go of what was read ahead, and of what is being read as soon as it is. Twice is fine."""
        if self._ahead is not None:
            self._ahead[1].cancel()
            self._ahead = None
        self._ready.clear()

    def close(self) -> None:
        """Let go of everything. Twice is fine."""
        self.drop_ahead()
        self.drop_kept()

    def drop_kept(self) -> None:
        """Let go of the room that :meth:`let_go` has kept. Call it before any wait."""
        self._kept = None

    def _room(self, size_bytes: int) -> Reservation | None:
        """Of what was kept, or what is free at once."""
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
        """The messages to read in one go: ``frame``, and those that follow it on disk."""
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
        # The run goes with the thread, so that its reservations outlive a stream that ends meanwhile.
        return asyncio.get_running_loop().run_in_executor(self._threads, _read_all, run)

    def _keep(self, run: _Run, results: _Results, *, wanted: Message | None) -> None:
        for (frame, reservation), data in zip(run, results, strict=True):
            if isinstance(data, DiskTrouble):
                if frame is wanted:
                    raise self._trouble(data)
                return
            if isinstance(data, CorruptFrame):
                if frame is wanted:
                    # Not `data`: a variable of a frame in its own traceback would keep it, and this run.
                    raise data.fresh()
                return  # it counts when the reader gets there
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
