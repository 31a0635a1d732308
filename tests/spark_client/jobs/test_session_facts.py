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


class Session:
    """What the driver asks of one; counts the trips, and those that end with an error."""

    def __init__(self, **settings: str) -> None:
        self.settings = {"spark.sql.shuffle.partitions": "7", **settings}
        self.trips = self.errors = 0
        self.conf = SimpleNamespace(get=self._get)

    def _get(self, name: str, default: str | None = None) -> str:
        self.trips += 1
        value = self.settings.get(name, default)
        if value is None:
            self.errors += 1
            raise PySparkException("no such setting")
        return value


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
    session: Any = Session(**{f"spark.executor.{name}": value for name, value in settings.items()})
    assert overhead_bytes(session) // MIB == expected_mib


NAMES = ("spark.sql.shuffle.partitions", "spark.sql.caseSensitive")


def read_all(session: Any, times: int = 1) -> list[str]:
    return [spark_setting(session, name) for _ in range(times) for name in NAMES]


def test_a_setting_is_read_once_in_a_block_and_each_time_outside_of_blocks() -> None:
    session: Any = Session()
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


class ClassicSession(Session):
    """One of Spark Classic, whose JVM tells all settings at once; that trip counts, too."""

    def __init__(self) -> None:
        super().__init__()
        settings = SimpleNamespace(toString=self._text)
        conf = SimpleNamespace(settings=lambda: settings)
        self._jsparkSession = SimpleNamespace(sessionState=lambda: SimpleNamespace(conf=lambda: conf))

    def _text(self) -> str:
        self.trips += 1
        return str(self.settings)


def test_a_later_block_of_spark_classic_reads_settings_again_after_a_change_only() -> None:
    session: Any = ClassicSession()
    for _ in range(3):
        with settings_once(session):
            assert read_all(session, 2) == ["7", "false"] * 2
    assert session.trips == 1 + 2 + 1 + 2
    session.settings["spark.app.name"] = "another"
    session.settings[NAMES[0]] = "8"
    for _ in range(2):
        with settings_once(session):
            assert read_all(session) == ["8", "false"]
    assert session.trips == 6 + 1 + 2 + 1 + 1


def test_what_a_block_of_spark_classic_reads_after_a_change_stays_in_the_block() -> None:
    session: Any = ClassicSession()
    with settings_once(session):
        read_all(session)
    with settings_once(session):
        spark_setting(session, NAMES[0])
        session.settings["spark.sql.timestampType"] = "TIMESTAMP_NTZ"
        assert spark_setting(session, "spark.sql.timestampType") == "TIMESTAMP_NTZ"
        session.settings["spark.sql.timestampType"] = "TIMESTAMP_LTZ"
    with settings_once(session):
        assert spark_setting(session, "spark.sql.timestampType") == "TIMESTAMP_LTZ"


def test_a_setting_that_spark_does_not_know_is_an_error_once_and_counts_when_it_is_set() -> None:
    session, other = Session(), Session()
    both: list[Any] = [session, other]
    for _ in range(3):
        with settings_once(both[0]):
            assert read_all(both[0]) == ["7", "false"]
            assert read_all(both[1]) == ["7", "false"], "another session's are not of the block"
    assert (session.errors, other.errors) == (1, 1)
    session.settings[NAMES[1]] = "true"
    assert read_all(both[0]) == ["7", "true"]


def test_an_error_in_a_block_ends_it() -> None:
    session: Any = Session()
    with pytest.raises(KeyError), settings_once(session):
        spark_setting(session, "spark.no.such.setting")
    session.settings[NAMES[0]] = "8"
    assert read_all(session) == ["8", "false"]


def test_a_block_is_one_threads() -> None:
    session: Any = Session()
    with settings_once(session), ThreadPoolExecutor(1) as pool:
        read_all(session)
        session.settings[NAMES[0]] = "8"
        assert pool.submit(read_all, session).result() == ["8", "false"]
