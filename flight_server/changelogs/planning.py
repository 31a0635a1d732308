"""Planning: which neighbouring runs of a changelog are merged next.

Guarantee: each row is rewritten a number of times that grows with the logarithm of the rows, and the runs together
have at most about ``1 + IDLE_SHARE`` times the rows that one run would have, once writes pause.

The rule
    From the newest run backwards, a run joins the others if it has at most ``RATIO`` times their rows together. They
    are merged when there are ``FAN_IN`` of them. So runs grow in size classes of powers of ``FAN_IN``, as in an LSM
    tree with size-tiered compaction (O'Neil and others, "The log-structured merge-tree", 1996).

Memory and files
    Runs in memory are merged with their neighbours in memory, and files with files. A group of memory runs becomes a
    file when it is large, when the log is, when memory is short, or when a merge of newer files waits for it: the
    state file names runs up to one version only (``journal``, "Covering").

Pauses
    When nothing was committed for ``delay_seconds``, and half a second at least, what is left is merged: all if it is
    small, else what has at least ``IDLE_SHARE`` of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from flight_server.runs import MemoryRun, Run

FAN_IN = 4
RATIO = 2
IDLE_SHARE = 1 / 8
SMALL_ROWS = 256 << 10
MEMORY_ROWS = 64 << 10
MEMORY_BYTES = 8 << 20
LOG_BYTES = 8 << 20


@dataclass(frozen=True)
class Plan:
    """Runs to merge, neighbours from oldest to newest. ``to_file``: the result leaves memory."""

    runs: tuple[Run, ...]
    to_file: bool

    @property
    def of_files(self) -> bool:
        """Whether the runs are files: a merge of those can be resumed."""
        return not isinstance(self.runs[0], MemoryRun)


def plan(runs: Sequence[Run], log_bytes: int, *, idle: bool, settled: bool, short: bool) -> Plan | None:
    """The next merge; None if none is due.

    Args:
        log_bytes: of all logs.
        idle: see "Pauses" in the module's text.
        settled: the last merge left nothing to compact.
        short: memory is short.
    """
    groups = [tuple(group) for _, group in groupby(runs, lambda run: isinstance(run, MemoryRun))]
    memory = [group for group in groups if isinstance(group[0], MemoryRun)]
    if memory and (short or log_bytes > LOG_BYTES or any(map(_is_large, memory))):
        return Plan(memory[0], to_file=True)
    if memory and (tier := _tier(memory[-1])) is not None:
        return Plan(tier, to_file=False)
    files = groups[0] if groups and not isinstance(groups[0][0], MemoryRun) else ()
    newer_files = [group for group in groups[1:] if not isinstance(group[0], MemoryRun)]
    if newer_files and sum(map(len, newer_files)) >= FAN_IN:
        return Plan(memory[0], to_file=True)  # so that they become neighbours of the first files
    if files and (tier := _tier(files)) is not None:
        return Plan(tier, to_file=True)
    if not idle or settled:
        return None
    return _rest(runs, memory, files)


def _rest(runs: Sequence[Run], memory: list[tuple[Run, ...]], files: tuple[Run, ...]) -> Plan | None:
    rows = sum(run.rows for run in runs)
    largest = max((run.rows for run in runs), default=0)
    if rows > SMALL_ROWS and len(runs) > 1 and rows - largest < IDLE_SHARE * rows:
        return None
    if len(memory) == 1 and len(memory[0]) == len(runs):
        return Plan(memory[0], to_file=False)
    if memory:
        return Plan(memory[0], to_file=True)
    return Plan(files, to_file=True) if files else None


def _tier(group: tuple[Run, ...]) -> tuple[Run, ...] | None:
    rows = 0
    for number, run in enumerate(reversed(group)):
        if rows and run.rows > RATIO * rows:
            return group[len(group) - number :] if number >= FAN_IN else None
        rows += max(1, run.rows)
    return group if len(group) >= FAN_IN else None


def _is_large(group: tuple[Run, ...]) -> bool:
    return sum(run.rows for run in group) > MEMORY_ROWS or sum(run.size_bytes for run in group) > MEMORY_BYTES
