"""How many tasks read a number of bytes."""

from __future__ import annotations

import pytest

from spark_client.jobs.session_facts import SplitSizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("total_bytes", "parallelism", "tasks"),
    [
        (0, 4, 1),
        (4 * MIB, 4, 1),
        (12 * MIB, 4, 3),
        (100 * MIB, 4, 4),
        (600 * MIB, 4, 8),
        (128_000 * MIB, 2, 1000),
        (129 * MIB, 1, 2),
    ],
)
def test_tasks_are_enough_for_the_target_and_the_cores_and_not_too_small(
    total_bytes: int, parallelism: int, tasks: int
) -> None:
    assert SplitSizes(parallelism=parallelism).tasks(total_bytes) == tasks
