"""Restoring: what the records have of a changelog, as its state when a server starts.

Guarantee: it has its last acknowledged version, its holds, its transactions and a begun fold. Rows of small puts that
no file has are joined to runs in memory. Nothing is deleted or changed.
"""

from __future__ import annotations

from itertools import zip_longest

from flight_server.datasets import Transactions
from flight_server.memory import MemoryPool, Metadata
from flight_server.records import StoredChangelog, StoredRange, StoredVersions

from .changelog import Changelog
from .contents import Bases, Contents, Range
from .runs import MAX_HASH, Damaged, Layout, MemoryRun, Run, RunFile, Updates, of_block
from .timeline import Timeline, past_time

JOINED_ROWS = 32 << 10
"""Versions are brought back in runs of up to so many rows."""


def restore(changelog: Changelog, stored: StoredChangelog, memory: MemoryPool, metadata: Metadata) -> None:
    """Give an empty changelog its state. Blocks. Raises Damaged, NotAFile, FlightShuffleError, OSError.

    Args:
        memory: of its runs in memory, whose bytes do not count yet (``MemoryRun.count``).
        metadata: counts its transactions.
    """
    files = [_file(changelog, *run) for run in stored.runs]
    changelog.records.restore(stored, files)
    changelog.since = stored.since
    changelog.upper = stored.upper
    changelog.timeline = _timeline(stored)
    changelog.transactions = Transactions(changelog.name, metadata, stored.transactions, stored.forgotten)
    for hold in stored.holds:
        changelog.holds.restore(hold)
    if (fold := stored.fold) is not None:
        if not fold.since <= fold.upto <= stored.upper or fold.low > fold.high:
            raise Damaged("a fold of it cannot have begun")
        changelog.since, changelog.begun = max(stored.since, fold.since), fold
    contents = _contents(changelog.layout, stored.ranges, files, memory)
    changelog.contents = contents.rewritten((), _in_memory(contents.bases, stored.versions, memory))


def _file(changelog: Changelog, name: str, version: int | None, blocks: list[list[int]]) -> RunFile:
    try:
        return RunFile.opened(changelog.folder, changelog.layout, name, version, blocks)
    except (FileNotFoundError, ValueError):  # a name that can be no file's
        raise Damaged(f"{name!r} is missing") from None


def _contents(
    layout: Layout, ranges: list[StoredRange], files: list[RunFile], memory: MemoryPool
) -> Contents:
    if not ranges:
        return Contents.empty(layout).committed(files)
    if ranges[0].low != 0:
        raise Damaged("its first range does not begin with the first hash")
    runs = {file.name: file for file in files}
    restored = []
    for each, following in zip_longest(ranges, ranges[1:]):
        high = MAX_HASH if following is None else following.low - 1
        base: Run | None = None
        if each.base is not None:
            base = runs.pop(each.base, None)
            if base is None:
                raise Damaged(f"{each.base} is the base of a range, and no row of table 'run' has it")
        elif each.block is not None:
            base = MemoryRun(of_block(layout, each.block), memory.empty())
        restored.append(Range(each.low, high, each.since, base, each.block))
    return Contents(Bases(layout, tuple(restored)), tuple(runs.values()))


def _in_memory(bases: Bases, versions: list[StoredVersions], memory: MemoryPool) -> list[Run]:
    """The versions that no file has."""
    parts: list[Updates] = []
    runs: list[Run] = []
    for number, stored in enumerate(versions, 1):
        parts.append(bases.alive(of_block(bases.layout, stored.block)))
        if number == len(versions) or sum(map(len, parts)) >= JOINED_ROWS:
            updates, parts = Updates.joined(bases.layout, parts), []
            runs += [MemoryRun(updates, memory.empty())] if len(updates) else []
    return runs


def _timeline(stored: StoredChangelog) -> Timeline:
    times = [(each.last, past_time(each.time)) for each in stored.versions]
    times.append((stored.upper, past_time(stored.time)))
    timeline = Timeline(stored.declared.delay_seconds, *times[0])
    for version, committed in times[1:]:
        timeline.add(version, committed)
    return timeline
