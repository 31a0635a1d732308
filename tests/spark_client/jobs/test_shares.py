"""Shares: every partition once and in order, as few as the data and the cores pay for, of about equal size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.jobs.shares import TASK_BYTES, PartitionSlice, Shares, tasks_for

MIB = 1 << 20


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=60), st.integers(1, 80))
def test_every_partition_is_in_one_share_in_order_and_no_share_is_empty(sizes: list[int], tasks: int) -> None:
    shares = Shares.equal(sizes, tasks)
    assert len(shares) == min(tasks, len(sizes))
    read = [piece for task in range(len(shares)) for piece in shares[task]]
    assert read == [PartitionSlice(partition) for partition in range(len(sizes))]
    assert all(len(shares[task]) for task in range(len(shares)))


@given(st.lists(st.integers(0, 100 * MIB), min_size=1, max_size=60), st.integers(1, 8))
def test_no_share_is_larger_than_its_part_and_one_partition(sizes: list[int], tasks: int) -> None:
    shares = Shares.equal(sizes, tasks)
    if len(sizes) < 2 * tasks:
        return
    weights = [size + 64 * 1024 for size in sizes]
    most = max(sum(weights[piece.partition] for piece in shares[task]) for task in range(len(shares)))
    assert most <= sum(weights) / len(shares) + 2 * max(weights)


@pytest.mark.parametrize(
    ("sizes", "tasks", "bounds"),
    [
        ([MIB] * 16, 4, (0, 4, 8, 12, 16)),
        ([0] * 6, 2, (0, 3, 6)),
        ([8 * MIB, *[MIB] * 8], 2, (0, 1, 9)),
        ([*[MIB] * 8, 8 * MIB], 2, (0, 8, 9)),
        ([5], 1, (0, 1)),
        ([5, 5, 5], 3, (0, 1, 2, 3)),
    ],
)
def test_shares_are_cut_where_their_sizes_are_nearest(
    sizes: list[int], tasks: int, bounds: tuple[int, ...]
) -> None:
    assert Shares.equal(sizes, tasks).bounds == bounds


@pytest.mark.parametrize(
    ("total_bytes", "cores", "tasks"),
    [
        (0, 4, 4),
        (4 * TASK_BYTES, 4, 4),
        (4 * TASK_BYTES + 1, 4, 8),
        (10 * TASK_BYTES, 1, 10),
        (TASK_BYTES, 100, 100),
    ],
)
def test_there_are_as_many_tasks_as_cores_or_a_multiple_of_them(
    total_bytes: int, cores: int, tasks: int
) -> None:
    assert tasks_for([total_bytes, 0, 0], cores) == tasks
