"""Pieces of partitions: every frame once, of about the target's size."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.protocol import Commit, CreateRequest, Kind, PlanRequest
from flight_server.protocol.errors import Conflict, DatasetDropped, InvalidRequest, NotFound
from flight_server.tiering import Loading
from flight_server.transfer import reading_plans
from flight_server.transfer.reading_plans import PlannedSlice, cut, plan_bytes, plan_json, planned
from tests.support.accepting import accept
from tests.support.frames import frame


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 3000))
def test_pieces_have_every_frame_once_and_no_more_than_a_frame_beyond_the_target(
    sizes: list[int], target_bytes: int
) -> None:
    pieces = list(filter(None, cut(sizes, target_bytes)))
    assert [number for first, end, _ in pieces for number in range(first, end)] == list(range(len(sizes)))
    for first, end, size_bytes in pieces:
        assert size_bytes == sum(sizes[first:end]) > 0
        assert size_bytes <= target_bytes + max(sizes[first:end])
    if sum(sizes) <= target_bytes:
        assert len(pieces) == bool(sizes)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 3000))
def test_the_ends_of_pieces_are_the_borders_that_are_nearest_to_equal_sizes(
    sizes: list[int], target_bytes: int
) -> None:
    ends = list(accumulate(sizes))
    count = -(-ends[-1] // target_bytes)
    wanted = [ends[-1] * number // count for number in range(1, count)]
    borders = [0, *ends]
    nearest = {min(reversed(borders), key=lambda border: abs(border - place)) for place in wanted}
    assert {sum(sizes[:end]) for _, end, _ in filter(None, cut(sizes, target_bytes))} == nearest - {0} | {
        ends[-1]
    }


@pytest.mark.parametrize("partitions", [[0, 0], [1, 2, 1], [0] * 100_001])
def test_a_request_that_names_a_partition_twice_is_refused(partitions: list[int]) -> None:
    body = json.dumps({"dataset": "d", "target_bytes": 1, "partitions": partitions}).encode()
    with pytest.raises(InvalidRequest, match="each once"):
        PlanRequest.parse(body)


async def plan(catalogue: Catalogue, dataset: Dataset, request: PlanRequest) -> list[PlannedSlice]:
    loading = Loading(catalogue.disk, catalogue.budget.metadata)
    slices = [each async for each in planned(dataset, request, loading)]
    said = await plan_json(dataset, request, loading)
    assert json.loads(said) == {
        "dataset": "d",
        "generation": dataset.generation,
        "pieces": [list(each) for each in slices],
    }
    assert len(said) <= await plan_bytes(dataset, request)
    return slices


def shuffle(catalogue: Catalogue, frames: dict[int, list[int]]) -> Dataset:
    """A shuffle of 5 partitions with frames of these sizes, not sealed."""
    dataset = catalogue.create(CreateRequest("d", Kind.SHUFFLE, partitions=5), None)[0]
    attempt = dataset.begin_attempt(0, "a")
    for partition, sizes in frames.items():
        for size_bytes in sizes:
            attempt.publish(partition, frame(size_bytes, pool=catalogue.budget.frames))
    dataset.commit(attempt, Commit(attempt.rows, attempt.frame_count))
    return dataset


async def test_a_plan_has_the_pieces_of_all_partitions_with_frames_or_of_those_asked_for(
    catalogue: Catalogue,
) -> None:
    dataset = shuffle(catalogue, {3: [100] * 1200, 1: [50]})
    accept(dataset, {0: "a"})
    dataset.close()
    assert await plan(catalogue, dataset, PlanRequest("d", 40_000)) == [
        (1, 0, 1, 50),
        (3, 0, 400, 40_000),
        (3, 400, 800, 40_000),
        (3, 800, 1200, 40_000),
    ]
    assert await plan(catalogue, dataset, PlanRequest("d", 1 << 40, partitions=(3, 0))) == [
        (3, 0, 1200, 120_000)
    ]
    with pytest.raises(NotFound, match="partitions 0 to 4"):
        await plan(catalogue, dataset, PlanRequest("d", 1, partitions=(5,)))


async def test_partitions_without_rows_take_no_memory_when_a_plan_names_them(catalogue: Catalogue) -> None:
    dataset = shuffle(catalogue, {1: [50]})
    accept(dataset, {0: "a"})
    dataset.close()
    used_bytes = catalogue.budget.metadata.pool.used_bytes
    assert await plan(catalogue, dataset, PlanRequest("d", 100, partitions=(4, 1, 0, 2, 3))) == [
        (1, 0, 1, 50)
    ]
    assert catalogue.budget.metadata.pool.used_bytes == used_bytes
    dataset.drop()
    with pytest.raises(DatasetDropped):
        await plan(catalogue, dataset, PlanRequest("d", 100, partitions=(4,)))


async def test_a_dataset_that_is_still_written_has_no_plan(catalogue: Catalogue) -> None:
    dataset = shuffle(catalogue, {3: [100]})
    for partitions in (None, (3,)):
        with pytest.raises(Conflict, match="still written"):
            await plan(catalogue, dataset, PlanRequest("d", 1, partitions=partitions))


async def test_a_plan_of_too_many_pieces_is_refused(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_plans, "MAX_SLICES", 3)
    dataset = shuffle(catalogue, {0: [100] * 8, 1: [100] * 8})
    accept(dataset, {0: "a"})
    dataset.close()
    assert len(await plan(catalogue, dataset, PlanRequest("d", 800))) == 2
    with pytest.raises(InvalidRequest, match="larger 'target_bytes'"):
        await plan(catalogue, dataset, PlanRequest("d", 200))
