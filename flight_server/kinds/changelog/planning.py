"""Planning: which ranges of a changelog are folded next, and which recent runs are rewritten (``compaction``).

Guarantee: within a few delays the stored rows are at most twice those that one fold of everything would leave, and
those that were committed meanwhile, with any pattern of writes, holds and retractions; and ``FILE_ROWS``. A row is
rewritten a number of times that grows with the logarithm of the rows. ``tests/…/test_planning.py`` has the model.

Old rows
    A row of a recent run is *old* in its range if its version is at most ``since``, up to which compaction may go, and
    above that of the range: it may be garbage, and may make garbage of others.

Folds
    A range is due when its old rows outweigh all of its rows. An old row weighs 3: itself, the dead row that it leaves
    in a recent run, and the row that it replaces. It weighs 2 more if it goes itself together with that one, as a
    retraction does, or the row that a retraction in the base waits for. What ends a key (a tombstone, a closing row)
    weighs twice the key's rows in the base, which are counted. So garbage never exceeds half of the rows, and the old
    rows have paid for all that a fold reads; each is old once. The cost of a fold beside its rows counts as
    ``FILE_ROWS`` for all ranges together.

    Old rows below that weight are folded when they have waited (``timeline``) and outweigh themselves and the base, or
    if all recent rows have waited. The range that was folded longest ago comes first, so that a small one, which costs
    little, never keeps others from being folded.

    The fold with the greatest weight for its cost comes first. It takes neighbours of its range along while all have at
    most ``RANGE_ROWS`` together.

Rewrites
    Recent runs of about the same size, each at most ``RATIO`` times the smaller ones together, become one when there
    are ``FAN_IN`` of them, as in an LSM tree with size-tiered compaction (O'Neil and others, "The log-structured
    merge-tree", 1996), so readers find few. If more rows of the files are dead than not, and ``FILE_ROWS`` beside
    that unless they have waited, all files are rewritten; of runs in memory likewise.

Memory and files
    While all rows are few, and half of memory is free, the base of all is there. Recent runs in memory become one
    file when they are large, when the records have many bytes of rows that no base and no file has, or when memory is
    short; a base in memory goes to a file then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flight_server.keys import unique

from . import compaction
from .contents import Contents
from .rules import Rule
from .runs import Counts, MemoryRun, Run

FAN_IN = 4
RATIO = 2
SORTED_PARTS = 8
"""Rows of runs become one run in this part of the time that unsorted rows take."""
FILE_ROWS = 8 << 10
MEMORY_ROWS = 64 << 10
MEMORY_BYTES = 8 << 20
BASE_BYTES = 1 << 20
"""A base in memory is at most so large, because each fold writes it to the records."""
RECORDS_BYTES = 8 << 20
MANY_FILES = 24
"""If recent runs are more files, they are rewritten before ranges are folded."""


@dataclass(frozen=True)
class Plan:
    """Work that is due: a fold of the ranges from the first place to the last, or a rewrite of recent runs, all in
    memory or all files. ``cost_rows``: as rows that it reads.
    """

    ranges: tuple[int, int] | None = None
    runs: tuple[Run, ...] = ()
    to_file: bool = True
    cost_rows: int = 0

    @property
    def in_memory(self) -> bool:
        """Whether it is a rewrite of runs in memory."""
        return self.ranges is None and all(isinstance(run, MemoryRun) for run in self.runs)


class Amounts:
    """How many rows each range has, and of which kind, once they are counted. ``since``: compaction may go so far;
    ``free``: the part of memory that is free; 0: it is short.
    """

    def __init__(self, contents: Contents, since: int, rule: Rule, *, free: float = 1.0) -> None:
        self.contents = contents
        self.since = since
        self.free = free
        self._rule = rule
        self.base = contents.bases.range_rows
        self.alive = np.zeros_like(self.base)
        self.old = np.zeros_like(self.base)
        self.weights = np.zeros_like(self.base)
        self.alive_of: dict[Run, int] = {}
        self.recount_at = math.inf  # when large files are counted again

    def count(self) -> None:
        """Count. Blocks, if there are files. Raises Damaged, OSError."""
        bases, rule = self.contents.bases, self._rule
        ends_keys = (
            (lambda updates: rule.ends_keys(updates.rows) & (updates.diffs > 0))
            if rule.may_end_keys
            else None
        )
        question = Counts(bases.lows, bases.sinces, self.since, ends_keys)
        ending = []
        for run in self.contents.recent:
            counts = run.counts(question)
            self.alive_of[run] = int(counts.alive.sum())
            self.alive += counts.alive
            self.old += counts.old
            self.weights += 3 * counts.old + 2 * (counts.old if rule.any_update_counts else counts.retracting)
            ending.append(counts.ending)
            self.recount_at = min(self.recount_at, counts.recount_at or math.inf)
        waiting = [0 if each.base is None else each.base.retractions for each in bases.ranges]
        self.weights += 2 * np.minimum(self.old, waiting)
        hashes = unique(*ending)
        np.add.at(self.weights, bases.numbers_of(hashes), 2 * bases.counts_of(hashes))

    @property
    def files(self) -> tuple[Run, ...]:
        return tuple(run for run in self.contents.recent if not isinstance(run, MemoryRun))

    @property
    def in_memory(self) -> tuple[Run, ...]:
        return tuple(run for run in self.contents.recent if isinstance(run, MemoryRun))

    @property
    def of_memory(self) -> bool:
        """Whether the base of all rows may be in memory."""
        rows, size_bytes = int(self.base.sum() + self.alive.sum()), self.contents.size_bytes
        return self.free > 0.5 and rows <= MEMORY_ROWS and size_bytes <= BASE_BYTES

    def fold(self, *, waited: int = 0) -> Plan | None:
        """The next fold, if one is due. ``waited``: the version up to which rows have waited."""
        bases, count, of_memory = self.contents.bases, len(self.base), self.of_memory
        rows = self.base + self.alive
        beside = FILE_ROWS // count
        costs = rows + beside
        due = (self.weights >= costs) & (self.old > 0)
        slow = (bases.sinces < waited) & (self.weights >= self.base + self.old)
        all_waited = all(run.last_version <= waited for run in self.contents.recent)
        left_over = (slow | all_waited) & (self.old > 0)
        if due.any():
            first = int(np.argmax(np.where(due, self.weights / np.maximum(1, costs), -1.0)))
        elif left_over.any():
            first = int(np.argmin(np.where(left_over, bases.sinces, self.since + 1)))
        else:
            return None
        if of_memory:
            return Plan((0, count - 1), to_file=False, cost_rows=int(rows.sum()) + beside)
        last, most = first, compaction.range_rows(self.contents)
        total = int(rows[first])
        while last + 1 < count and total + rows[last + 1] <= most:
            last += 1
            total += int(rows[last])
        while first > 0 and total + rows[first - 1] <= most:
            first -= 1
            total += int(rows[first])
        return Plan((first, last), cost_rows=total + beside)


def plans(amounts: Amounts, records_bytes: int) -> tuple[Plan | None, Plan | None]:
    """The next work on runs in memory; and the next fold, or work on files. ``records_bytes``: of rows that no base
    and no file has.
    """
    runs, fold = amounts.in_memory, amounts.fold()
    large = sum(run.rows for run in runs) > MEMORY_ROWS or sum(run.size_bytes for run in runs) > MEMORY_BYTES
    if records_bytes > (RECORDS_BYTES if runs else 0) or (runs and (not amounts.free or large)):
        memory: Plan | None = Plan(runs=runs)
    else:
        memory = _rewrite(runs, amounts.alive_of, 0)
    if not amounts.free and amounts.contents.bases.in_memory:
        return memory, Plan((0, 0))
    if fold is not None and len(amounts.files) <= MANY_FILES:
        return memory, fold
    return memory, _rewrite(amounts.files, amounts.alive_of, FILE_ROWS) or fold


def few_runs(contents: Contents) -> list[Run]:
    """Recent runs in memory, of one size, that become one in a millisecond, if they are many."""
    few = contents.bases.layout.are_few
    rows_of: dict[Run, int] = {
        run: run.rows
        for run in contents.recent
        if isinstance(run, MemoryRun) and few(run.rows // SORTED_PARTS, run.size_bytes // SORTED_PARTS)
    }
    return _tier(list(rows_of), rows_of)[: 2 * FAN_IN] if len(rows_of) >= FAN_IN else []


def plan_left_over(amounts: Amounts, waited: int) -> Plan | None:
    """The work on old rows that are too few for any other. ``waited``: as of :meth:`Amounts.fold`."""
    return amounts.fold(waited=waited) or _rewrite(amounts.files, amounts.alive_of, 0)


def _rewrite(runs: Sequence[Run], alive_of: dict[Run, int], dead_rows: int) -> Plan | None:
    """The rewrite of runs of which more is dead, and beside that so many rows, or of those of one size."""
    alive = sum(alive_of[run] for run in runs)
    dead = sum(run.rows for run in runs) - alive
    chosen: Sequence[Run] = runs
    if not dead or (alive and dead <= alive + dead_rows):
        chosen = _tier(runs, alive_of)
    if not chosen:
        return None
    to_file = not isinstance(chosen[0], MemoryRun)
    cost_rows = sum(alive_of[run] for run in chosen) + (FILE_ROWS if to_file else 0)
    return Plan(runs=tuple(chosen), to_file=to_file, cost_rows=cost_rows)


def _tier(runs: Sequence[Run], rows_of: dict[Run, int]) -> list[Run]:
    tier: list[Run] = []
    rows = 0
    for run in sorted(runs, key=lambda run: rows_of[run]):
        if tier and rows_of[run] > RATIO * rows:
            if len(tier) >= FAN_IN:
                break
            tier, rows = [], 0
        tier.append(run)
        rows += max(1, rows_of[run])
    return tier if len(tier) >= FAN_IN else []
