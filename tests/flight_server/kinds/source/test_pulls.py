"""All readers share one pull, which none of them can end; after a failure or release it gives the same rows again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import closing, nullcontext, suppress
from copy import copy
from pathlib import Path

import pyarrow as pa
import pytest
import pytest_asyncio

from flight_server.datasets.dataset import Dataset
from flight_server.datasets.partition import PartitionState, Totals
from flight_server.frames import SchemaMessage
from flight_server.frames.builder import Checked
from flight_server.frames.encoder import Encoder
from flight_server.kinds.source.pulls import Pulls, SourceChanged
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Kind
from flight_server.protocol.errors import (
    CorruptFrame,
    DatasetDropped,
    InternalError,
    OutOfBudget,
    PartitionFailed,
    SourceUnavailable,
    Unavailable,
)
from tests.support.background_tasks import count
from tests.support.nodes import PATIENCE_SECONDS, decoded, read_messages, read_table, running_node

FRAMES = 6
ROWS = 1000
SCHEMA = pa.schema([("n", pa.int64())])


class NumbersSource:
    """Partitions of ``FRAMES`` frames of consecutive numbers, each frame as soon as ``allowed`` lets it.

    Its frames are there at once: it never blocks in a thread, and says nothing about its totals.
    """

    schema = SchemaMessage.of(SCHEMA)
    partition_count = 2
    held_bytes = 0

    def __init__(self) -> None:
        self.allowed = asyncio.Semaphore(1 << 20)
        self.pulled: list[int] = []
        self.first = 0
        self.frames = FRAMES
        self.stubborn = False  # goes on when it is cancelled
        self.failing: dict[int, Exception] = {}  # what is raised instead of a frame; once

    def describe(self, index: int) -> str:
        return f"numbers {index}"

    async def pull(self, index: int, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        self.pulled.append(index)
        numbers = range(self.first, self.first + self.frames * ROWS)
        batches = pa.table({"n": pa.array(numbers, pa.int64())}).to_batches(ROWS)
        encoder = Encoder(SCHEMA, max_message_bytes=1 << 20)
        for number, (pulled,) in enumerate(encoder.encode([batch]) for batch in batches):
            with suppress(asyncio.CancelledError) if self.stubborn else nullcontext():
                await self.allowed.acquire()
            if number in self.failing:
                raise self.failing.pop(number)
            yield pulled


class Served:
    """A node with a dataset of a NumbersSource; ``renewed`` counts the new generations asked for."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.source = NumbersSource()
        self.renewed = 0
        request = CreateRequest("numbers", Kind.SOURCE, partitions=2, source={})
        self.dataset = node.catalogue.prepare(request, self.source.schema)
        self.dataset.attached = Pulls(node.pulling, self.source, request.source, self._renew)
        node.catalogue.install(self.dataset)

    async def _renew(self, dataset: Dataset) -> None:
        self.renewed += 1

    async def numbers(self, index: int = 0, start: int = 0) -> list[int]:
        table = await read_table(self.node, self.dataset, index, start)
        return list(table["n"].to_pylist())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110  # the state of objects that announce nothing
                await asyncio.sleep(0.001)


EXPECTED = list(range(FRAMES * ROWS))


@pytest_asyncio.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with running_node(tmp_path, **getattr(request, "param", {})) as node:
        made = Served(node)
        yield made
    del made.dataset  # its reservation lives as long as it does


at_once = pytest.mark.parametrize("served", [{"source_failure_seconds": 0}], indirect=True)
remembered = pytest.mark.parametrize("served", [{"source_failure_seconds": 3600}], indirect=True)


def used_by_frames(node: Node) -> int:
    """What is held in RAM beside what is kept of the datasets themselves."""
    return node.budget.memory.used_bytes - node.budget.metadata.pool.used_bytes


async def test_fifty_readers_that_come_first_together_share_one_pull(served: Served) -> None:
    readers = await asyncio.gather(*(served.numbers() for _ in range(50)))
    assert readers == [EXPECTED] * 50
    assert served.source.pulled == [0]
    assert served.node.counters.pulls == 1
    assert served.node.counters.encodes == FRAMES


async def test_only_the_partitions_that_are_read_are_pulled(served: Served) -> None:
    assert await served.numbers(1) == EXPECTED
    assert served.source.pulled == [1]
    assert not served.dataset.sealed
    assert await served.numbers(0) == EXPECTED
    assert served.dataset.sealed


async def test_a_reader_gets_frames_while_the_pull_goes_on_and_waits_for_the_source(served: Served) -> None:
    served.source.allowed = asyncio.Semaphore(2)
    first = await read_messages(served.node, served.dataset, at_most=2)
    assert decoded(served.dataset, first)["n"].to_pylist() == EXPECTED[: 2 * ROWS]
    assert served.dataset.partition(0).state is PartitionState.OPEN
    reader = asyncio.ensure_future(served.numbers())
    await served.until(lambda: len(served.node.waits) == 2)
    keys = ("waiting_for", "partition", "peer", "deadline_seconds")
    assert {tuple(wait[key] for key in keys) for wait in served.node.waits.listed("numbers")} == {
        ("source", 0, "test", None),
        ("source", 0, "numbers 0", 900.0),
    }
    reader.cancel()
    await asyncio.wait([reader])


async def test_cancelling_all_readers_neither_stops_the_pull_nor_starts_another(served: Served) -> None:
    served.source.allowed = asyncio.Semaphore(0)
    for _ in range(FRAMES):
        readers = [asyncio.ensure_future(served.numbers()) for _ in range(20)]
        await served.until(lambda: len(served.dataset.partition(0).subscriptions()) == 20)
        served.source.allowed.release()
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
    await served.until(lambda: served.dataset.partition(0).state is PartitionState.SEALED)
    assert await served.numbers() == EXPECTED
    assert served.source.pulled == [0]


@pytest.mark.parametrize("served", [{"put_idle_seconds": 0.2}], indirect=True)
@pytest.mark.parametrize("stays", [True, False], ids=["the reader stays", "the reader leaves"])
async def test_a_pull_whose_source_gives_nothing_fails_at_its_deadline(
    served: Served, *, stays: bool
) -> None:
    served.source.allowed = asyncio.Semaphore(1)
    reader = asyncio.ensure_future(served.numbers())
    await served.until(lambda: served.source.pulled == [0])
    if stays:
        said = r"numbers 0 failed: it gave nothing for 0.2 s \(--put-idle-seconds\)"
        with pytest.raises(SourceUnavailable, match=said):
            await asyncio.wait_for(reader, PATIENCE_SECONDS)
    else:
        reader.cancel()
        await asyncio.wait([reader])
    await served.until(lambda: served.dataset.partition(0).state is PartitionState.FAILED)
    assert len(served.node.waits) == 0


@remembered
async def test_a_failure_reaches_every_reader_and_is_remembered(served: Served) -> None:
    served.source.failing[2] = SourceUnavailable("the disk is away")
    results = await asyncio.gather(*(served.numbers() for _ in range(10)), return_exceptions=True)
    assert {type(each) for each in results} == {SourceUnavailable}
    assert len(set(map(id, results))) == 10
    with pytest.raises(
        SourceUnavailable, match=r"'numbers' partition 0: .* numbers 0 failed: the disk is away"
    ):
        await served.numbers()
    assert served.source.pulled == [0]
    assert served.dataset.failure is None
    assert served.dataset.attached.statistics(lambda _: True) == {
        "source": {"pulls": 1, "running": 0, "failed": 1}
    }
    assert await served.numbers(1) == EXPECTED


@at_once
async def test_after_a_failure_the_next_reader_pulls_again_under_the_same_generation(served: Served) -> None:
    served.source.failing[4] = PartitionFailed("a page is damaged")
    with pytest.raises(PartitionFailed, match="a page is damaged"):
        await served.numbers()
    generation = served.dataset.generation
    assert await served.numbers() == EXPECTED
    assert served.source.pulled == [0, 0]
    assert served.node.catalogue.find("numbers").generation == generation
    assert served.node.counters.pulls_failed == 1


@at_once
async def test_a_reader_that_resumes_never_gets_rows_of_another_state_of_the_source(served: Served) -> None:
    served.source.failing[3] = SourceUnavailable("gone for a moment")
    with pytest.raises(SourceUnavailable):
        await served.numbers()
    served.source.first = 1
    with pytest.raises(SourceUnavailable, match=r"not what it was.*new generation"):
        await read_messages(served.node, served.dataset, start=3, at_most=1)
    await served.until(lambda: served.renewed == 1)


@at_once
@pytest.mark.parametrize("change", [SourceChanged("it was written again"), "other rows", "fewer", "more"])
async def test_a_pull_that_finds_the_source_changed_asks_for_a_new_generation(
    served: Served, change: Exception | str
) -> None:
    assert await served.numbers() == EXPECTED
    assert served.dataset.release_unread(spilled=True)
    if change == "other rows":
        served.source.first = 1
    elif isinstance(change, str):
        served.source.frames += 1 if change == "more" else -1
    else:
        # The parameter outlives the test, and a traceback holds the dataset.
        served.source.failing[0] = copy(change)
    with pytest.raises(SourceUnavailable, match="new generation"):
        await served.numbers()
    await served.until(lambda: served.renewed == 1)


async def test_a_frame_that_is_lost_on_disk_is_pulled_again(served: Served) -> None:
    assert await served.numbers() == EXPECTED
    served.dataset.partition(0).corrupt(CorruptFrame("another checksum"), 0)
    assert await served.numbers(0, 3) == EXPECTED[3 * ROWS :]
    assert served.source.pulled == [0, 0]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_pull_whose_partition_was_lost_and_reopened_adds_nothing_to_the_next_one(
    served: Served, stubborn: bool
) -> None:
    source, partition = served.source, served.dataset.partition(0)
    source.allowed, source.stubborn = asyncio.Semaphore(2), stubborn
    first = asyncio.ensure_future(served.numbers())
    await served.until(lambda: partition.so_far.frames == 2)
    partition.corrupt(CorruptFrame("another checksum"), partition.epoch)
    second = asyncio.ensure_future(served.numbers())  # has the partition reopened
    await asyncio.wait([first])
    for _ in range(2 * FRAMES):
        source.allowed.release()
    assert await second == EXPECTED
    assert isinstance(first.exception(), CorruptFrame)
    assert source.pulled == [0, 0]
    assert partition.totals.rows == FRAMES * ROWS
    assert await served.numbers() == EXPECTED


@at_once
async def test_a_bug_in_a_source_is_an_error_without_its_text_and_leaves_no_reader_waiting(
    served: Served,
) -> None:
    served.source.failing[1] = ZeroDivisionError("secret")
    with pytest.raises(InternalError) as caught:
        await served.numbers()
    assert "secret" not in str(caught.value)
    assert f"internal error {caught.value.detail['error_id']}: the server's log" in caught.value.message
    assert await served.numbers() == EXPECTED


async def test_dropping_the_dataset_ends_its_pulls_and_their_readers(served: Served) -> None:
    served.source.allowed = asyncio.Semaphore(1)
    reader = asyncio.ensure_future(served.numbers())
    await served.until(lambda: served.dataset.partition(0).so_far.frames == 1)
    served.node.catalogue.drop("numbers")
    await asyncio.wait([reader])
    assert isinstance(reader.exception(), DatasetDropped)
    await served.until(lambda: not count(served.node.background))


async def test_a_reader_that_waits_for_a_pull_when_the_lease_ends_is_told_so(served: Served) -> None:
    served.source.allowed = asyncio.Semaphore(0)
    reader = asyncio.ensure_future(served.numbers())
    await served.until(lambda: len(served.node.waits) == 2)
    served.dataset.lease_seconds = 0
    assert list(served.node.catalogue.expire()) == [served.dataset]
    with pytest.raises(
        DatasetDropped,
        match=r"ended with its lease .* while partition 0 .*; create it again, with its source",
    ):
        await asyncio.wait_for(reader, PATIENCE_SECONDS)


async def test_what_a_failed_pull_had_given_is_free_when_its_last_reader_has_its_error(
    served: Served,
) -> None:
    served.source.allowed = asyncio.Semaphore(1)
    reader = asyncio.ensure_future(served.numbers())
    await served.until(lambda: served.dataset.partition(0).so_far.frames == 1)
    served.source.failing[1] = SourceUnavailable("gone")
    gc.disable()  # by construction, not by a collection
    try:
        served.source.allowed.release()
        await asyncio.wait([reader])
        assert isinstance(reader.exception(), SourceUnavailable)
        del reader  # its error's traceback holds what it was sent
        await served.until(lambda: used_by_frames(served.node) == 0)
    finally:
        gc.enable()


async def test_the_end_of_the_server_ends_pulls_and_tells_their_readers(served: Served) -> None:
    served.source.allowed = asyncio.Semaphore(1)
    reader = asyncio.ensure_future(served.numbers())
    await served.until(lambda: served.dataset.partition(0).so_far.frames == 1)
    await served.node.background.stop()
    with pytest.raises(Unavailable, match="server stopped"):
        await reader


# Memory


async def test_a_released_partition_keeps_its_totals_and_is_pulled_again(served: Served) -> None:
    await asyncio.gather(served.numbers(0), served.numbers(1))
    totals = served.dataset.partition(0).totals
    assert served.dataset.release_unread(spilled=False)
    assert used_by_frames(served.node) == 0
    assert served.dataset.sealed
    assert served.dataset.rows == 2 * FRAMES * ROWS
    assert served.dataset.partition(0).totals == totals
    assert await served.numbers() == EXPECTED
    assert await served.numbers(0, 4) == EXPECTED[4 * ROWS :]
    assert served.source.pulled == [0, 1, 0]
    assert served.dataset.partition(0).totals == totals


async def test_a_dataset_that_has_a_reader_is_not_released(served: Served) -> None:
    await served.numbers()
    with closing(served.dataset.partition(0).subscribe()):
        assert not served.dataset.release_unread(spilled=True)
    assert served.dataset.release_unread(spilled=True)
    assert not served.dataset.release_unread(spilled=True)


@pytest.mark.parametrize("served", [{"memory_limit": 8 << 20}], indirect=True)
async def test_under_pressure_idle_sources_are_released_before_anything_is_written_to_disk(
    served: Served,
) -> None:
    assert await served.numbers() == EXPECTED
    frames = served.node.budget.frames
    assert frames.limit_bytes is not None
    room = frames.limit_bytes - frames.used_bytes
    kept = [
        await served.node.admission.admit(size, dataset="x", partition=0, peer="test")
        for size in (room, 1000)
    ]
    assert served.node.spiller.spilled_frames == 0
    assert served.dataset.partition(0).frames_left == 0
    del kept
    assert await served.numbers() == EXPECTED


@pytest.mark.parametrize(
    "served",
    [{"memory_limit": 8 << 20, "budget_deadline_seconds": 0.2, "source_failure_seconds": 0}],
    indirect=True,
)
async def test_a_full_server_holds_the_pull_back_until_the_deadline_and_says_so(served: Served) -> None:
    frames = served.node.budget.frames
    assert frames.limit_bytes is not None
    kept = frames.try_reserve(frames.limit_bytes - frames.used_bytes)
    assert kept is not None
    with pytest.raises(OutOfBudget, match="numbers 0 failed"):
        await served.numbers()
    del kept
    assert await served.numbers() == EXPECTED
