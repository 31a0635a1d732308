"""Planning: which neighbouring runs of a changelog are merged next.

Guarantee: within a few delays, and a second at least, the runs have at most twice the rows that one run would have,
and those that were committed meanwhile, with any pattern of writes, holds and retractions. A row is rewritten a
number of times that grows with the logarithm of the rows. ``tests/…/test_planning.py`` has the model of both.

Old rows
    A row is *old* if its version is at most ``since``, up to which compaction may go, and no merge that began with the
    oldest run has found it needed (``Run.since``). An old row may be garbage, and may make garbage of others.

Whole merges
    The runs from the oldest one to the last that is half old are merged when their old rows weigh as much as the
    others. A row weighs ``1 + 2 n`` where a key has ``n`` rows: at worst each old row is a retraction, goes itself and
    takes the rows of its key with it. So garbage never exceeds half of the rows, and old rows have paid for all rows
    that a whole merge reads; each is old once. The cost of a merge beside its rows counts as ``MERGE_ROWS`` or
    ``FILE_ROWS``.

    Old rows below that weight are merged when they have waited (``slow``; the compactor decides when), with all runs
    that have old rows, so that nothing is left for ever, also where keys have very different numbers of rows. This
    costs ``compactor.SLOW_ROWS`` a second, so up to ``FILE_ROWS / 4`` old rows may wait longer than a few delays.

Tiers
    From the newest run backwards, a run joins the others if it has at most ``RATIO`` times their rows together. They
    are merged when there are ``FAN_IN`` of them. So runs grow in size classes of powers of ``FAN_IN``, as in an LSM
    tree with size-tiered compaction (O'Neil and others, "The log-structured merge-tree", 1996), and readers find few.

Memory and files
    Runs in memory are merged with their neighbours in memory, and files with files; one merge of each goes on at a
    time, so a long merge of files delays none in memory. A group of memory runs becomes a file when it is large, when
    the records have many bytes of rows that no file has, when memory is short, or when a merge of files waits for it:
    for its old rows, or because it lies between files (merged files have all versions up to one, and no others:
    ``merges``, "Covering").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .holds import HeldBack
from .runs import MemoryRun, Run

FAN_IN = 4
RATIO = 2
MAX_ROWS_OF_A_KEY = 4
"""A key counts as at most so many rows, so that a row is not rewritten more often in merges of all runs."""
MERGE_ROWS = 1 << 10
FILE_ROWS = 64 << 10
MEMORY_ROWS = 64 << 10
MEMORY_BYTES = 8 << 20
RECORDS_BYTES = 8 << 20

Runs = tuple[Run, ...]


@dataclass(frozen=True)
class Plan:
    """Runs to merge, neighbours from oldest to newest. ``to_file``: the result leaves memory."""

    runs: Runs
    to_file: bool

    @property
    def of_files(self) -> bool:
        """Whether the runs are files."""
        return not isinstance(self.runs[0], MemoryRun)


def plan_memory(
    runs: Sequence[Run], since: int, records_bytes: int, *, short: bool, slow: bool, files_busy: bool
) -> Plan | None:
    """The next merge of memory runs; None if none is due.

    Args:
        since: the version up to which compaction may go.
        records_bytes: of the rows in the records that no file has.
        short: memory is short.
        slow: see "Whole merges".
        files_busy: files are being merged.
    """
    groups = _groups(runs)
    memory = memory_groups(runs)
    if not memory:
        return None
    flush = Plan(memory[0], to_file=True)
    if short or records_bytes > RECORDS_BYTES or any(map(_is_large, memory)):
        return flush
    if sum(len(group) for group in groups[1:] if not isinstance(group[0], MemoryRun)) >= FAN_IN:
        return flush  # so that they become neighbours of the first files
    whole = _old_runs(runs, since, slow=slow)
    if all(isinstance(run, MemoryRun) for run in whole):
        if _is_due(whole, since, slow=slow):
            return Plan(whole, to_file=False)
    elif not files_busy and _is_due(whole, since, slow=slow) and plan_files(runs, since, slow=slow) is None:
        return flush
    tier = _tier(memory[-1])
    return None if tier is None else Plan(tier, to_file=False)


def plan_files(runs: Sequence[Run], since: int, *, slow: bool) -> Plan | None:
    """The next merge of files, none of which is being merged; None if none is due. Arguments as of plan_memory."""
    files = next(iter(_groups(runs)), ())
    if not files or isinstance(files[0], MemoryRun):
        return None
    whole = _old_runs(files, since, slow=slow)
    if _is_due(whole, since, slow=slow):
        return Plan(whole, to_file=True)
    tier = _tier(files)
    return None if tier is None else Plan(tier, to_file=True)


def old_rows(runs: Sequence[Run], since: int) -> int:
    """How many rows are old; see "Old rows"."""
    old = sum(run.rows_upto(since) for run in runs if run.first_version <= since)
    return old - (runs[0].rows_upto(min(since, runs[0].since)) if runs else 0)


def cost_rows(plan: Plan) -> int:
    """The cost of a merge, as rows that it reads."""
    beside = FILE_ROWS if plan.to_file else MERGE_ROWS
    return beside + sum(run.rows for run in plan.runs)


def memory_groups(runs: Sequence[Run]) -> list[Runs]:
    """The neighbouring runs in memory, from oldest to newest."""
    return [group for group in _groups(runs) if isinstance(group[0], MemoryRun)]


def _old_runs(runs: Sequence[Run], since: int, *, slow: bool) -> Runs:
    enough = 0 if slow else 1 / 2
    old = [
        place
        for place, run in enumerate(runs, 1)
        if (upto := run.rows_upto(since)) and upto >= enough * run.rows
    ]
    return tuple(runs[: max(old, default=0)])


def _is_due(whole: Runs, since: int, *, slow: bool) -> bool:
    old = old_rows(whole, since)
    if not old or slow:
        return bool(old)
    rows_of_a_key = max(1, min(MAX_ROWS_OF_A_KEY, whole[0].rows // max(1, whole[0].keys)))
    in_memory = all(isinstance(run, MemoryRun) for run in whole)
    return (2 + 2 * rows_of_a_key) * old >= cost_rows(Plan(whole, to_file=not in_memory))


def _groups(runs: Sequence[Run]) -> list[Runs]:
    return [tuple(group) for _, group in groupby(runs, lambda run: isinstance(run, MemoryRun))]


def _tier(group: Runs) -> Runs | None:
    rows = 0
    for number, run in enumerate(reversed(group)):
        if rows and run.rows > RATIO * rows:
            return group[len(group) - number :] if number >= FAN_IN else None
        rows += max(1, run.rows)
    return group if len(group) >= FAN_IN else None


def _is_large(group: Runs) -> bool:
    return sum(run.rows for run in group) > MEMORY_ROWS or sum(run.size_bytes for run in group) > MEMORY_BYTES


def waiting(
    runs: Sequence[Run], horizon: int, since: int, held: HeldBack | None, *, merging: bool, fuel_rows: int
) -> dict[str, Any]:
    """How many rows may be garbage, and why no merge takes them yet, for ``statistics``.

    Args:
        horizon: the version up to which compaction would go without holds.
        since: that up to which it may go now.
        held: the hold that compaction waits for.

    Returns:
        ``garbage_rows``: at most so many rows, of those older than the delay, are not needed. ``waits_for``: what the
        next merge of them waits for: ``nothing`` (there are none), ``merge`` (one goes on), ``fuel``, ``delay`` (all
        rows that may be garbage are younger), ``rows`` (there are so few that it waits for more, some seconds at most),
        or the hold and its owner.
    """
    garbage, free = old_rows(runs, horizon), old_rows(runs, since)
    if merging:
        waits_for = "merge" if fuel_rows > 0 else "fuel"
    elif held is not None and garbage > free:
        waits_for = str(held)
    elif free:
        waits_for = "rows"
    else:
        waits_for = "delay" if any(run.last_version > horizon for run in runs) else "nothing"
    return {"garbage_rows": garbage, "waits_for": waits_for}
