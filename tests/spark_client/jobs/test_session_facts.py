"""How many tasks read a number of bytes, and what an executor's container has beyond its heap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_client.jobs import overhead_bytes
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


@pytest.mark.parametrize(
    ("settings", "expected_mib"),
    [
        ({}, 384),
        ({"memory": "8g"}, 819),
        ({"memory": "4096", "memoryOverheadFactor": "0.5"}, 2048),
        ({"memory": "8g", "memoryOverhead": "1000"}, 1000),
        ({"memoryOverhead": "3g"}, 3072),
    ],
)
def test_an_executors_overhead_is_reckoned_as_spark_does(settings: dict[str, str], expected_mib: int) -> None:
    class Conf:
        @staticmethod
        def get(name: str) -> str:
            value = settings.get(name.removeprefix("spark.executor."))
            if value is None:
                raise PySparkException("no such setting")
            return value

    session: Any = SimpleNamespace(conf=Conf)
    assert overhead_bytes(session) // MIB == expected_mib
