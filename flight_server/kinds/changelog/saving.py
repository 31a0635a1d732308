"""Saving: writes a changelog's state file, and deletes the logs and runs that it replaces (``journal``).

The callers hold the changelog's ``turn``.
"""

from __future__ import annotations

from concurrent.futures import Executor

from flight_server.concurrency import in_thread

from .changelog import Changelog
from .journal import StateRecord, stored_hold
from .runs import LogFile, MemoryRun, Run, RunFile
from .timeline import wall_time

KEPT_DISK_PARTS = 8
"""While there is a changelog, one part in so many of the disk limit is kept for work that makes room: see the next
three.
"""
OF_KEPT_FOR_DELETES = 0.5
OF_KEPT_FOR_MERGES = 0.75
OF_KEPT_FOR_HOLDS = 1.0
"""The share that each may take of it: deletes leave room for the merges that they need, and both for the ends
of holds.
"""


def state_of(changelog: Changelog, runs: tuple[Run, ...] | None = None) -> StateRecord:
    """The state file's contents, with these runs or its own."""
    runs = changelog.runs if runs is None else runs
    covered = _covered(runs, changelog.upper)
    files = [
        (run.path.name, run.version)
        for run in runs
        if isinstance(run, RunFile) and run.last_version <= covered
    ]
    declared = changelog.declared
    first_log = next((log for last, log in changelog.logs if last > covered), changelog.log)
    return StateRecord(
        declared.dataset,
        declared.generation,
        declared.schema,
        declared.keep,
        declared.delay_seconds,
        declared.lease_seconds,
        changelog.since,
        covered,
        wall_time(changelog.timeline.last),
        _number(first_log),
        files,
        {name: stored_hold(hold) for name, hold in changelog.holds.named.items()},
        changelog.holds.lapsed,
        changelog.transactions.entries(),
        changelog.transactions.forgotten,
    )


def rotate(changelog: Changelog, runs: tuple[Run, ...]) -> None:
    """Let a new log take the next appends if these runs cover the present one."""
    if changelog.logs[-1][0] <= _covered(runs, changelog.upper):
        next_log(changelog)


def next_log(changelog: Changelog) -> None:
    """Let a new log take the next appends, unless nothing is in the present one. A ``suspect`` one has to be the last:
    it may end in the middle of an entry.
    """
    log = changelog.log
    if log.size_bytes and not log.suspect:
        changelog.new_log(_number(log) + 1)


async def begin_log(changelog: Changelog, threads: Executor) -> None:
    """Let a new log take the next appends, if the runs cover the present one. Takes the turn. Cancelling is safe.
    Raises DiskTrouble, Forgotten or DatasetDropped.
    """
    async with changelog.turn:
        changelog.step("merge")
        rotate(changelog, changelog.runs)
        state = state_of(changelog)
        await in_thread(threads, save, changelog, state)
        await in_thread(threads, delete_covered, changelog, (), state.covered)


def save(changelog: Changelog, state: StateRecord) -> None:
    """Replace the state file, and delete the files that an earlier one may have named. Blocks. Raises DiskTrouble,
    Forgotten.
    """
    changelog.save(state)
    doubtful, changelog.doubtful = changelog.doubtful, []
    for run in doubtful:
        run.delete()


def delete_covered(changelog: Changelog, runs: tuple[Run, ...], covered: int) -> None:
    """Delete the files that the state file no longer names, and the logs of covered versions. Blocks."""
    for run in runs:
        if isinstance(run, RunFile):
            run.delete()
    left = []
    for last, log in changelog.logs[:-1]:
        if last <= covered:
            log.delete()
        else:
            left.append((last, log))
    changelog.logs = [*left, changelog.logs[-1]]


def _covered(runs: tuple[Run, ...], upper: int) -> int:
    """See ``journal``: the version before the first update that is in memory only."""
    first = next((run.first_version for run in runs if isinstance(run, MemoryRun)), None)
    return upper if first is None else first - 1


def _number(log: LogFile) -> int:
    return int(log.path.name.removeprefix("log-"))
