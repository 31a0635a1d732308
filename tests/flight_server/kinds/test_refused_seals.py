"""Durable shuffles that the disk refuses when they are sealed: they are what they were before the last commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from flight_server.datasets.dataset import Dataset
from flight_server.datasets.lifetime import DatasetState
from flight_server.kinds import ShuffleKind
from flight_server.node import Node
from flight_server.protocol import Commit, Kind, ProducerFailed, PutCommand, SealRequest
from flight_server.protocol.errors import Conflict, NotFound, Unavailable
from flight_server.storage.segments import DiskTrouble, Segment
from tests.support.catalogues import expired
from tests.support.no_room import no_room
from tests.support.sealing import SCHEMA, Held, bytes_of, create, durable_node, frame, restarted


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with durable_node(tmp_path, patience_seconds=0.1) as node:
        yield node


async def begun(node: Node) -> Dataset:
    """A dataset of two producers and three partitions; the first producer has committed."""
    dataset = create(node, kind=Kind.SHUFFLE, partitions=3, producers=2, lease_seconds=60.0)
    await Put(node, dataset, 0, "a").commit()
    return dataset


class Put:
    """A put of one frame for partition 0 and one for partition 2, as a lane makes it."""

    def __init__(self, node: Node, dataset: Dataset, producer: int, attempt: str) -> None:
        kind = ShuffleKind(node.durability, list)
        self._sink = kind.sink(PutCommand(dataset.name, None, producer, attempt), dataset, SCHEMA)
        for partition in (0, 2):
            self._sink.publish(partition, frame(node, f"{producer}{attempt}{partition}".encode()))

    async def commit(self) -> dict[str, Any]:
        try:
            return await self._sink.commit(Commit(2, 2))
        except BaseException as error:
            self._sink.abort(ProducerFailed(str(error)))
            raise

    def begin_commit(self) -> asyncio.Task[dict[str, Any]]:
        return asyncio.ensure_future(self.commit())


@contextmanager
def full_disk() -> Iterator[None]:
    with no_room(), capture_logs():
        yield


async def refused_commit(node: Node, dataset: Dataset) -> None:
    with full_disk(), pytest.raises(Unavailable, match="could not be put on disk within"):
        await Put(node, dataset, 1, "a").commit()


def broken(segment: Segment) -> None:
    raise DiskTrouble("the disk is broken", full=False)


async def check(node: Node, dataset: Dataset, directory: Path, *attempts: str) -> None:
    """It holds these attempts, and so does the next server's."""
    expected = [[f"{attempt}{index}".encode() for attempt in attempts] for index in (0, 2)]
    with closing(restarted(directory)) as again:
        for catalogue, each in ((node.catalogue, dataset), (again, again.find(dataset.name))):
            assert each.sealed
            rows = [await bytes_of(catalogue, each, index) for index in range(3)]
            assert rows == [expected[0], [], expected[1]]
        del each, catalogue


async def test_frames_that_leave_ram_between_two_tries_are_sealed_from_disk(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = await begun(node)
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "sync", broken)
        with pytest.raises(Unavailable):
            await Put(node, dataset, 1, "a").commit()
    (attempt,) = dataset.attempts
    held = list(attempt.victims())
    assert len(held) == 2
    for each in held[:1]:
        each.leave_ram()
    assert (await Put(node, dataset, 1, "b").commit())["committed"]
    await check(node, dataset, tmp_path, "0a", "1b")


async def test_another_attempt_of_a_producer_that_has_committed_commits_and_seals_nothing(
    node: Node, tmp_path: Path
) -> None:
    dataset = await begun(node)
    await refused_commit(node, dataset)
    assert (await Put(node, dataset, 0, "b").commit())["committed"]
    assert dataset.state is DatasetState.OPEN
    assert (await Put(node, dataset, 1, "b").commit())["committed"]
    await check(node, dataset, tmp_path, "0a", "1b")


async def test_a_seal_after_it_takes_what_has_committed(node: Node, tmp_path: Path) -> None:
    dataset = await begun(node)
    kind = ShuffleKind(node.durability, list)
    await refused_commit(node, dataset)
    with pytest.raises(Conflict, match="producer 1 attempt a is unknown here, not committed"):
        await kind.seal(dataset, SealRequest("d", attempts={0: "a", 1: "a"}))
    late = Put(node, dataset, 1, "b")
    await kind.seal(dataset, SealRequest("d"))
    with pytest.raises(Conflict, match="comes too late; stop this task"):
        await late.commit()
    await check(node, dataset, tmp_path, "0a")


async def test_a_seal_that_the_disk_refuses_can_be_made_with_other_attempts(
    node: Node, tmp_path: Path
) -> None:
    dataset = await begun(node)
    kind = ShuffleKind(node.durability, list)
    await Put(node, dataset, 0, "b").commit()
    with full_disk(), pytest.raises(Unavailable):
        await kind.seal(dataset, SealRequest("d", attempts={0: "a"}))
    await kind.seal(dataset, SealRequest("d", attempts={0: "b"}))
    await check(node, dataset, tmp_path, "0b")


async def test_a_drop_after_it_leaves_nothing(node: Node, tmp_path: Path) -> None:
    dataset = await begun(node)
    await refused_commit(node, dataset)
    late = Put(node, dataset, 1, "b")
    await node.catalogue.remove("d")
    with pytest.raises(Conflict, match="was dropped"):
        await late.commit()
    del late
    with closing(restarted(tmp_path)) as again, pytest.raises(NotFound):
        again.find("d")
    assert node.budget.frames.used_bytes == node.budget.metadata.pool.used_bytes


async def test_its_lease_ends_after_it_as_that_of_any(node: Node) -> None:
    dataset = await begun(node)
    await refused_commit(node, dataset)
    dataset.used_at -= 61.0
    assert expired(node.catalogue) == [dataset]


@pytest.mark.parametrize("cancellations", [0, 1, 2])
async def test_a_commit_during_the_seal_waits_and_counts_if_that_is_cancelled_before_it_is_on_disk(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancellations: int
) -> None:
    dataset = await begun(node)
    with monkeypatch.context() as patch:
        held = Held(Segment, "sync", patch)
        committing = Put(node, dataset, 1, "a").begin_commit()
        await held.reached()
        late = Put(node, dataset, 1, "b").begin_commit()
        await asyncio.sleep(0)
        assert [(wait["waiting_for"], wait["producer"]) for wait in node.waits.listed()] == [
            ("disk", None),
            ("disk", 1),
        ]
        for _ in range(cancellations):
            committing.cancel()
            await asyncio.sleep(0)
        if cancellations:
            with pytest.raises(asyncio.CancelledError):
                await committing
        held.go_on()
        if cancellations:
            assert (await late)["committed"]
        else:
            assert (await committing)["committed"]
            with pytest.raises(
                Conflict, match="is sealed: producer 1 attempt b comes too late; stop this task"
            ):
                await late
    await check(node, dataset, tmp_path, "0a", "1b" if cancellations else "1a")


async def test_a_seal_that_waits_for_the_last_commit_does_not_accept_it_when_it_was_refused(
    node: Node, tmp_path: Path
) -> None:
    dataset = await begun(node)
    with full_disk():
        committing = Put(node, dataset, 1, "a").begin_commit()
        await asyncio.sleep(0)
        sealing = asyncio.ensure_future(ShuffleKind(node.durability, list).seal(dataset, SealRequest("d")))
        with pytest.raises(Unavailable):
            await committing
    await sealing
    await check(node, dataset, tmp_path, "0a")
