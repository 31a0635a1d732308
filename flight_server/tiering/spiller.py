"""Spiller: the one task that moves frames, and last dictionaries, from RAM to disk.

Guarantee: while a stream waits for room in ``frames``, a frame is in RAM and the disk has room, it moves frames.
Moving starts at ``HIGH_WATER`` of the account, so that producers seldom wait for the disk. Before it writes anything it
releases source datasets without readers, one at a time: they can be pulled again.

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

import structlog

from flight_server.concurrency import in_steps
from flight_server.datasets import Catalogue
from flight_server.frames import Message
from flight_server.storage import DiskTrouble, SegmentSlice, SegmentWriter

from . import victims

HIGH_WATER = 0.8
SPILL_BATCH_BYTES = 16 << 20
RETRY_SECONDS = 0.25
# How soon to look again when readers that are sending hold all bytes left.
_FIRST_LOOK_SECONDS = 0.005

_log = structlog.get_logger("flight_server.tiering.spiller")


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
            while (excess_bytes := self._excess_bytes()) > 0:
                if await self._moved(min(excess_bytes, SPILL_BATCH_BYTES)):
                    look_seconds = _FIRST_LOOK_SECONDS
                    continue
                # Readers hold the frames in RAM, or the disk refuses.
                await asyncio.sleep(RETRY_SECONDS if self.trouble else look_seconds)
                look_seconds = min(2 * look_seconds, RETRY_SECONDS)
                if not self._frames.wanted_bytes:
                    break

    def _excess_bytes(self) -> int:
        return self._frames.used_bytes + self._frames.wanted_bytes - self._high_bytes

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
        if victims.release_unread(datasets, spilled=self.trouble is not None):
            return True
        moved = False
        for writer, frames in await in_steps(victims.picking(datasets, size_bytes)):
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
