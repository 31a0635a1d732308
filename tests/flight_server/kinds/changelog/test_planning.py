"""How many rows a changelog has, how often they are rewritten, how many runs there are, with constants that are a
thousandth of the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog import compaction, compactor, planning
from flight_server.kinds.changelog.planning import FAN_IN, Amounts, plans
from flight_server.kinds.changelog.runs import DELETE, MemoryRun, run_files
from tests.support.examples import examples
from tests.support.ram_directory import ram_directory
from tests.support.ranged import CLOSED, LATEST, UNTIL_CLOSED, Ranged

DELAYS = 4
"""A few."""
SCALE = 1024


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in [
        *((planning, name) for name in ("FILE_ROWS", "MEMORY_ROWS")),
        (compaction, "RANGE_ROWS"),
        (compactor, "SLOW_ROWS"),
    ]:
        monkeypatch.setattr(module, name, getattr(module, name) // SCALE)
    monkeypatch.setattr(run_files, "RECOUNT_SECONDS", 0.0)


@pytest.fixture
def directory() -> Iterator[Path]:
    with ram_directory() as path:
        yield path


class Watched(Ranged):
    """Checks its size at each step."""

    def __init__(self, directory: Path, delay_seconds: float, keep: dict[str, Any] = LATEST) -> None:
        super().__init__(directory, delay_seconds, keep)
        self._horizons: list[tuple[float, int]] = []
        self._most = 0

    def work(self) -> None:
        super().work()
        self._horizons.append((self.now, self.horizon))
        self._most = max(self._most, self.rows)
        # Folds of too few old rows wait until the earlier ones are paid.
        patience = DELAYS * self.patience + 2 * self._most / compactor.SLOW_ROWS
        before = max((since for when, since in self._horizons if when <= self.now - patience), default=0)
        recent = sum(version > before for version, _ in self.history)
        if self.rows <= recent + planning.FILE_ROWS:
            return
        # What was retracted meanwhile was needed before, and is folded no sooner than what came meanwhile.
        left = self.rows - recent - planning.FILE_ROWS
        meanwhile = {since for _, since in self._horizons if since > before}
        assert any(left <= 2 * self.needed_rows(version) for version in (before, self.horizon, *meanwhile)), (
            f"{self.rows} rows, {recent} of the last delays: {self.contents.bases.range_rows}, "
            f"{[run.rows for run in self.contents.recent]}"
        )


def burst(of: Watched, rows: int, keys: int) -> None:
    of.assert_keys([number % keys for number in range(rows)])


def test_the_end_of_a_hold_lets_go_what_it_kept(directory: Path) -> None:
    of = Watched(directory, 1.0)
    burst(of, 300, 10)
    of.held = 1
    for _ in range(20):
        burst(of, 100, 10)
        of.go(1.0)
    assert of.rows > 2000
    of.held = None
    of.go(5.0)
    assert of.rows == 10


def test_rows_that_are_taken_back_as_others_come_leave_those_that_are_not(directory: Path) -> None:
    """A query feeds back nine of ten rows after three delays; each row is a key of its own."""
    of = Watched(directory, 1.0)
    for number in range(50 + 30):
        if number < 50:
            of.put([(10 * number + each, 1, 1) for each in range(10)])
        if number >= 30:
            of.put([(10 * (number - 30) + each, 1, -1) for each in range(9)])
        of.go(0.1)
    of.go(10.0)
    assert of.rows == 50


def test_there_are_few_recent_runs_while_there_is_always_something_to_fold(directory: Path) -> None:
    of, most = Watched(directory, 1.0), 0
    for number in range(200):
        burst(of, 4 if number % 20 else 200, 40)
        of.go(0.05)
        most = max(most, len(of.contents.recent))
    assert most <= 4 * FAN_IN


def test_keys_that_each_come_once_are_rewritten_a_few_times_and_lie_in_ranges(directory: Path) -> None:
    of = Watched(directory, 1.0)
    for number in range(50):
        of.assert_keys(list(range(40 * number, 40 * number + 40)))
        of.go(0.1)
    assert of.read_rows <= 10 * 2000, "the amortised cost"
    of.go(60.0)
    assert of.rows == 2000
    ranges = of.contents.bases.ranges
    assert len(ranges) >= 2000 // (2 * compaction.RANGE_ROWS)
    assert all(each.rows <= 2 * compaction.RANGE_ROWS for each in ranges)
    assert of.read() == dict.fromkeys(range(2000), 1)


def test_ranges_whose_rows_have_gone_become_one(directory: Path) -> None:
    of = Watched(directory, 1.0)
    of.put([(key, 1, 1) for key in range(2000)])
    of.go(10.0)
    assert len(of.contents.bases.ranges) > 10
    for start in range(20):
        of.put([(key, 1, -1) for key in range(start, 1980, 20)])
        of.go(2.0)
    of.go(10.0)
    assert of.rows == 20
    assert len(of.contents.bases.ranges) < 5


def test_the_cost_of_a_row_does_not_grow_with_the_rows_that_there_are(directory: Path) -> None:
    costs = []
    for keys in (500, 8000):
        (directory / str(keys)).mkdir()
        of = Ranged(directory / str(keys), 1.0)
        of.put([(key, 0, 1) for key in range(keys)])
        of.go(20.0)
        before = of.read_rows
        for _ in range(100):
            of.assert_keys(list(range(30)))
            of.go(0.1)
        costs.append((of.read_rows - before) / 3000)
    assert costs[1] <= 2 * costs[0]


@pytest.mark.parametrize("late", [0, 1, 5, 20], ids="{} late rows".format)
@pytest.mark.parametrize("ends", ["closed", "deleted"])
def test_keys_of_many_rows_that_end_are_folded_while_late_rows_come(
    directory: Path, late: int, ends: str
) -> None:
    keys, rows, delay_seconds = 10, 1000, 10.0
    of = Ranged(directory, delay_seconds, UNTIL_CLOSED)
    of.put([(key, time, 1) for key in range(keys) for time in range(rows)])
    of.go(20 * delay_seconds, 1.0)
    assert [each.rows for each in of.contents.bases.ranges if each.rows] == [rows] * keys
    of.put([(key, CLOSED, 1) if ends == "closed" else (key, None, DELETE) for key in range(keys)])
    for number in range(2 * DELAYS):
        of.go(delay_seconds / 2, delay_seconds / 4)
        if late:
            of.put([((number + each) % keys, 1, 1) for each in range(late)])
    assert of.rows <= 2 * 2 * keys + 2 * DELAYS * late + planning.FILE_ROWS


def test_dead_rows_are_counted_while_a_hold_keeps_others_of_their_file(directory: Path) -> None:
    """A burst in one version, and a trickle of which a hold keeps nearly all, lie in one file."""
    of = Ranged(directory, 10.0)
    of.put([(number % 10, number, 1) for number in range(600)])
    for number in range(60):
        of.put([(number % 10, 1000 + number, 1)])
        of.held = 5 if number == 5 else of.held
    of.go(100.0, 1.0)
    assert of.rows <= of.needed_rows(5) + of.upper - 5 + planning.FILE_ROWS


def test_few_old_rows_of_many_ranges_are_folded_in_one_round_once_nothing_comes(directory: Path) -> None:
    of = Ranged(directory, 100.0)
    of.put([(key, 1, 1) for key in range(2000)])
    of.go(1000.0, 50.0)
    assert len(of.contents.bases.ranges) > 10
    of.put([(key, 2, 1) for key in range(0, 2000, 20)])
    of.go(2 * 100.0 + 2 * of.rows / compactor.SLOW_ROWS, 1.0)
    assert not of.contents.recent
    assert of.rows == 2000


phases = st.one_of(
    st.tuples(st.just("burst"), st.sampled_from([50, 300, 1500]), st.sampled_from([1, 20, 300, 1500])),
    st.tuples(st.just("trickle"), st.sampled_from([5, 40]), st.sampled_from([1, 20, 1500])),
    st.tuples(st.just("writers"), st.integers(2, 4), st.sampled_from([1, 300])),
    st.tuples(st.just("silence"), st.sampled_from([1, 3, 30]), st.just(0)),
    st.tuples(st.just("hold"), st.just(0), st.just(0)),
    st.tuples(st.just("release"), st.just(0), st.just(0)),
    st.tuples(st.just("retract"), st.sampled_from([2, 5, 100]), st.just(0)),
    st.tuples(st.just("change"), st.sampled_from([5, 100]), st.just(0)),
    st.tuples(st.just("retract first"), st.sampled_from([5, 100]), st.sampled_from([0, 3])),
    st.tuples(st.just("bids"), st.sampled_from([50, 1000]), st.sampled_from([1, 5])),
    st.tuples(st.just("close"), st.sampled_from([1, 3, 20]), st.just(0)),
    st.tuples(st.just("delete"), st.sampled_from([1, 3, 20]), st.just(0)),
)


def happen(of: Watched, kind: str, many: int, keys: int) -> None:
    if kind == "burst":
        burst(of, many, keys)
    elif kind == "silence":
        of.go(many)
    elif kind == "hold":
        of.held = of.upper
    elif kind == "release":
        of.held = None
    else:
        write(of, kind, many, keys)


def write(of: Watched, kind: str, many: int, keys: int) -> None:
    if kind == "trickle":
        for number in range(many):
            of.assert_keys([number % keys])
            of.go(0.1)
    elif kind == "writers":
        for number in range(20):
            for writer in range(many):
                of.assert_keys([(number * many + writer + each) % keys for each in range(5)])
                of.go(0.02)
    elif kind == "bids":
        of.put([(20_000 + key, time, 1) for key in range(keys) for time in range(many)])
    elif kind in {"close", "delete"}:
        ended = sorted(of.shown(of.upper), reverse=True)[:many]
        of.put([(key, CLOSED, 1) if kind == "close" else (key, None, DELETE) for key in ended])
    elif kind == "retract":
        of.put([(key, at, -1) for key, at in list(of.shown(of.upper).items())[:: many if many < 100 else 1]])
    elif kind == "change":
        for key, at in list(of.shown(of.upper).items())[:many]:
            of.top[key] = at + 1
            of.put([(key, at, -1), (key, at + 1, 1)])
            of.go(0.02)
    else:
        rows = [(10_000 + number, 1) for number in range(many)]
        of.put([(*row, -1) for row in rows])
        of.go(keys)
        of.put([(*row, 1) for row in rows])


@example([("burst", 1500, 20), ("trickle", 40, 20)], 1.0, LATEST)
@example([("burst", 300, 300), ("silence", 3, 0), ("retract", 2, 0)], 1.0, LATEST)
@example([("burst", 300, 300), ("silence", 3, 0), *[("retract", 5, 0)] * 4], 1.0, LATEST)
@example([("bids", 1000, 5), ("silence", 30, 0), ("close", 20, 0), ("trickle", 40, 20)], 1.0, UNTIL_CLOSED)
@example([("bids", 1000, 5), ("hold", 0, 0), ("close", 3, 0), ("silence", 30, 0)], 1.0, UNTIL_CLOSED)
@example(
    [("retract first", 100, 3), ("hold", 0, 0), *[("burst", 50, 1)] * 6, ("silence", 3, 0), ("burst", 50, 1)],
    5.0,
    LATEST,
)
@example(
    [
        ("retract first", 100, 3),
        ("burst", 50, 1),
        ("hold", 0, 0),
        ("burst", 50, 1),
        ("retract first", 100, 3),
        ("burst", 50, 1),
        ("close", 1, 0),
    ],
    5.0,
    UNTIL_CLOSED,
)
@given(
    st.lists(phases, min_size=2, max_size=7),
    st.sampled_from([0.0, 1.0, 5.0]),
    st.sampled_from([LATEST, UNTIL_CLOSED]),
)
@settings(
    max_examples=examples(0.1),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)
def test_rows_are_at_most_twice_those_that_are_needed_and_those_of_the_last_delays(
    happenings: list[tuple[str, int, int]], delay_seconds: float, keep: dict[str, Any]
) -> None:
    with ram_directory() as directory:
        of = Watched(directory, delay_seconds, keep)
        for kind, many, keys in happenings:
            happen(of, kind, many, keys)
            of.go(0.25)
        of.go(DELAYS * of.patience)
        slow = (of.now - 1000.0) * compactor.SLOW_ROWS
        assert of.read_rows <= 15 * len(of.history) + slow, f"{len(of.history)} rows cost {of.read_rows}"
        of.held = None
        of.go(20 + 4 * len(of.history) / compactor.SLOW_ROWS, 1.0)
        # Fewer where a row was retracted after the delay: the one before it is gone.
        assert of.rows <= of.needed_rows(of.upper), "silence leaves what is needed"
        assert not of.contents.recent or of.contents.bases.rows == of.rows


@pytest.mark.parametrize(("short", "records_bytes"), [(True, 0), (False, planning.RECORDS_BYTES + 1)])
def test_memory_goes_to_a_file_when_it_is_short_or_the_records_have_much(
    directory: Path, short: bool, records_bytes: int
) -> None:
    of = Ranged(directory, 1.0)
    for _ in range(2):
        of.assert_keys([1, 2])
    for is_short in (False, short):
        amounts = Amounts(of.contents, 0, of.rule, free=0.0 if is_short else 1.0)
        amounts.count()
        assert is_short or plans(amounts, 0) == (None, None)
    found, _ = plans(amounts, records_bytes)
    assert found is not None
    assert (found.runs, found.to_file) == (of.contents.recent, True)
    assert all(isinstance(run, MemoryRun) for run in found.runs)
