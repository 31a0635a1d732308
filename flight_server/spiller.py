"""Spiller: the one task that moves frames from RAM to disk.

Guarantee: while somebody waits for room among the frames and there is a frame in RAM and room on
disk, frames are being moved. It starts before the account is full (``HIGH_WATER``), so that producers
seldom wait for the disk.

Disk trouble
    What a failed write should have moved stays in RAM, readable. The spiller remembers the trouble
    (``trouble``, part of the statistics and of the error a producer gets in the end) and tries again
    every ``RETRY_SECONDS`` while somebody waits; the first write that succeeds ends it.

Cancelling
    Between a write and its bookkeeping is no await, so cancelling the task loses nothing: frames whose
    write was cut off are still in RAM, and the unused slices give their space back.
"""

from __future__ import annotations

import asyncio

import structlog

from .frames import Frame
from .spill import DiskTrouble, SegmentSlice, SegmentWriter
from .store import Store

HIGH_WATER = 0.8
SPILL_BATCH_BYTES = 16 << 20
RETRY_SECONDS = 0.25

_log = structlog.get_logger("flight_server.spiller")


class Spiller:
    """See the module's text. ``poke`` it whenever frames came or somebody waits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frames = store.budget.frames
        self._poked = asyncio.Event()
        self.trouble: str | None = None
        self.spilled_bytes = 0
        self.spilled_frames = 0

    def poke(self) -> None:
        """Look whether there is something to move. Cheap; call it at every frame."""
        if not self._poked.is_set() and (self._excess_bytes() > 0 or self._frames.wanted_bytes):
            self._poked.set()

    async def run(self) -> None:
        """Move frames until cancelled."""
        while True:
            await self._poked.wait()
            self._poked.clear()
            while (excess_bytes := self._excess_bytes()) > 0:
                if await self._move(min(excess_bytes, SPILL_BATCH_BYTES)):
                    continue
                if not self._frames.wanted_bytes:
                    break
                # Nothing can move now: readers hold it, or the disk refuses. Both may change.
                await asyncio.sleep(RETRY_SECONDS if self.trouble else 0.01)

    def _excess_bytes(self) -> int:
        limit = self._frames.limit_bytes
        assert limit is not None
        return self._frames.used_bytes + self._frames.wanted_bytes - int(limit * HIGH_WATER)

    async def _move(self, size_bytes: int) -> bool:
        """Move about ``size_bytes``; False if nothing was moved."""
        moved = False
        for writer, frames in self._store.pick_victims(size_bytes):
            moved = await self._move_group(writer, frames) or moved
        return moved

    async def _move_group(self, writer: SegmentWriter, frames: list[Frame]) -> bool:
        for frame in frames:
            if frame.slice is not None:
                frame.let_go_of_ram()  # it is on disk already, as a part of a durable dataset
        # The payloads, not only their bytes: they stay counted while the thread writes them.
        pairs = [(frame, frame.payload) for frame in frames if frame.payload is not None]
        if not pairs:
            return True
        loop = asyncio.get_running_loop()
        try:
            slices: list[SegmentSlice] = await loop.run_in_executor(
                self._store.io_threads, writer.append, [payload.data for _, payload in pairs]
            )
        except DiskTrouble as trouble:
            if self.trouble is None:
                _log.warning("disk_trouble", trouble=str(trouble), full=trouble.full)
            self.trouble = str(trouble)
            return False
        if self.trouble is not None:
            _log.info("disk_recovered", trouble=self.trouble)
            self.trouble = None
        for (frame, _), slice_ in zip(pairs, slices, strict=True):
            frame.move_to(slice_)
            self.spilled_bytes += slice_.size_bytes
        self.spilled_frames += len(pairs)
        return True
