"""A changelog of simulated runs: the real plans, compactor, holds and delays, at a clock that the test moves.

Rows are numbers of keys, and merges do what a rule ``latest`` lets them do. Limits: nothing is on disk, all sizes are
a thousandth of the real ones, and a merge takes a time that follows from its rows.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from flight_server.kinds.changelog import changelog as changelogs
from flight_server.kinds.changelog import compactor as compactors
from flight_server.kinds.changelog import planning
from flight_server.kinds.changelog.changelog import Changelog
from flight_server.kinds.changelog.compactor import Compactor
from flight_server.kinds.changelog.planning import Plan
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import MemoryRun, Updates
from flight_server.memory import MemoryPool, Metadata
from flight_server.records import ChangelogRecords, Declared, NoDatabase
from tests.support.clocks import Clock
from tests.support.run_rows import latest

SCALE = 1024
STEP_ROWS = 64
ROWS_A_SECOND = 1_000
EMPTY = Updates.empty(latest())

Update = tuple[int, int, int, int]
"""Key, number of the row (a greater one wins), version, diff."""


class Facts:
    """What planning asks of a run, from its updates."""

    updates: Any
    since: int
    tombstones = retractions = 0

    def take(self, updates: list[Update]) -> None:
        self.updates, self.rows, self.size_bytes = updates, len(updates), 10 * len(updates)

    @cached_property
    def _versions(self) -> list[int]:
        return sorted(version for _, _, version, _ in self.updates)

    @cached_property
    def keys(self) -> int:
        return len({key for key, *_ in self.updates})

    def rows_upto(self, version: int) -> int:
        return bisect_right(self._versions, version)


class InMemory(Facts, MemoryRun):
    def __init__(self, updates: list[Update], first: int, last: int, since: int = 0) -> None:
        MemoryRun.__init__(self, EMPTY, first, last, MemoryPool(None).reserve(0), since=since)
        self.take(updates)


class InFile(Facts):
    def __init__(self, updates: list[Update], first: int, last: int, since: int = 0) -> None:
        self.first_version, self.last_version, self.since = first, last, since
        self.take(updates)


@dataclass
class Hooked:
    """Pokes the compactor."""

    compactor: Compactor

    def wake(self, changelog: Changelog, *, soon: bool = False) -> None:
        self.compactor.poke(changelog, soon=soon)

    def damaged(self, changelog: Changelog, what: str) -> None:
        raise AssertionError(what)


class Simulation:
    """One changelog; ``close`` at the end.

    Args:
        delay_seconds: of the changelog.
    """

    def __init__(self, patch: pytest.MonkeyPatch, delay_seconds: float) -> None:
        self.clock = Clock()
        for module, name in [
            *((planning, name) for name in ("MERGE_ROWS", "FILE_ROWS", "MEMORY_ROWS")),
            *((compactors, name) for name in ("TICK_ROWS", "SLOW_ROWS")),
        ]:
            patch.setattr(module, name, getattr(module, name) // SCALE)
        patch.setattr(compactors, "time", self.clock)
        patch.setattr(compactors, "Merge", self._merge)
        patch.setattr(changelogs, "time", self.clock)
        self.compactor = Compactor(MemoryPool(None))
        disk = MemoryPool(None)
        nowhere: Any = None
        self.changelog = Changelog(
            Declared("log", "1", b"", None, delay_seconds, None),
            latest(),
            make_rule(None, latest().schema),
            ChangelogRecords(NoDatabase(), disk),
            nowhere,
            metadata=Metadata(),
            max_lag_seconds=1e9,
            hooks=Hooked(self.compactor),
        )
        self.loop = asyncio.new_event_loop()
        self.history: list[Update] = []
        self.top: Counter[int] = (
            Counter()
        )  # the rows that are there now: of each key the number of its greatest
        self.read = 0
        self.began = self.clock.now
        self.slow_rows = compactors.SLOW_ROWS

    def close(self) -> None:
        self.compactor.close()
        self.loop.close()

    # What happens

    def put(self, changes: list[tuple[int, int, int]]) -> None:
        """Commit keys, numbers of rows and diffs as one version."""
        version = self.changelog.upper + 1
        updates = [(key, row, version, diff) for key, row, diff in changes]
        kind = InFile if len(updates) > planning.MEMORY_ROWS else InMemory
        self.history += updates
        runs: list[Any] = [kind(updates, version, version)] if updates else []
        for merge in self.changelog.merges:
            merge.committed(runs)
        self.changelog.published(runs, version, self.clock.now, len(updates))

    def assert_keys(self, keys: list[int]) -> None:
        """Put a newer row of each of these keys, which may repeat."""
        changes = []
        for key in keys:
            self.top[key] += 1
            changes.append((key, self.top[key], 1))
        self.put(changes)

    def pass_time(self, seconds: float) -> None:
        """Let the compactor do what it does in this time."""
        end = self.clock.now + seconds
        while (due_in := self.compactor.due_in()) is not None and self.clock.now + due_in <= end:
            if due_in > 0:
                self.clock.now += max(due_in, 1e-6)
            else:
                self.loop.run_until_complete(self.compactor.look_at_next())
        self.clock.now = max(self.clock.now, end)

    # What there is

    @property
    def rows(self) -> int:
        return self.changelog.rows

    def there(self) -> list[tuple[int, int]]:
        """The rows that readers see now, as key and number."""
        counts: Counter[tuple[int, int]] = Counter()
        for key, row, _, diff in self.history:
            counts[key, row] += diff
        return sorted({key: row for (key, row), count in sorted(counts.items()) if count > 0}.items())

    def needed_rows(self, since: int) -> int:
        """The rows at most this old that one merge of everything would leave."""
        return len(compacted([update for update in self.history if update[2] <= since], since, frozenset()))

    def _merge(self, changelog: Changelog, plan: Plan, since: int) -> SimulatedMerge:
        return SimulatedMerge(self, plan, since)


class SimulatedMerge:
    """Does what ``merges.Merge`` does, as far as sizes go."""

    def __init__(self, simulation: Simulation, plan: Plan, since: int) -> None:
        changelog = simulation.changelog
        self.simulation, self.plan, self.since = simulation, plan, since
        self.of_files = plan.of_files
        self.settles = since if changelog.runs[: len(plan.runs)] == plan.runs else 0
        self.left = sum(run.rows for run in plan.runs)
        self.meanwhile: list[Any] = []
        assert all(run not in merge.plan.runs for merge in changelog.merges for run in plan.runs)
        assert len({isinstance(run, MemoryRun) for run in plan.runs}) == 1
        assert plan.to_file or not plan.of_files
        simulation.read += self.left
        changelog.merges.append(self)

    @property
    def done(self) -> bool:
        return self.left <= 0

    def committed(self, runs: list[Any]) -> None:
        self.meanwhile += runs

    def step(self) -> int:
        rows = max(1, min(STEP_ROWS, self.left))
        self.left -= rows
        self.simulation.clock.now += rows / ROWS_A_SECOND
        return rows

    async def publish(self, threads: object, memory: object) -> None:
        changelog = self.simulation.changelog
        runs: list[Any] = list(self.plan.runs)
        left: list[Any] = [run for run in changelog.runs if run not in runs]
        mine, others = ([update for run in part for update in run.updates] for part in (runs, left))
        retracted = {update[0] for update in [*mine, *others] if update[3] < 0}
        untouched = frozenset(retracted & {update[0] for update in others})
        updates = compacted(mine, self.since, untouched)
        first, last = self.plan.runs[0].first_version, self.plan.runs[-1].last_version
        kind: Any = InFile if self.plan.to_file else InMemory
        changelog.merges.remove(self)
        changelog.replaced(self.plan.runs, [kind(updates, first, last, self.settles)] if updates else [])

    def abandon(self) -> None:
        raise AssertionError("a simulated merge meets no trouble")


def compacted(updates: list[Update], since: int, untouched: frozenset[int]) -> list[Update]:
    """What a merge leaves of these: of each key the greatest row that is there, and what is below zero."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    newest: dict[tuple[int, int], int] = {}
    later: Counter[Update] = Counter()
    for key, row, version, diff in updates:
        if version > since:
            later[key, row, version, 0] += diff
        else:
            counts[key][row] += diff
            newest[key, row] = max(version, newest.get((key, row), 0))
    retracted_later = {(key, row) for (key, row, _, _), diff in later.items() if diff < 0}
    left = [(key, row, version, diff) for (key, row, version, _), diff in later.items() if diff]
    for key, rows in counts.items():
        certain = False  # whether a greater row is there for certain
        for row in sorted(rows, reverse=True):
            awaited = (key, row) in retracted_later
            if rows[row] and (rows[row] < 0 or not certain or awaited or key in untouched):
                left.append((key, row, newest[key, row], rows[row]))
            certain |= rows[row] > 0 and not awaited
    return left
