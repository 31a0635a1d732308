"""Spiller: the one task that moves frames, and last dictionaries, from RAM to disk.

Guarantee: while a stream waits for room in ``frames``, a frame is in RAM and the disk has room, it moves frames.
Moving starts at ``HIGH_WATER`` of the account, so that producers seldom wait for the disk. Before it writes anything it
releases source datasets without readers, one at a time: they can be pulled again.

Victims
    First leave the frames that no attached reader needs soon, of the oldest dataset first, in each the coldest first
    (see ``partition``); then those at a reader's position; last the dictionaries, which each reader needs. Choosing is
    synchronous, in steps, and without I/O.

Disk trouble
    Frames whose write failed stay in RAM, readable. A write refused for lack of room is tried again with half as many
    frames, down to one, to use the disk's last bytes. Any other failure, that of a single frame, and a bug in a move,
    which is logged, are *trouble*: statistics, ``why`` and a refused producer's error show it. While a stream waits,
    the write is tried again every ``RETRY_SECONDS``; otherwise at the next frame, not before ``RETRY_SECONDS``. The
    first write that succeeds ends the trouble.

Cancelling
    No await lies between a write and its bookkeeping, so cancelling the task loses nothing: frames whose write was
    interrupted are still in RAM, and the unused slices release their space.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Generator, Sequence
from functools import partial
from itertools import islice

import structlog

from flight_server.concurrency import in_steps
from flight_server.datasets import Catalogue, Dataset
from flight_server.frames import Message
from flight_server.records import DiskTrouble
from flight_server.storage import SegmentSlice, SegmentWriter

HIGH_WATER = 0.8
SPILL_BATCH_BYTES = 16 << 20
VICTIMS_AT_ONCE = 4096
RETRY_SECONDS = 0.25
# How soon to look again when readers that are sending hold all bytes left.
_FIRST_LOOK_SECONDS = 0.005

_log = structlog.get_logger("flight_server.tiering.spiller")

Groups = list[tuple[SegmentWriter, list[Message]]]


class Spiller:
    """The task and its trouble."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._frames = catalogue.budget.frames
        assert self._frames.limit_bytes is not None
        self._high_bytes = int(self._frames.limit_bytes * HIGH_WATER)
        self._poked = asyncio.Event()
        self.trouble: str | None = None
        self.full_at: float | None = None  # when the disk had no room for a write that was tried last
        self.spilled_bytes = 0
        self.spilled_frames = 0

    def poke(self) -> None:
        """Wake the task if there is something to move: called when a frame has come or a stream waits."""
        frames = self._frames
        if not self._poked.is_set() and (frames.used_bytes > self._high_bytes or frames.wanted_bytes):
            self._poked.set()

    def failed(self, trouble: DiskTrouble) -> None:
        """Note that the disk refused a write, also of a durable dataset."""
        self.full_at = time.monotonic() if trouble.full else None
        if self.trouble is None:
            _log.warning("disk_trouble", trouble=str(trouble), full=trouble.full)
        self.trouble = str(trouble)

    def succeeded(self) -> None:
        self.full_at = None
        if self.trouble is not None:
            _log.info("disk_recovered", trouble=self.trouble)
            self.trouble = None

    async def run(self) -> None:
        """Move frames until cancelled."""
        look_seconds = _FIRST_LOOK_SECONDS
        while True:
            await self._poked.wait()
            self._poked.clear()
            frames = self._frames
            while (excess_bytes := frames.used_bytes + frames.wanted_bytes - self._high_bytes) > 0:
                if await self._moved(min(excess_bytes, SPILL_BATCH_BYTES)):
                    look_seconds = _FIRST_LOOK_SECONDS
                    continue
                # Readers hold the frames in RAM, or the disk refuses.
                await asyncio.sleep(RETRY_SECONDS if self.trouble else look_seconds)
                look_seconds = min(2 * look_seconds, RETRY_SECONDS)
                if not frames.wanted_bytes:
                    break

    async def _moved(self, size_bytes: int) -> bool:
        """Move about ``size_bytes``; False if a second try at once is useless."""
        try:
            return await self._move(size_bytes)
        except DiskTrouble as trouble:
            self.failed(trouble)
        except Exception:  # noqa: BLE001  # a spill that fails must not end spilling; it is logged
            # As text: a log that renders variables would print messages and keep their reservations.
            _log.error("spiller_failed", traceback=traceback.format_exc())
            self.trouble = "an internal error; the server's log has it"
        return False

    async def _move(self, size_bytes: int) -> bool:
        datasets = self._catalogue.alive()
        if release_unread(datasets, spilled=self.trouble is not None):
            return True
        moved = False
        for writer, frames in await in_steps(picking(datasets, size_bytes)):
            await self._move_what_fits(writer, frames)
            moved = True
        return moved

    async def _move_what_fits(self, writer: SegmentWriter, frames: list[Message]) -> None:
        while True:
            try:
                return await self._move_group(writer, frames)
            except DiskTrouble as trouble:
                if not trouble.full or len(frames) == 1:
                    raise
            frames = frames[: len(frames) // 2]

    async def _move_group(self, writer: SegmentWriter, frames: list[Message]) -> None:
        for frame in frames:
            if frame.slice is not None:
                frame.leave_ram()  # a durable dataset's frame, on disk already
        # The payloads, not only their bytes: they stay counted while the thread writes them.
        pairs = [(frame, frame.payload) for frame in frames if frame.payload is not None]
        if not pairs:
            return
        loop = asyncio.get_running_loop()
        slices: list[SegmentSlice] = await loop.run_in_executor(
            self._catalogue.disk.io_threads, writer.append, [payload.data for _, payload in pairs]
        )
        self.succeeded()
        for (frame, _), slice_ in zip(pairs, slices, strict=True):
            if frame.slice is None:
                frame.move_to(slice_)
            else:
                frame.leave_ram()  # a durable dataset was sealed meanwhile
            self.spilled_bytes += slice_.size_bytes
        self.spilled_frames += len(pairs)


def picking(datasets: Sequence[Dataset], size_bytes: int) -> Generator[None, None, Groups]:
    """Messages of ``size_bytes`` in all, by their dataset's writer; fewer if there are no more. Of each kind at most
    ``VICTIMS_AT_ONCE`` of a dataset are looked at. ``datasets``: see :meth:`Catalogue.alive`.

    A step looks at one dataset. A message chosen in an earlier step may have left RAM since, or been released.
    """
    groups: Groups = []
    chosen: set[int] = set()
    found_bytes = 0
    filled = [dataset for dataset in datasets if dataset.writer is not None and dataset.filled]
    cold, near = partial(Dataset.victims, near=False), partial(Dataset.victims, near=True)
    for choose in (cold, near, Dataset.resident_dictionaries):
        for dataset in filled:
            messages: list[Message] = []
            for message in islice(choose(dataset), VICTIMS_AT_ONCE):
                if id(message) in chosen:
                    continue
                messages.append(message)
                chosen.add(id(message))
                found_bytes += message.held_bytes
                if found_bytes >= size_bytes:
                    break
            if messages and dataset.writer is not None:
                groups.append((dataset.writer, messages))
            if found_bytes >= size_bytes:
                return groups
            yield
    return groups


def release_unread(datasets: Sequence[Dataset], *, spilled: bool) -> bool:
    """Release the longest unused dataset that can be pulled again (``Dataset.release_unread``); whether one was."""
    sources = (dataset for dataset in datasets if dataset.attached.pulled)
    by_use = sorted(sources, key=lambda dataset: dataset.used_at)
    return any(dataset.release_unread(spilled=spilled) for dataset in by_use)
