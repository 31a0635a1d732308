"""Which partitions are cut, into how many pieces, and that pieces have every frame once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.transfer.reading_plans import cut
from spark_client.jobs import SealedDataset
from spark_client.jobs.shares import (
    TASK_BYTES,
    PartitionSlice,
    Shares,
    cuts_of,
    cuts_of_pair,
    skewed,
    tasks_for,
)

MIB = 1 << 20
SCHEMA = pa.schema([("n", pa.int64())])
FRAMES = st.lists(st.lists(st.integers(1, 40 * MIB), max_size=20), min_size=1, max_size=8)


class Source:
    """A dataset whose frames have these sizes; it plans as the server does."""

    def __init__(self, frames: list[list[int]]) -> None:
        self.frames = frames

    def plan(self, partitions: Sequence[int], target_bytes: int) -> dict[int, list[tuple[int, int, int]]]:
        return {
            partition: list(filter(None, cut(self.frames[partition], target_bytes)))
            for partition in partitions
        }


def sealed(frames: list[list[int]]) -> SealedDataset:
    source: Any = Source(frames)
    return SealedDataset(source, SCHEMA, tuple(map(sum, frames)))


def read(shares: Shares) -> list[PartitionSlice]:
    return [piece for task in range(len(shares)) for piece in shares[task]]


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([1] * 9 + [200 * MIB], [9]),
        ([200 * MIB] * 9, []),
        ([50 * MIB] * 8 + [200 * MIB, 201 * MIB], [9]),
        ([0, 0, 0, 97 * MIB], [3]),
        ([0, 0, 0, 96 * MIB], []),
        ([1 << 40], []),
        ([0, 1 << 40], [1]),
    ],
)
def test_a_partition_is_cut_if_it_is_far_over_the_target_and_the_median(
    sizes: list[int], found: list[int]
) -> None:
    assert skewed(sizes) == found


@given(FRAMES, st.integers(1, 20))
def test_every_frame_is_read_once_and_in_order(frames: list[list[int]], tasks: int) -> None:
    data = sealed(frames)
    cuts = cuts_of(data)
    shares = Shares.equal(data.partition_bytes, tasks, cuts)
    found = [
        (piece.partition, number)
        for piece in read(shares)
        for number in range(piece.first, len(frames[piece.partition]) if piece.until is None else piece.until)
    ]
    assert found == [
        (partition, number) for partition, sizes in enumerate(frames) for number in range(len(sizes))
    ]
    assert {piece.partition for piece in read(shares)} == set(range(len(frames)))
    assert all(shares[task] for task in range(len(shares)))
    for each in cuts:
        assert sum(each.piece_bytes) == data.partition_bytes[each.partition]
        assert len(each.borders) == len(each.piece_bytes) + 1 > 2


@given(FRAMES, FRAMES, st.sets(st.sampled_from(["left", "right"])))
def test_one_side_of_a_pair_is_cut_and_no_more_is_read_than_twice(
    left: list[list[int]], right: list[list[int]], sides: set[str]
) -> None:
    count = min(len(left), len(right))
    both = {"left": sealed(left[:count]), "right": sealed(right[:count])}
    for partition, borders, piece_bytes, side in cuts_of_pair(both["left"], both["right"], sides):
        assert side in sides
        other = both["right" if side == "left" else "left"].partition_bytes[partition]
        own = both[side].partition_bytes[partition]
        assert borders[0] == 0
        assert borders[-1] == len({"left": left, "right": right}[side][partition])
        assert sum(piece_bytes) == own + other * len(piece_bytes)
        assert other * (len(piece_bytes) - 1) <= own


def test_no_task_reads_much_more_than_the_target_with_one_partition_8000_times_the_median() -> None:
    frames = [[MIB]] * 50 + [[2 * MIB] * 4000] + [[MIB]] * 50
    data = sealed(frames)
    cuts = cuts_of(data)
    shares = Shares.equal(data.partition_bytes, tasks_for(data.partition_bytes, 4), cuts)
    sizes = [
        sum(sum(frames[piece.partition][piece.first : piece.until]) for piece in shares[task])
        for task in range(len(shares))
    ]
    assert max(sizes) <= 2 * TASK_BYTES
    assert sum(sizes) == 8100 * MIB
