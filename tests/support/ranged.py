"""The contents of a changelog without a server: versions, holds and delays at a clock that the test moves, and the
plans, folds and rewrites that a compactor would do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.kinds.changelog import planning
from flight_server.kinds.changelog.compaction import Fold, Rewrite, Work
from flight_server.kinds.changelog.contents import Contents
from flight_server.kinds.changelog.deletes import tombstones
from flight_server.kinds.changelog.planning import Amounts, FoldPlan, RewritePlan, plan_files, plan_left_over, plan_memory
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import Layout, MemoryRun, Run, RunWriter, Updates
from flight_server.kinds.changelog.timeline import Timeline
from flight_server.kinds.changelog.views import View, ViewPart
from flight_server.memory import MemoryPool
from flight_server.protocol import KeepRule
from tests.support.keep_model import SCHEMA, Row, rows_of
from tests.support.run_rows import run_folder

DELETED = 0
"""The diff of a delete, whose row is a key."""


@dataclass
class Going:
    work: Work
    steps: Iterator[int]
    in_memory: bool
    alone: bool


class Ranged:
    """One changelog. ``versions``: what was put, by version."""

    def __init__(self, directory: Path, keep: dict[str, Any] | None, delay: float, schema: pa.Schema = SCHEMA) -> None:
        self.directory = directory
        self.spec = None if keep is None else KeepRule.parse(keep)
        self.layout = Layout(schema, self.spec)
        self.rule = make_rule(self.spec, self.layout.schema)
        self.contents = Contents.empty(self.layout)
        self.delay = delay
        self.now = 1000.0
        self.timeline = Timeline(delay, 0, self.now)
        self.since = self.upper = 0
        self.holds: dict[str, int] = {}
        self.going: list[Going] = []
        self.read_rows = 0
        self.files = 0
        self.waited_since: float | None = None
        self.last_put = self.now
        self.pool = MemoryPool(None)
        self.folder = run_folder(directory, self.pool)

    # What happens

    def put(self, rows: list[Row], diffs: list[int]) -> int:
        columns = [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(self.layout.schema)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)
        return self.commit(Updates.of(self.layout, batch, np.zeros(len(rows), np.int64), np.array(diffs, np.int64)))

    def delete(self, keys: list[Row]) -> int:
        schema = self.layout.key_schema
        columns = [pa.array([key[number] for key in keys], field.type) for number, field in enumerate(schema)]
        return self.commit(tombstones(self.layout, [pa.RecordBatch.from_arrays(columns, schema=schema)], "log"))

    def commit(self, updates: Updates) -> int:
        self.upper += 1
        versions = np.full(len(updates), self.upper)
        updates = Updates(self.layout, updates.rows, updates.hashes, versions, updates.diffs)
        if len(updates) > planning.MEMORY_ROWS:
            writer = self.new_file()
            writer.add(updates)
            runs: list[Run] = [writer.finish()]
        else:
            runs = [MemoryRun(updates, self.upper, self.upper, self.pool.empty())] if len(updates) else []
        self.contents = self.contents.committed(runs)
        self.timeline.add(self.upper, self.now)
        self.last_put = self.now
        return self.upper

    def new_file(self) -> RunWriter:
        self.files += 1
        return RunWriter(self.folder, self.layout)

    def hold(self, name: str, version: int) -> None:
        assert version >= self.since
        self.holds[name] = version

    @property
    def wanted(self) -> int:
        horizon = min(self.timeline.horizon(self.now), self.upper)
        return max(self.since, min([horizon, *self.holds.values()]))

    def begin(self, *, short: bool = False) -> bool:
        """Begin what is due; whether there is something."""
        if len(self.going) == 2 or any(each.alone for each in self.going):
            return True
        amounts = Amounts(self.contents, self.wanted, self.rule)
        amounts.count()
        memory = files = None
        if not any(each.in_memory for each in self.going):
            memory = plan_memory(amounts, 0, short=short)
        if all(each.in_memory for each in self.going):
            files = plan_files(amounts)
            if files is None and not self.going and memory is None:
                if self.waited_since is None:
                    self.waited_since = self.now
                if self.now >= self.waited_since + max(self.delay, 0.5):
                    files = plan_left_over(amounts, idle=self.now - self.last_put > 2 * max(self.delay, 0.5))
                    self.waited_since = None
        for plan in (memory, files):
            if plan is not None and not (plan.alone and self.going) and not any(each.alone for each in self.going):
                self.start(plan)
        return bool(self.going)

    def start(self, plan: FoldPlan | RewritePlan) -> None:
        make = self.new_file if plan.to_file else None
        work: Work
        if isinstance(plan, FoldPlan):
            self.since = self.wanted
            work = Fold(self.contents, plan.first, plan.last, self.since, self.rule, make, self.pool)
        else:
            work = Rewrite(self.contents, plan.runs, make, self.pool)
        self.going.append(Going(work, work.steps(), plan.in_memory, plan.alone))

    def step(self, number: int = 0) -> bool:
        """Do a slice; whether the work is ready to be published."""
        rows = next(self.going[number].steps, None)
        self.read_rows += rows or 0
        return rows is None

    def publish(self, number: int = 0) -> None:
        work = self.going[number].work
        for rows in self.going[number].steps:
            self.read_rows += rows
        work.catch_up(self.contents)
        self.contents = work.published(self.contents)
        del self.going[number]

    def work(self) -> None:
        """Until nothing is due now."""
        while self.begin():
            self.publish()

    def go(self, seconds: float, step: float = 0.25) -> None:
        end = self.now + seconds
        while self.now < end:
            self.work()
            self.now = min(end, self.now + step)
        self.work()

    # What there is

    def view(self) -> View:
        return View(self.layout, self.rule, self.contents, self.since, self.upper)

    def snapshot(self, version: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        part = ViewPart()
        while part.left:
            part = self.view().snapshot_part(version, part, None, 1 << 30)
            assert part.rows is not None
            found.update(rows_of(part.rows))
        return found

    def deltas(self, after: int, upto: int) -> dict[Row, int]:
        found: dict[Row, int] = {}
        part = ViewPart()
        while part.left:
            part = self.view().deltas_part(after, upto, part, None, 1 << 30)
            assert part.rows is not None
            for *row, diff in rows_of(part.rows):
                assert tuple(row) not in found
                found[tuple(row)] = diff
        return found
