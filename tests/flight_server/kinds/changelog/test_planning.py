"""How many rows a changelog has, how often they are rewritten, how many runs there are: a model of size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog import planning
from flight_server.kinds.changelog.planning import FAN_IN, Plan, plan_files, plan_memory
from flight_server.kinds.changelog.runs import Run
from tests.support.examples import examples
from tests.support.simulated_sizes import ROWS_A_SECOND, InFile, InMemory, Simulation

DELAYS = 3
"""A few."""


class Watched:
    """Lets a simulation go on in small steps, and checks its size at each."""

    def __init__(self, simulation: Simulation, *, check: bool = True) -> None:
        self.simulation = simulation
        self.horizons: list[tuple[float, int]] = []
        self.most = 0
        self.worst = 0.0
        self.check = check

    def go(self, seconds: float) -> None:
        end = self.simulation.clock.now + seconds
        while (left := end - self.simulation.clock.now) > 1e-9:
            self.simulation.pass_time(min(left, 0.25))
            self.look()

    def look(self) -> None:
        simulation, changelog = self.simulation, self.simulation.changelog
        now = simulation.clock.now
        self.horizons.append((now, changelog.advanced_since(now)))
        assert len(simulation.compactor._later) <= 4
        self.most = max(self.most, simulation.rows)
        # What was merged meanwhile could not be merged again: a merge of everything takes its time.
        patience = DELAYS * max(changelog.delay_seconds, 1.0) + 2 * self.most / ROWS_A_SECOND
        before = max((since for when, since in self.horizons if when <= now - patience), default=0)
        recent = sum(1 for update in simulation.history if update[2] > before)
        recent += planning.FILE_ROWS // 4  # fewer old rows may wait until earlier merges of too few are paid
        if simulation.rows <= recent:
            return
        # What was retracted meanwhile was needed before, and is merged no sooner than what came meanwhile.
        needed = max(map(simulation.needed_rows, (before, changelog.advanced_since(now))))
        assert simulation.rows <= 2 * needed + recent, (
            f"{simulation.rows} rows for {needed} and {recent} of the last delays, in "
            f"{[(type(run).__name__, run.rows, run.since) for run in changelog.runs]}"
        )


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    with closing(Simulation(monkeypatch, 1.0)) as found:
        yield found


def burst(simulation: Simulation, rows: int, keys: int) -> None:
    simulation.assert_keys([number % keys for number in range(rows)])


def test_the_end_of_a_hold_lets_go_what_it_kept(simulation: Simulation) -> None:
    watched = Watched(simulation)
    burst(simulation, 300, 10)
    simulation.changelog.holds.put("reader", 1, 1e12, taken=0.0)
    for _ in range(20):
        burst(simulation, 100, 10)
        watched.go(1.0)
    assert simulation.rows > 2000
    said = simulation.changelog.statistics()
    assert said["waits_for"].startswith("hold 'reader'")
    assert said["garbage_rows"] > 1500
    simulation.changelog.holds.release(["reader"])
    simulation.changelog.wake()
    assert simulation.changelog.statistics()["waits_for"] == "rows"
    watched.go(30.0)
    assert simulation.rows == 10
    said = simulation.changelog.statistics()
    assert (said["garbage_rows"], said["waits_for"]) == (0, "nothing")


def test_rows_that_are_taken_back_as_others_come_leave_those_that_are_not(simulation: Simulation) -> None:
    """A query feeds back nine of ten rows after three delays; each row is a key of its own, as without a rule."""
    watched = Watched(simulation)
    for number in range(50 + 30):
        if number < 50:
            simulation.put([(10 * number + each, 1, 1) for each in range(10)])
        if number >= 30:
            simulation.put([(10 * (number - 30) + each, 1, -1) for each in range(9)])
        watched.go(0.1)
    watched.go(30.0)
    assert simulation.rows == 50


def test_files_are_merged_while_memory_has_always_something_to_merge(simulation: Simulation) -> None:
    watched = Watched(simulation)
    for number in range(300):
        burst(simulation, 4 if number % 20 else 200, 40)
        watched.go(0.05)
    files = sum(isinstance(run, InFile) for run in simulation.changelog.runs)
    assert files <= 2 * FAN_IN


def test_keys_that_each_come_once_are_rewritten_a_few_times(simulation: Simulation) -> None:
    """As often as there are size classes, and each of these once more by merges of all runs."""
    watched, rows = Watched(simulation), 0
    for number in range(50):
        simulation.assert_keys(list(range(40 * number, 40 * number + 40)))
        rows += 40
        watched.go(0.1)
    assert simulation.rows == rows
    assert simulation.read <= 20 * rows, "the amortised cost"


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
)


def happen(watched: Watched, kind: str, many: int, keys: int) -> None:
    simulation, holds = watched.simulation, watched.simulation.changelog.holds
    if kind == "burst":
        burst(simulation, many, keys)
    elif kind == "silence":
        watched.go(many)
    elif kind == "hold":
        holds.put("reader", simulation.changelog.upper, 1e12, taken=0.0)
    elif kind == "release":
        holds.release(["reader"])
        simulation.changelog.wake()
    else:
        write(watched, kind, many, keys)


def write(watched: Watched, kind: str, many: int, keys: int) -> None:
    simulation = watched.simulation
    if kind == "trickle":
        for number in range(many):
            simulation.assert_keys([number % keys])
            watched.go(0.1)
    elif kind == "writers":
        for number in range(20):
            for writer in range(many):
                simulation.assert_keys([(number * many + writer + each) % keys for each in range(5)])
                watched.go(0.02)
    elif kind == "retract":
        simulation.put([(key, row, -1) for key, row in simulation.there()[:: many if many < 100 else 1]])
    elif kind == "change":
        for key, row in simulation.there()[:many]:
            simulation.top[key] = row + 1
            simulation.put([(key, row, -1), (key, row + 1, 1)])
            watched.go(0.02)
    else:
        rows = [(10_000 + number, 1) for number in range(many)]
        simulation.put([(*row, -1) for row in rows])
        watched.go(keys)
        simulation.put([(*row, 1) for row in rows])


@example([("burst", 1500, 20), ("trickle", 40, 20)], 1.0)
@example([("burst", 1500, 20), ("trickle", 1, 1)], 1.0)
@example([("burst", 300, 300), ("silence", 3, 0), ("retract", 100, 0)], 1.0)
@example([("burst", 300, 300), ("silence", 3, 0), ("retract", 2, 0)], 1.0)
@example([("burst", 300, 300), ("silence", 3, 0), *[("retract", 5, 0)] * 4], 1.0)
@given(st.lists(phases, min_size=2, max_size=7), st.sampled_from([0.0, 1.0, 5.0]))
@settings(
    max_examples=examples(0.1),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)
def test_rows_are_at_most_twice_those_that_are_needed_and_those_of_the_last_delays(
    happenings: list[tuple[str, int, int]], delay_seconds: float
) -> None:
    with pytest.MonkeyPatch.context() as patch, closing(Simulation(patch, delay_seconds)) as simulation:
        watched = Watched(simulation)
        for kind, many, keys in happenings:
            happen(watched, kind, many, keys)
            watched.go(0.25)
        watched.go(DELAYS * max(delay_seconds, 1.0))
        committed = len(simulation.history)
        seconds = simulation.clock.now - simulation.began
        slow = seconds * simulation.slow_rows
        assert simulation.read <= 25 * committed + slow, f"{committed} rows cost {simulation.read}"
        simulation.changelog.holds.release(["reader"])
        simulation.changelog.wake()
        watched.go(30 + 4 * committed / simulation.slow_rows)
        # Fewer where a row was retracted after the delay: the one before it is gone.
        assert simulation.rows <= simulation.needed_rows(simulation.changelog.upper), (
            "silence leaves what is needed"
        )
        assert simulation.compactor.due_in() is None


def test_memory_goes_to_a_file_when_memory_is_short_the_records_have_many_rows_or_there_is_much() -> None:
    few: list[Run] = [InMemory([(1, 1, 5, 1)], 5, 5), InMemory([(1, 2, 6, 1)], 6, 6)]
    written = Plan(tuple(few), to_file=True)

    def planned(runs: list[Run], records_bytes: int = 0, *, short: bool = False) -> Plan | None:
        return plan_memory(runs, 0, records_bytes, short=short, slow=False, files_busy=True)

    assert planned(few) is None
    assert planned([], short=True) is None
    assert planned(few, short=True) == written
    assert planned(few, planning.RECORDS_BYTES + 1) == written
    much = [InMemory([(1, 1, 5, 1)] * (planning.MEMORY_ROWS + 1), 5, 5)]
    assert planned([*much]) == Plan(tuple(much), to_file=True)


def test_newer_files_wait_for_the_memory_before_them() -> None:
    files: list[Any] = [
        InFile([(1, 1, version, 1)] * 3, version, version) for version in range(2, 2 + FAN_IN)
    ]
    between: Run = InMemory([(1, 1, 1, 1)], 1, 1)
    found = plan_memory([between, *files], 0, 0, short=False, slow=False, files_busy=False)
    assert found == Plan((between,), to_file=True)
    assert plan_files([between, *files], 0, slow=False) is None
    assert plan_files(files, 0, slow=False) == Plan(tuple(files), to_file=True)
