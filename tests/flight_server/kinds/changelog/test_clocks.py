"""A host's clock that is wrong for a while: delays and leases do not follow it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flight_server.kinds.changelog.timeline import STEPS, Timeline
from flight_server.protocol import HoldRequest
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine

DAY_SECONDS = 86_400.0
SCHEMA = pa.schema([("key", pa.string()), ("time", pa.int64())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}


@contextmanager
def a_day_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + DAY_SECONDS)
        yield


def hold(engine: Engine, name: str) -> float:
    """How long its lease is still."""
    request = HoldRequest(NAME, name, lease_seconds=60.0)
    answer = engine.run(engine.store.hold(engine.catalogue.find(NAME), request, anyone(engine.catalogue)))
    return float(answer["lease_left_seconds"])


def horizon(engine: Engine) -> int:
    """How far compaction may go."""
    return engine.changelog.advanced_since(time.monotonic())


def test_a_clock_that_was_a_day_ahead_for_one_commit_does_not_stop_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(("a", 1), 1)])
        with a_day_ahead(monkeypatch):
            engine.commit([(("a", 2), 1)])
        assert engine.commit([(("a", 3), 1)]) == horizon(engine) == 3


def test_a_restart_takes_no_time_for_later_than_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine, a_day_ahead(monkeypatch):
        engine.commit([(("a", 1), 1)])
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert horizon(engine) == 1


def test_a_clock_that_is_put_forward_ends_no_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(("a", 1), 1)])
        assert hold(engine, "reader") == pytest.approx(60.0, abs=30.0)
        engine.commit([(("a", 2), 1)])
        with a_day_ahead(monkeypatch):
            engine.store.expire_holds()
        assert engine.changelog.holds.oldest() == 1


@given(
    st.lists(st.tuples(st.floats(-0.5, 3), st.booleans()), max_size=60), st.sampled_from([0.0, 1.0, 1000.0])
)
@example([(0.9, True)], 1.0)
def test_the_horizon_is_old_enough_and_at_most_two_steps_behind(
    waits: list[tuple[float, bool]], delay_seconds: float
) -> None:
    timeline, now, last = Timeline(delay_seconds, 3, 100.0), 100.0, 100.0
    commits = [(100.0, 3)]
    horizons = [0]
    for version, (wait, look) in enumerate(waits, 4):
        now += wait
        last = max(last, now)
        timeline.add(version, now)
        commits.append((last, version))
        assert timeline.last == last
        if look:
            horizon = timeline.horizon(last)
            behind_seconds = 2 * delay_seconds / STEPS
            assert horizon <= max((v for t, v in commits if t <= last - delay_seconds), default=0)
            assert horizon >= max(
                (v for t, v in commits if t <= last - delay_seconds - behind_seconds), default=0
            )
            horizons.append(horizon)
    assert horizons == sorted(horizons)
    assert timeline.horizon(last + delay_seconds + 1.0) == commits[-1][1]


@given(st.lists(st.floats(0, 1), max_size=40), st.sampled_from([0.0, 0.1, 1.0, 5.0]), st.floats(0, 10))
def test_a_version_has_waited_once_it_was_old_for_as_long_as_the_delay_or_half_a_second(
    waits: list[float], delay_seconds: float, later: float
) -> None:
    timeline, now = Timeline(delay_seconds, 0, 100.0), 100.0
    commits = [(100.0, 0)]
    for version, wait in enumerate(waits, 1):
        now += wait
        timeline.add(version, now)
        commits.append((now, version))
    waited, due = timeline.waited(now + later), now + later - delay_seconds - max(0.5, delay_seconds)
    assert waited <= max((v for t, v in commits if t <= due), default=0)
    behind_seconds = 2 * delay_seconds / STEPS
    assert waited >= max((v for t, v in commits if t <= due - behind_seconds), default=0)
    assert waited <= timeline.horizon(now + later)
