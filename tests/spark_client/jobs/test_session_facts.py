"""How many tasks read a number of bytes, and what an executor's container has beyond its heap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_client.jobs import overhead_bytes, settings_once, spark_setting
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


class Session:
    """What the driver asks of one; counts the trips. ``tells``: whether it tells all that is set in one of them."""

    def __init__(self, *, tells: bool) -> None:
        self.settings = {"spark.sql.shuffle.partitions": "7"}
        self.trips = 0
        self.conf = SimpleNamespace(get=self._get)
        if tells:
            whole = SimpleNamespace(toString=self._whole)
            state = SimpleNamespace(conf=lambda: SimpleNamespace(settings=lambda: whole))
            self._jsparkSession = SimpleNamespace(sessionState=lambda: state)

    def _get(self, name: str) -> str:
        self.trips += 1
        try:
            return self.settings[name]
        except KeyError:
            raise PySparkException("no such setting") from None

    def _whole(self) -> str:
        self.trips += 1
        return str(self.settings)


NAMES = ("spark.sql.shuffle.partitions", "spark.sql.caseSensitive")


def read_all(session: Any, times: int = 1) -> list[str]:
    return [spark_setting(session, name) for _ in range(times) for name in NAMES]


def test_a_setting_is_read_once_in_a_block_and_each_time_outside_of_blocks() -> None:
    session: Any = Session(tells=False)
    with settings_once(session):
        assert read_all(session, 3) == ["7", "false"] * 3
        session.settings[NAMES[0]] = "8"
        with settings_once(session):
            assert read_all(session) == ["7", "false"]
    assert session.trips == 2
    assert read_all(session) == ["8", "false"]
    with settings_once(session):
        assert read_all(session, 2) == ["8", "false"] * 2
    assert session.trips == 6


def test_values_of_earlier_blocks_hold_as_long_as_nothing_else_is_set() -> None:
    session, other = Session(tells=True), Session(tells=True)
    both: list[Any] = [session, other]
    for each in both:
        with settings_once(each):
            assert read_all(each) == ["7", "false"]
    session.trips = 0
    with settings_once(both[0]):
        assert read_all(both[0], 5) == ["7", "false"] * 5
        assert session.trips == 1
        assert read_all(both[1]) == ["7", "false"], "another session's are not of the block"
    assert other.trips == 9
    for name, value in ((NAMES[0], "9"), (NAMES[1], "true")):
        session.settings[name] = value
        with settings_once(both[0]):
            assert read_all(both[0]) == [session.settings[NAMES[0]], session.settings.get(NAMES[1], "false")]


def test_an_error_in_a_block_ends_it() -> None:
    session: Any = Session(tells=True)
    with pytest.raises(KeyError), settings_once(session):
        spark_setting(session, "spark.no.such.setting")
    session.settings[NAMES[0]] = "8"
    assert read_all(session) == ["8", "false"]


def test_a_block_is_one_threads() -> None:
    session: Any = Session(tells=False)
    with settings_once(session), ThreadPoolExecutor(1) as pool:
        read_all(session)
        session.settings[NAMES[0]] = "8"
        assert pool.submit(read_all, session).result() == ["8", "false"]
