"""Readers that take nothing are ended when somebody else gets nothing because of them, and only then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flight_server import reports
from flight_server.checksums import crc32c
from flight_server.core import Core
from flight_server.errors import ReaderTooSlow
from flight_server.frames import Frame, Payload
from flight_server.memory import Reservation
from flight_server.partition import Partition
from flight_server.protocol import CreateRequest, Retention
from flight_server.readback import Reader
from flight_server.reports import Page
from tests.support.cores import read_messages, running_core

READER = Reader("d", 0, "test")
STALL_SECONDS = 0.05


async def takes_nothing(_: object) -> None:
    await asyncio.Event().wait()


async def stalled(core: Core) -> asyncio.Task[None]:
    """A write that has taken longer than the stall limit."""
    write = asyncio.ensure_future(core.deliver(takes_nothing, b"", READER))
    await asyncio.sleep(2 * STALL_SECONDS)
    return write


async def end(write: asyncio.Task[None]) -> None:
    write.cancel()
    await asyncio.wait([write])


async def test_a_stalled_reader_that_nobody_waits_behind_is_left_alone(tmp_path: Path) -> None:
    async with running_core(tmp_path, stall_seconds=STALL_SECONDS) as core:
        write = await stalled(core)
        for _ in range(3):
            core.end_stalled_readers()
            await asyncio.sleep(2 * STALL_SECONDS)
        assert not write.done()
        await end(write)


async def test_a_stalled_reader_is_left_alone_while_the_others_get_their_turns(tmp_path: Path) -> None:
    async with running_core(tmp_path, stall_seconds=STALL_SECONDS) as core:
        write = await stalled(core)
        held = core.budget.sends.reserve(core.budget.sends.limit_bytes or 0)
        granted: list[Reservation] = []
        for _ in range(4):
            # Another one is next each time that somebody looks.
            request = core.budget.sends.request(1, granted.append)
            core.end_stalled_readers()
            await asyncio.sleep(2 * STALL_SECONDS)
            request.cancel()
        assert not write.done()
        held.free()
        await end(write)


async def test_a_stalled_reader_is_ended_when_the_same_one_stays_next(tmp_path: Path) -> None:
    async with running_core(tmp_path, stall_seconds=STALL_SECONDS) as core:
        write = await stalled(core)
        held = core.budget.sends.reserve(core.budget.sends.limit_bytes or 0)
        granted: list[Reservation] = []
        request = core.budget.sends.request(1, granted.append)
        core.end_stalled_readers()
        await asyncio.sleep(2 * STALL_SECONDS)
        core.end_stalled_readers()
        with pytest.raises(ReaderTooSlow, match="dataset 'd' partition 0"):
            await write
        request.cancel()
        held.free()


async def test_statistics_ask_no_frame_and_are_those_of_a_recount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_core(tmp_path, memory_limit=8 << 20) as core:
        datasets = [
            core.store.create(CreateRequest(name, partitions=2, retention=retention), None)[0]
            for name, retention in (("a", Retention()), ("b", Retention(readers=1)))
        ]
        for number in range(24):  # 6 MiB in each, of which not everything fits
            for dataset in datasets:
                room = await core.admit(256 << 10, dataset=dataset.name, partition=None, peer="test")
                data = bytes([number]) * (256 << 10)
                payload = Payload(data, room)
                frame = Frame(rows=1, size_bytes=len(data), crc32c=crc32c(data), payload=payload)
                dataset.partition(number % 2).publish(frame)
            del room, payload, frame
        for dataset in datasets:
            await read_messages(core, dataset, index=1, at_most=8)
        reading = core.reading(datasets[0].partition(1).subscribe(), Reader("a", 1, "test"))
        recount = {
            (dataset.name, partition.index): sum(
                frame.size_bytes for frame in partition.frames() if frame.resident
            )
            for dataset in datasets
            for partition in dataset.partitions()
        }
        monkeypatch.setattr(Partition, "frames", None)
        with reading:
            shown = [(await reports.statistics(core, Page(name)))["datasets"][name] for name in ("a", "b")]
        assert core.spiller.spilled_frames > 0
        assert {
            (name, int(index)): partition["resident_bytes"]
            for name, dataset in zip("ab", shown, strict=True)
            for index, partition in dataset["partitions"].items()
        } == recount
        assert 0 < sum(recount.values()) < 12 << 20
        (subscription,) = shown[0]["partitions"]["1"]["subscriptions"]
        assert subscription == {"peer": "test", "position": 0, "lag_bytes": 12 * (256 << 10)}
        assert shown[1]["partitions"]["1"]["subscriptions"] == []
        monkeypatch.undo()
