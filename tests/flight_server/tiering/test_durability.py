"""The order of writes, and what becomes of a seal that is broken off."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from flight_server.datasets.catalogue import Catalogue
from flight_server.frames.message import NO_DICTIONARIES
from flight_server.kinds.seals import seal as seal_shuffle
from flight_server.memory.accounts import Budget
from flight_server.node import Node
from flight_server.protocol import Conflict, Retention, WriteMode
from flight_server.storage.disk import Disk
from flight_server.tiering.recovery import recover
from tests.support.frames import dictionary
from tests.support.queues import take_one
from tests.support.sealing import (
    bytes_after_restart,
    bytes_of,
    committed,
    create,
    files,
    frame,
    frames_of,
    hold_commit,
    publish,
    restarted,
    seal,
    staged,
)


async def test_what_was_spilled_is_not_written_again_and_what_is_in_ram_leaves_it_for_nothing(
    node: Node, tmp_path: Path
) -> None:
    dataset = create(node)
    publish(node, dataset, 0, [b"spilled", b"in ram"])
    spilled, in_ram = dataset.partition(0).frames()
    assert dataset.writer is not None
    spilled.move_to(dataset.writer.append([b"spilled"])[0])
    slice_before = spilled.slice
    await node.durability.persist(dataset, [0], lambda: None)
    assert spilled.slice is slice_before
    assert node.budget.disk.used_bytes == sum(path.stat().st_size for path in files(tmp_path))
    in_ram.leave_ram()
    assert in_ram.read_back() == b"in ram"


async def test_the_last_two_partitions_may_be_sealed_in_the_same_moment(node: Node, tmp_path: Path) -> None:
    dataset = create(node, partitions=2)
    for index in (0, 1):
        publish(node, dataset, index, [b"x"])
    await asyncio.gather(
        node.durability.persist(dataset, [0], lambda: None),
        node.durability.persist(dataset, [1], lambda: None),
    )
    assert committed(tmp_path) == [dataset.generation]


async def test_frames_and_dictionaries_are_synced_before_their_rows_are_committed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(node)
    words = dictionary(b"words", 0, pool=node.budget.frames)
    state = NO_DICTIONARIES.replaced(7, words, delta=False)
    dataset.begin_stream(0).publish(frame(node, b"batch", state))
    held = hold_commit(node, monkeypatch)
    sealing = asyncio.ensure_future(node.durability.persist(dataset, [0], lambda: None))
    await held.reached()
    assert words.slice is not None
    for segment in {*dataset.partition(0).table.segments(), words.slice.segment}:
        assert segment.synced_bytes == segment.size_bytes > 0
    held.go_on()
    await sealing


async def test_a_file_that_has_vanished_is_written_again_by_the_seal(node: Node, tmp_path: Path) -> None:
    dataset = create(node)
    publish(node, dataset, 0, [b"spilled", b"in ram"])
    spilled, _ = dataset.partition(0).frames()
    assert dataset.writer is not None
    spilled.move_to(dataset.writer.append([b"spilled"])[0])
    (file,) = files(tmp_path)
    file.unlink()
    await node.durability.persist(dataset, [0], lambda: None)
    assert await bytes_after_restart(tmp_path) == [b"spilled", b"in ram"]


async def test_a_seal_may_be_repeated_after_a_restart_with_the_attempts_that_it_had(
    node: Node, tmp_path: Path
) -> None:
    dataset, request = staged(node, WriteMode.NEW)
    await seal_shuffle(node.durability, dataset, request)
    with closing(restarted(tmp_path)) as after:
        attempts = after.find("d").attempts
        assert attempts.chosen(request.attempts) is None
        with pytest.raises(Conflict, match="sealed with other attempts"):
            attempts.chosen({0: "b"})


async def test_a_file_that_lacks_the_end_of_a_frame_is_put_aside_by_the_next_start(
    node: Node, tmp_path: Path
) -> None:
    dataset = create(node)
    publish(node, dataset, 0, [b"frame"])
    await node.durability.persist(dataset, [0], lambda: None)
    (file,) = files(tmp_path)
    os.truncate(file, file.stat().st_size - 1)
    with closing(restarted(tmp_path)) as after:
        assert after.get("d") is None
        assert [entry.files for entry in after.disk.quarantine.entries] == [(file.name,)]


async def test_dictionaries_are_found_again_in_their_order_and_shared(node: Node, tmp_path: Path) -> None:
    dataset = create(node)
    partition = dataset.begin_stream(0)
    messages = [
        dictionary(data, sequence, pool=node.budget.frames)
        for sequence, data in enumerate([b"base", b"delta", b"other"])
    ]
    first = NO_DICTIONARIES.replaced(7, messages[0], delta=False)
    second = first.replaced(7, messages[1], delta=True).replaced(9, messages[2], delta=False)
    for state in (first, second, second):
        partition.publish(frame(node, b"batch", state))
    await node.durability.persist(dataset, [0], lambda: None)
    seal(dataset, 0)
    with closing(restarted(tmp_path)) as after:
        found = [each.dictionaries for each in await frames_of(after, after.find("d"), 0)]
    assert found[1] is found[2]
    assert found[0].by_id[7][0] is found[1].by_id[7][0], "a reader is sent only what it lacks"
    assert [
        {number: [each.read_back() for each in listed] for number, listed in state.by_id.items()}
        for state in found[:2]
    ] == [{7: [b"base"]}, {7: [b"base", b"delta"], 9: [b"other"]}]


async def test_frames_that_retention_released_before_the_seal_keep_their_numbers(
    node: Node, tmp_path: Path
) -> None:
    dataset = create(node, retention=Retention(readers=1))
    publish(node, dataset, 0, [b"gone", b"left"])
    with closing(dataset.partition(0).subscribe()) as subscription:
        dataset.partition(0).places.take("reader", subscription, now=0)
        dataset.partition(0).acknowledge("reader", 1, now=0)
    await node.durability.persist(dataset, [0], lambda: None)
    seal(dataset, 0)
    with closing(restarted(tmp_path)) as after:
        partition = after.find("d").partition(0)
        assert partition.totals == dataset.partition(0).totals
        assert await bytes_of(after, after.find("d"), 0) == [b"left"]
        assert take_one(partition.subscribe(1)).read_back() == b"left"


async def test_retention_in_seconds_goes_on_where_it_was(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create(node, retention=Retention(seconds=100))
    publish(node, dataset, 0, [b"x"])
    await node.durability.persist(dataset, [0], lambda: None)
    seal(dataset, 0)
    now, wall = 1_000_000.0, time.time() + 60
    monkeypatch.setattr(time, "time", lambda: wall)
    with closing(restarted(tmp_path, clock=lambda: now)) as catalogue:
        now += 35
        assert not catalogue.find("d").outlived
        now += 6
        assert catalogue.find("d").outlived


async def test_dictionaries_stay_on_disk_when_they_are_found_again(node: Node, tmp_path: Path) -> None:
    dataset = create(node)
    partition = dataset.begin_stream(0)
    data = b"\0" + b"x" * ((6 << 20) - 1)  # already its first byte begins no message
    message = dictionary(data, pool=node.budget.frames)
    partition.publish(frame(node, b"batch", NO_DICTIONARIES.replaced(0, message, delta=False)))
    await node.durability.persist(dataset, [0], lambda: None)
    seal(dataset, 0)
    budget = Budget(8 << 20, None)  # where it would not fit into RAM
    with closing(Catalogue(budget, Disk(budget.disk, tmp_path))) as catalogue:
        recover(catalogue)
        (found,) = await frames_of(catalogue, catalogue.find("d"), 0)
    assert found.dictionaries.by_id[0][0].read_back() == data
    assert budget.frames.used_bytes < len(data)
