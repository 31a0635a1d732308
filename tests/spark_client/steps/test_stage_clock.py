"""The seconds inside each stage of a task."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_client.arrow import Declared
from spark_client.steps import READING, MapStage, Pass, StageClock, run, stage_clock

SCHEMA = pa.schema([("n", pa.int64())])


class Time:
    """A clock that only stages move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(stage_clock, "perf_counter", time)
    return time


def batches(time: Time, count: int, seconds: float) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        time.now += seconds
        yield pa.record_batch([pa.array([number])], schema=SCHEMA)


def stage(time: Time, name: str, before: float, each: float, after: float) -> MapStage:
    """It takes so long before its first batch, for each one, and after the last."""

    def fn(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.now += before
        for batch in given:
            time.now += each
            yield batch
        time.now += after

    return MapStage(fn, Declared(name, SCHEMA))


def test_each_stage_has_its_own_seconds_without_those_before_it_and_after_it(time: Time) -> None:
    clock = StageClock()
    stages = [stage(time, "first", 5, 1, 7), stage(time, "second", 100, 10, 1000)]
    for _ in run(stages, batches(time, 3, 0.5), Pass(clock=clock)):
        time.now += 10_000  # what the task does with a batch is no stage's
    assert clock.seconds == {READING: 1.5, "first": 15.0, "second": 1130.0}


def test_stages_that_are_left_early_or_fail_are_counted_and_their_input_is_closed(time: Time) -> None:
    clock, closed = StageClock(), []

    def source() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches(time, 3, 1)
        finally:
            closed.append(True)

    rows = run([stage(time, "a", 0, 2, 0)], source(), Pass(clock=clock))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert clock.seconds == {READING: 1.0, "a": 2.0}

    def failing(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.now += 4
        next(given)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(run([MapStage(failing, Declared("b", SCHEMA))], source(), Pass(clock=clock)))
    assert clock.seconds == {READING: 2.0, "a": 2.0, "b": 4.0}


def test_without_a_clock_nothing_is_counted(time: Time) -> None:
    assert sum(1 for _ in run([stage(time, "a", 0, 1, 0)], batches(time, 3, 1))) == 3
