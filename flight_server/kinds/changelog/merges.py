"""Merge: replaces neighbouring runs by one that stands for them at every version from ``since`` on.

Guarantee: a merge changes no snapshot and no deltas of versions from its ``since`` on. It works in slices of whole
keys, ``SLICE_ROWS`` rows each, and holds no lock while it does; readers and commits go on. A key that is too large for
a slice is merged in pieces (``large_keys``), with the same look-ups; if the rule leaves too much of it, or has to know
more, its updates are only added up.

Leaving out
    A merge sees its own runs only. The rule says what is needed of a part as of the whole (a keep rule is idempotent),
    if it knows the retractions of these rows that are in other runs, older or newer: the merge looks them up
    (``_elsewhere``), of the keys of which the rule leaves something out. A rule of ``whole_keys`` is not applied to
    keys that have updates in other runs: these are only added up.

    Commits while the merge runs may change which updates are needed. At the end the keys of their retractions (of
    ``whole_keys`` of all their updates) are compacted again with them, and the output gets the difference
    (``_patches``), so that a version that was read before reads the same after. These commits are in the runs that the
    changelog has at the end, and whose last version is above ``began``. Of a key of which the rule left nothing out the
    output has the sum of all updates, which is right for any commit (:class:`_LeftOut`). Tombstones stay until a merge
    includes the oldest run (``deletes``).

Crashes
    The output counts once the records name it. A merge that crashed begins again.

Covering
    The records have the rows of small puts that no file has yet. With an output in a file they lose those of all
    versions before the first run that is in memory only, and are read after all files that were merged.

Two at once
    A merge of files may take minutes, so runs in memory are merged meanwhile, in memory or to a file. Each slice looks
    at the other runs that are there then. The output of another merge stands for its runs at every version that can
    still be asked for, so neither has to know of the other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flight_server.concurrency import at_once, in_thread
from flight_server.keys import unique
from flight_server.memory import MemoryPool, Reservation

from . import views
from .changelog import OF_KEPT_FOR_MERGES, Changelog, ChangelogState
from .deletes import living
from .folding import Elsewhere, added_up, compacted
from .large_keys import needed, pieces
from .planning import Plan
from .runs import DELETE, MAX_HASH, MemoryRun, Run, RunFile, RunWriter, Updates
from .views import View, slice_end

LEADING_BITS = 20
HELD_BYTES = views.FOLDED_BYTES
"""So much of a large key is held to apply the rule to it."""

Hashes = NDArray[np.uint64]


class _LeftOut:
    """The keys of which a merge's rule left something out: a set of hashes in 1 MiB for any number of keys.

    It notes the leading bits of a hash, and tells keys apart while fewer than a million are noted.
    """

    def __init__(self) -> None:
        self._noted = np.zeros(1 << LEADING_BITS, np.bool_)

    def note(self, hashes: Hashes) -> None:
        self._noted[self._leading(hashes)] = True

    def among(self, hashes: Hashes) -> Hashes:
        """Those of these hashes that were noted, and a few others."""
        return hashes[self._noted[self._leading(hashes)]]

    @staticmethod
    def _leading(hashes: Hashes) -> Hashes:
        return hashes >> np.uint64(64 - LEADING_BITS)


class Merge:
    """One merge of one changelog; ``step`` until it is done, then ``publish``, or ``abandon``.

    Args:
        since: older versions count as one.
    """

    def __init__(self, changelog: Changelog, plan: Plan, since: int) -> None:
        self.changelog = changelog
        self.runs = plan.runs
        self.since = since
        self.done = False
        self._to_file = plan.to_file
        self.of_files = plan.of_files
        # No other runs: they would stay in memory.
        self._view: View = replace(changelog.view(), runs=self.runs)
        self._oldest = changelog.runs[: len(self.runs)] == self.runs
        # The output of the oldest runs is needed; the output of others may stand for nothing beside older runs.
        self._settles = since if self._oldest else 0
        self._writer: RunWriter | None = None
        self._parts: list[Updates] = []
        self._large: Iterator[int] | None = None
        self._low = 0
        self._began = changelog.upper
        self._outputs: list[Run] | None = None
        self._patched = self._began
        self._left_out = _LeftOut()
        changelog.merges.append(self)

    def step(self) -> int:
        """Merge one slice; how many rows it read. Blocks.

        Raises:
            Damaged: a run's bytes differ from the written ones.
            DiskTrouble: the disk has no room, or refuses.
        """
        if self._large is not None:
            rows = next(self._large, None)
            if rows is not None:
                return max(1, rows)
            self._large = None
            return self._merged_to(self._low, 0)
        low = self._low
        high, large = slice_end(self.runs, self._view.slice_rows(), low, 2 * views.SLICE_BYTES)
        if large:
            self._large = self._large_key(low)
            return 1
        updates = Updates.joined(self.changelog.layout, [run.between(low, high) for run in self.runs])
        self._add(
            compacted(updates, self.since, self.changelog.rule, self._noted_elsewhere, oldest=self._oldest)
        )
        return self._merged_to(high, len(updates))

    def _merged_to(self, high: int, rows: int) -> int:
        self._low = high + 1
        self.done = self._low > MAX_HASH
        return max(1, rows)

    def _large_key(self, hash_: int) -> Iterator[int]:
        """Merge the updates of one hash in pieces; how many rows each has."""
        self._left_out.note(np.array([hash_], np.uint64))
        left = yield from self._needed(hash_, self._others)
        if left is not None:
            self._add(left)
            return
        for piece in self._pieces(_parts(self.runs, hash_)):
            self._add(piece)
            yield len(piece)

    def _needed(self, hash_: int, others: Sequence[Run]) -> Generator[int, None, Updates | None]:
        changelog = self.changelog
        return needed(
            changelog.layout,
            _parts(self.runs, hash_),
            _parts(others, hash_),
            changelog.rule,
            since=self.since,
            upto=changelog.upper,
            oldest=self._oldest,
            piece_bytes=views.SLICE_BYTES,
            limit_bytes=HELD_BYTES,
        )

    def _pieces(self, runs: Sequence[Sequence[Updates]]) -> Iterator[Updates]:
        changelog = self.changelog
        return pieces(
            changelog.layout, runs, self.since, changelog.upper, views.SLICE_BYTES, oldest=self._oldest
        )

    def _add(self, updates: Updates) -> None:
        if not self._to_file:
            self._parts.append(updates)
            return
        if self._writer is None:
            self._writer = RunWriter(
                self.changelog.folder,
                self.changelog.layout,
                since=self._settles,
                of_kept=OF_KEPT_FOR_MERGES,
            )
        self._writer.add(updates)

    def _noted_elsewhere(self, hashes: Hashes) -> Elsewhere:
        """Asked for keys of which the rule leaves something out."""
        self._left_out.note(hashes)
        return self._elsewhere(hashes, self._others)

    def _elsewhere(self, hashes: Hashes, others: Sequence[Run]) -> Elsewhere:
        """The updates of these keys in other runs; see "Leaving out"."""
        layout = self.changelog.layout
        if self.changelog.rule.whole_keys:
            found = [run.having(hashes) for run in others]
            return Elsewhere(unique(*found), Updates.empty(layout))
        return Elsewhere(hashes[:0], Updates.joined(layout, [run.retractions_of(hashes) for run in others]))

    @property
    def _others(self) -> list[Run]:
        return [run for run in self.changelog.runs if run not in self.runs]

    async def publish(self, threads: Executor, memory: MemoryPool) -> None:
        """Put the output in the place of the runs, on disk and in memory. Cancelling is safe. Raises DiskTrouble,
        RecordGone: nothing was changed; the merge is to be abandoned.
        """
        changelog = self.changelog
        if self._to_file:
            # Nearly all is written before the turn is taken, so commits wait for little of it.
            await in_thread(threads, self._finish, memory)
        async with changelog.turn:
            changelog.step("merge")
            outputs = await in_thread(threads, self._finish, memory)
            changelog.step("merge")
            if not self._to_file:
                self._replace(outputs)
                return
            start = changelog.runs.index(self.runs[0])
            place = sum(isinstance(run, RunFile) for run in changelog.runs[:start])
            count = len(self.runs) if self.of_files else 0
            in_memory = [run for run in self._others if isinstance(run, MemoryRun)]
            await changelog.records.publish(
                slice(place, place + count),
                [run for run in outputs if isinstance(run, RunFile)],
                changelog.since,
                in_memory[0].first_version - 1 if in_memory else changelog.upper,
                then=lambda: self._replace(outputs),
            )
        # The last references go in a thread: to unmap large files takes tens of milliseconds.
        replaced: list[object] = [self.runs, self._view]
        self.runs, self._view = (), replace(self._view, runs=())
        await in_thread(threads, replaced.clear)

    def _replace(self, outputs: list[Run]) -> None:
        changelog = self.changelog
        changelog.merges.remove(self)
        if changelog.state is not ChangelogState.CLOSED:
            changelog.replaced(self.runs, outputs)

    def _finish(self, memory: MemoryPool) -> list[Run]:
        """The output as runs, in files if it leaves memory, with what all commits so far retracted. Again is fine."""
        if not self._to_file:
            whole = Updates.joined(self.changelog.layout, self._parts)
            patches = (living(patch)[0] for patch in self._patches([self._run_of(whole, memory.empty())]))
            whole = Updates.joined(self.changelog.layout, [whole, *patches])
            return [self._run_of(whole, memory.reserve(whole.size_bytes))] if len(whole) else []
        if self._outputs is None:
            self._outputs = []
            if self._writer is not None and self._writer.blocks:
                self._outputs.append(self._file(self._writer))
            self._writer = None
        upto = self.changelog.upper
        for patch in self._patches(self._outputs):
            if len(patch):
                self._add(patch)
        if self._writer is not None:
            self._outputs.append(self._file(self._writer))
            self._writer = None
        self._patched = upto
        return self._outputs

    def _patches(self, outputs: Sequence[Run]) -> Iterator[Updates]:
        """The updates that the output lacks because of the commits since it was last patched, in slices; with the
        tombstones above ``since``, because a later merge may take the patch without the output.
        """
        changelog, layout = self.changelog, self.changelog.layout
        whole_keys = changelog.rule.whole_keys
        others = self._others
        runs = [run for run in others if run.last_version > self._began]
        older = [run for run in others if run.last_version <= self._began]
        late = [run for run in runs if run.last_version > self._patched and (whole_keys or run.retractions)]

        def elsewhere(hashes: Hashes) -> Elsewhere:
            found = self._elsewhere(hashes, older)
            news = [run.of_hashes(hashes) if whole_keys else run.retractions_of(hashes) for run in runs]
            return Elsewhere(found.untouched, Updates.joined(layout, [found.pending, *news]))

        low = 0
        while late and low <= MAX_HASH:
            high, large = slice_end([*late, *self.runs], self._view.slice_rows(), low, 2 * views.SLICE_BYTES)
            news = [part for run in late for part in run.parts_between(low, high)]
            found = [each.hashes if whole_keys else each.retracted for each in news]
            hashes = self._left_out.among(unique(*found))
            if large and len(hashes):
                yield from self._patches_of_large_key(low, outputs)
            elif len(hashes):
                had = Updates.joined(layout, [run.of_hashes(hashes) for run in self.runs])
                should = compacted(had, self.since, changelog.rule, elsewhere)
                rows = [living(should)[0], *(_less(run.of_hashes(hashes)) for run in outputs)]
                patch = added_up(Updates.joined(layout, rows))
                if len(patch):
                    yield Updates.joined(layout, [patch, _deletes_above(should, self.since)])
            low = high + 1

    def _patches_of_large_key(self, hash_: int, outputs: Sequence[Run]) -> Iterator[Updates]:
        left = at_once(self._needed(hash_, self._others))
        should = _parts(self.runs, hash_) if left is None else [[left]]
        has = [[_less(part) for part in parts] for parts in _parts(outputs, hash_)]
        yield from self._pieces([*should, *has])

    def _run_of(self, updates: Updates, room: Reservation) -> MemoryRun:
        first, last = self.runs[0].first_version, self.runs[-1].last_version
        return MemoryRun(updates, first, last, room, since=self._settles)

    def _file(self, writer: RunWriter) -> RunFile:
        run = writer.finish()
        run.first_version, run.last_version = self.runs[0].first_version, self.runs[-1].last_version
        return run

    def abandon(self) -> None:
        """Give it up. Twice is fine."""
        if self in self.changelog.merges:
            self.changelog.merges.remove(self)
        self._writer = self._outputs = None


def _parts(runs: Sequence[Run], hash_: int) -> list[list[Updates]]:
    return [run.parts_between(hash_, hash_) for run in runs]


def _less(updates: Updates) -> Updates:
    """The updates that take these back; tombstones stay."""
    return living(updates)[0].negated()


def _deletes_above(updates: Updates, since: int) -> Updates:
    return updates.where((updates.diffs == DELETE) & (updates.versions > since))
