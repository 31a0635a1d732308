"""The spiller on a real catalogue and a real disk, whose writes fail when the test says so."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flight_server.frames.message import Frame
from flight_server.protocol import CreateRequest
from flight_server.storage.segments import SegmentSlice
from flight_server.tiering.spiller import HIGH_WATER, Spiller
from tests.support.catalogues import new_catalogue
from tests.support.frames import frame

LIMIT_BYTES = 16 << 20
FRAME_BYTES = 1 << 20
DEADLINE_SECONDS = 30.0


class Rig:
    """A catalogue with one dataset, and the spiller running."""

    def __init__(self, tmp_path: Path, disk_limit_bytes: int | None) -> None:
        self.catalogue = new_catalogue(tmp_path, LIMIT_BYTES, disk_limit_bytes=disk_limit_bytes)
        self.spiller = Spiller(self.catalogue)
        self.budget = self.catalogue.budget
        dataset, _ = self.catalogue.create(CreateRequest("d"), None)
        self.partition = dataset.begin_stream(0)

    @property
    def high_water_bytes(self) -> int:
        assert self.budget.frames.limit_bytes is not None
        return int(self.budget.frames.limit_bytes * HIGH_WATER)

    def publish(self, count: int) -> list[Frame]:
        frames = []
        for number in range(count):
            frames.append(frame(bytes([number]) * FRAME_BYTES, pool=self.budget.frames))
            self.partition.publish(frames[-1])
        self.spiller.poke()
        return frames

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():  # noqa: ASYNC110  # the spiller has no event for a finished move
                await asyncio.sleep(0.005)


@asynccontextmanager
async def rig(tmp_path: Path, disk_limit_bytes: int | None = None) -> AsyncIterator[Rig]:
    made = Rig(tmp_path, disk_limit_bytes)
    task = asyncio.ensure_future(made.spiller.run())
    try:
        yield made
        assert not task.done(), "the spiller has ended"
    finally:
        task.cancel()
        await asyncio.wait([task])
        made.catalogue.close()
    assert made.budget.memory.used_bytes == made.budget.disk.used_bytes == 0


async def test_frames_leave_ram_above_the_high_water_mark_and_oldest_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as each:
        frames = each.publish(10)
        await each.until(lambda: each.budget.frames.used_bytes <= each.high_water_bytes)
        resident = [one.resident for one in frames]
        assert resident == sorted(resident)
        assert [one.read_back()[0] for one in frames if not one.resident] == [
            number for number, one in enumerate(frames) if not one.resident
        ]
        assert each.spiller.spilled_bytes == sum(one.size_bytes for one in frames if not one.resident)
        del frames


async def test_below_the_high_water_mark_no_disk_is_touched(tmp_path: Path) -> None:
    async with rig(tmp_path) as each:
        each.publish(7)
        await asyncio.sleep(0)
        assert each.budget.disk.peak_bytes == 0


async def test_what_is_on_disk_already_leaves_ram_without_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as each:
        dataset = each.catalogue.find("d")
        assert dataset.writer is not None
        frames = each.publish(7)
        for one in frames:
            assert one.payload is not None
            one.place(*dataset.writer.append([one.payload.data]))
        monkeypatch.setattr(os, "pwritev", None)
        more = each.budget.frames.reserve(3 * FRAME_BYTES)
        each.spiller.poke()
        await each.until(lambda: each.budget.frames.used_bytes <= each.high_water_bytes)
        assert each.spiller.spilled_bytes == 0
        assert isinstance(frames[0].slice, SegmentSlice)
        del more, one, frames, dataset


def fails(*_: object) -> int:
    raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize(
    ("write", "said"),
    [(fails, "broken"), (None, "an internal error; the server's log has it")],
    ids=["disk", "bug"],
)
async def test_trouble_is_told_and_ends_with_the_first_write_that_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object, said: str
) -> None:
    async with rig(tmp_path) as each:
        monkeypatch.setattr(os, "pwritev", write)
        frames = each.publish(10)
        await each.until(lambda: each.spiller.trouble)
        assert said in str(each.spiller.trouble)
        assert all(one.resident for one in frames)
        monkeypatch.undo()
        granted: list[object] = []
        request = each.budget.frames.request(FRAME_BYTES, granted.append)
        each.spiller.poke()
        await each.until(lambda: granted)
        assert each.spiller.trouble is None
        request.cancel()
        granted.clear()
        del frames


async def test_the_last_room_on_a_disk_is_used_frame_by_frame(tmp_path: Path) -> None:
    async with rig(tmp_path, disk_limit_bytes=3 * FRAME_BYTES + 1000) as each:
        each.publish(15)
        await each.until(lambda: each.spiller.trouble)
        assert each.spiller.spilled_frames == 3
        assert "disk limit" in str(each.spiller.trouble)
