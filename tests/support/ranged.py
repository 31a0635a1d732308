"""The contents of a changelog without a server: versions, holds and delays at a clock that the test moves, and the
plans, folds and rewrites that a compactor would do, in no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.kinds.changelog import compactor, planning
from flight_server.kinds.changelog.compaction import Fold, Rewrite, Work
from flight_server.kinds.changelog.contents import Contents
from flight_server.kinds.changelog.folding import compacted
from flight_server.kinds.changelog.planning import Amounts, Plan, plan_left_over, plans
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import Layout, MemoryRun, Run, RunFile, Updates
from flight_server.kinds.changelog.timeline import Timeline
from flight_server.kinds.changelog.views import View, ViewPart
from flight_server.memory import MemoryPool
from flight_server.protocol import KeepRule
from flight_server.records import BegunFold
from tests.support.run_rows import run_folder

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}

CLOSED = 1_000_000
UNTIL_CLOSED = {
    "rule": "until_closed",
    "key": ["key"],
    "closed_by": {"time": CLOSED},
    "keep": {"rule": "latest", "order_by": ["time"]},
}

Change = tuple[int, int | None, int]
"""A key, its time, and the diff; of a delete the time is None, and the diff ``DELETE``."""


class Ranged:
    """One changelog.

    Args:
        delay_seconds: of the changelog.
        keep: its rule.
    """

    def __init__(self, directory: Path, delay_seconds: float, keep: dict[str, Any] = LATEST) -> None:
        spec = KeepRule.parse(keep)
        self.layout = Layout(SCHEMA, spec)
        self.rule = make_rule(spec, SCHEMA)
        self.contents = Contents.empty(self.layout)
        self.delay_seconds = delay_seconds
        self.now = 1000.0
        self.timeline = Timeline(delay_seconds, 0, self.now)
        self.patience = self.timeline.patience_seconds
        self.since = self.upper = 0
        self.held: int | None = None
        self.history: list[tuple[int, Change]] = []
        self._puts: list[Updates] = []
        self._needed: dict[int, int] = {}
        self.top: Counter[int] = Counter()  # the time of each key's last row
        self.read_rows = 0
        self._slow_at = 0.0
        self._pool = MemoryPool(None)
        self._folder = run_folder(directory, self._pool)

    # What happens

    def put(self, changes: Sequence[Change]) -> None:
        """Commit them as one version."""
        self.upper += 1
        self.history += [(self.upper, change) for change in changes]
        keys, times, diffs = ([change[place] for change in changes] for place in range(3))
        columns = [pa.array(keys, pa.int64()), pa.array(times, pa.int64())]
        rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        updates = Updates.of(self.layout, rows, np.full(len(changes), self.upper), np.array(diffs, np.int64))
        self._puts.append(updates)
        self.contents = self.contents.committed(self._runs(updates))
        self.timeline.add(self.upper, self.now)

    def _runs(self, updates: Updates) -> list[Run]:
        if len(updates) > planning.MEMORY_ROWS:
            file = self._new_file()
            file.add(updates)
            return [file.finish()]
        return [MemoryRun(updates, self._pool.empty())] if len(updates) else []

    def assert_keys(self, keys: list[int]) -> None:
        """Put a newer row of each of these keys, which may repeat."""
        changes = []
        for key in keys:
            self.top[key] += 1
            changes.append((key, self.top[key], 1))
        self.put(changes)

    def go(self, seconds: float, step: float = 0.25) -> None:
        end = self.now + seconds
        self.work()
        while self.now < end - 1e-9:
            self.now = min(end, self.now + step)
            self.work()

    def work(self) -> None:
        """All that is due now."""
        while (plan := self._plan()) is not None:
            new_file = self._new_file if plan.to_file else None
            work: Work
            if plan.ranges is None:
                work = Rewrite(self.contents, plan.runs, new_file, self._pool)
            else:
                self.since = self.horizon
                first, last = (self.contents.bases.ranges[place] for place in plan.ranges)
                begun = BegunFold(self.upper, self.since, first.low, last.high)
                work = Fold(self.contents, begun, self.rule, new_file, self._pool)
            self.read_rows += sum(work.steps)
            self.contents = work.published(self.contents)

    @property
    def horizon(self) -> int:
        """The version up to which compaction may go."""
        found = min(self.timeline.horizon(self.now), self.upper)
        return max(self.since, found if self.held is None else min(found, self.held))

    def _plan(self) -> Plan | None:
        amounts = Amounts(self.contents, self.horizon, self.rule)
        amounts.count()
        memory, files = plans(amounts, 0)
        if memory is not None or files is not None:
            return memory or files
        plan = plan_left_over(amounts, self.timeline.waited(self.now))
        if plan is None or self.now < self._slow_at:
            return None
        self._slow_at = self.now + plan.cost_rows / compactor.SLOW_ROWS
        return plan

    def _new_file(self) -> RunFile:
        return RunFile.make(self._folder, self.layout)

    # What there is

    @property
    def rows(self) -> int:
        return self.contents.rows

    def shown(self, version: int) -> dict[int, int]:
        """The time of each key's greatest row, of all that were put."""
        counts: Counter[tuple[int, int]] = Counter()
        for at, (key, time, diff) in self.history:
            if at <= version and time is not None:
                counts[key, time] += diff
        return dict(sorted(row for row, count in counts.items() if count > 0))

    def needed_rows(self, version: int) -> int:
        """How many rows one fold of everything up to a version would leave."""
        if version not in self._needed:
            puts = Updates.joined(self.layout, self._puts[:version])
            self._needed[version] = len(compacted(puts, version, self.rule))
        return self._needed[version]

    def read(self) -> dict[int, int]:
        """What readers see at the newest version."""
        view = View(self.layout, self.rule, self.contents, self.upper)
        found: dict[int, int] = {}
        part = ViewPart()
        while part.left:
            part = view.part(None, self.upper, part)
            assert part.rows is not None
            found |= zip(*(column.to_pylist() for column in part.rows.columns), strict=True)
        return found
