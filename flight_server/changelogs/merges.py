"""Merge: replaces neighbouring runs by one that stands for them at every version from ``since`` on.

Guarantee: a merge changes no snapshot and no deltas of versions from its ``since`` on. It works in slices of whole
keys, ``SLICE_ROWS`` rows each, and holds no lock while it does; readers and commits go on.

What it may leave out
    A merge sees its own runs only. The rule says what is needed of a part as of the whole (a keep rule is idempotent),
    with one exception: retractions whose rows are elsewhere. So the rule is not applied to keys that have updates in
    other runs while one side has retractions: their updates are only added up.

    Rows that a commit retracts while the merge runs may bring back rows that the merge leaves out. At the end the keys
    of such retractions get back all that they had (``patch``), so that a version that was read before reads the same
    after. For this the merge is told each commit.

    Tombstones stay until a merge includes the oldest run (``deletes``).

Resuming
    A merge of files writes its output's blocks and the state file every ``CHECKPOINT_ROWS``. After a crash it goes on
    behind the last one with the ``since`` that it began with. Other merges begin again: nothing names their output.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flight_server.memory import MemoryPool
from flight_server.runs import Block, Layout, MemoryRun, Run, RunFile, RunWriter, Uncertain, Updates

from .changelog import Changelog, ChangelogState
from .deletes import living
from .folding import compacted
from .journal import State
from .planning import Plan
from .saving import delete_covered, in_thread, rotate, save, state_of
from .views import View, hash_ranges

CHECKPOINT_ROWS = 1 << 20

Hashes = NDArray[np.uint64]


class Merge:
    """One merge of one changelog; ``step`` until it is done, then ``publish``, or ``abandon``.

    Args:
        since: what is older counts as one version.
        writer, low: of a resumed merge, its output so far and the next hash.
    """

    def __init__(
        self,
        changelog: Changelog,
        plan: Plan,
        since: int,
        *,
        writer: RunWriter | None = None,
        low: int = 0,
    ) -> None:
        self.changelog = changelog
        self.runs = plan.runs
        self.since = since
        self.done = False
        self._to_file = plan.to_file
        self.of_files = plan.of_files
        self._view: View = changelog.view()
        self._oldest = self.runs[0] is self._view.runs[0]
        self._writer = writer
        self._parts: list[Updates] = []
        self._low = low
        self._retracted: list[Hashes] = []
        self._checkpoint_rows = 0
        self._finished: list[Run] | None = None

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def to_json(self) -> dict[str, Any] | None:
        """What the state file says of it, to resume it."""
        if not self.of_files or self._writer is None:
            return None
        names = [run.path.name for run in self.runs if isinstance(run, RunFile)]
        return {
            "runs": names,
            "since": self.since,
            "output": self._writer.path.name,
            "blocks": [[getattr(block, name) for name in Block.__slots__] for block in self._writer.blocks],
            "retractions": self._writer.retractions,
            "tombstones": self._writer.tombstones,
            "low": self._low,
            "retracted": [int(hash_) for hash_ in self._retracted_hashes()],
        }

    def committed(self, runs: list[Run]) -> None:
        """A commit added these runs while this merge goes on."""
        self._retracted += [run.retracted() for run in runs if run.retractions]

    def told(self, hashes: Hashes) -> None:
        """Keys that commits before a restart retracted while this merge went on."""
        self._retracted.append(hashes)

    def step(self) -> int:
        """Merge one slice; how many rows it read. Blocks.

        Raises:
            Damaged: a run is not what was written.
            DiskTrouble: the disk has no room, or refuses.
        """
        for low, high in hash_ranges(self.runs, self._view.slice_rows(), self._low):
            parts = [run.between(low, high) for run in self.runs]
            updates = Updates.joined(self.changelog.layout, parts)
            untouched = self._untouched(updates, low, high)
            self._add(compacted(updates, self.since, self.changelog.rule, untouched, oldest=self._oldest))
            self._low = high + 1
            self.done = self._low >= 1 << 64
            self._checkpoint_rows += len(updates)
            return max(1, len(updates))
        self.done = True
        return 1

    def checkpoint_due(self) -> bool:
        return self.of_files and self._checkpoint_rows >= CHECKPOINT_ROWS and not self.done

    async def checkpoint(self, threads: Executor) -> None:
        """Make what is done so far survive a crash. Raises DiskTrouble."""
        self._checkpoint_rows = 0
        assert self._writer is not None
        async with self.changelog.turn:
            self.changelog.step("merge")
            await in_thread(
                threads, _write_checkpoint, self._writer, self.changelog, state_of(self.changelog)
            )

    def _add(self, updates: Updates) -> None:
        if not self._to_file:
            self._parts.append(updates)
            return
        if self._writer is None:
            self._writer = RunWriter(
                self.changelog.next_run(), self.changelog.layout, self.changelog.disk.empty()
            )
        self._writer.add(updates)

    def _untouched(self, updates: Updates, low: int, high: int) -> Hashes:
        """See "What it may leave out" in the module's text."""
        others = [run for run in self._view.runs if run not in self.runs]
        suspects = [updates.retracted]
        for run in others:
            if run.retractions:
                found = run.retracted()
                start = np.searchsorted(found, np.uint64(low), "left")
                suspects.append(found[start : np.searchsorted(found, np.uint64(high), "right")])
        hashes = np.unique(np.concatenate(suspects))
        if not len(hashes) or not others:
            return hashes[:0]
        elsewhere = [run.of_hashes(hashes).hashes for run in others]
        return np.unique(np.concatenate(elsewhere))

    async def publish(self, threads: Executor, memory: MemoryPool) -> None:
        """Put the output in the place of the runs, on disk and in memory. Cancelling is safe.

        Raises:
            DiskTrouble, Forgotten: nothing was changed; the merge is to be abandoned.
        """
        changelog = self.changelog
        async with changelog.turn:
            changelog.step("merge")
            outputs = await in_thread(threads, self._finish, memory)
            if not self._to_file:
                changelog.replaced(self.runs, outputs)
                changelog.merge = None
                return
            start = changelog.runs.index(self.runs[0])
            runs = (*changelog.runs[:start], *outputs, *changelog.runs[start + len(self.runs) :])
            changelog.merge = None
            rotate(changelog, runs)
            state = state_of(changelog, runs)
            try:
                await in_thread(threads, save, changelog, state)
            except Uncertain:
                changelog.doubtful += [run for run in outputs if isinstance(run, RunFile)]
                self._finished = None
                changelog.merge = self
                raise
            except BaseException:
                changelog.merge = self
                raise
            if changelog.state is ChangelogState.CLOSED:
                return
            changelog.replaced(self.runs, outputs)
            await in_thread(threads, delete_covered, changelog, self.runs, state.covered)
            # The last references go in a thread: to unmap large files takes tens of milliseconds.
            replaced: list[object] = [self.runs, self._view]
            self.runs, self._view = (), replace(self._view, runs=())
            await in_thread(threads, replaced.clear)

    def _finish(self, memory: MemoryPool) -> list[Run]:
        """The output as runs, in files if it leaves memory."""
        if self._finished is not None:
            return self._finished
        first, last = self.runs[0].first_version, self.runs[-1].last_version
        layout = self.changelog.layout
        hashes = self._retracted_hashes()
        if not self._to_file:
            whole = Updates.joined(layout, self._parts)
            whole = Updates.joined(layout, [whole, self._patch(hashes, whole.of_hashes(hashes))])
            return [MemoryRun(whole, first, last, memory.reserve(whole.size_bytes))] if len(whole) else []
        outputs: list[Run] = []
        has = Updates.empty(layout)
        if self._writer is not None and self._writer.blocks:
            outputs.append(_file(self._writer, layout, first, last))
            has = outputs[0].of_hashes(hashes)
        elif self._writer is not None:
            self._writer.abandon()
        patch = self._patch(hashes, has)
        if len(patch):
            writer = RunWriter(self.changelog.next_run(), layout, self.changelog.disk.empty())
            writer.add(patch)
            outputs.append(_file(writer, layout, first, last))
        self._writer, self._finished = None, outputs
        return outputs

    def _patch(self, hashes: Hashes, has: Updates) -> Updates:
        """What the output, which ``has`` these updates of the keys retracted meanwhile, lacks of them."""
        layout = self.changelog.layout
        if not len(hashes):
            return Updates.empty(layout)
        had = [run.of_hashes(hashes) for run in self.runs]
        has, _ = living(has)
        less = Updates(layout, has.rows, has.hashes, has.versions, -has.diffs)
        both = Updates.joined(layout, [*had, less])
        # The output has the tombstones.
        return living(compacted(both, self.since, self.changelog.rule, hashes))[0]

    def _retracted_hashes(self) -> Hashes:
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *self._retracted]))

    def abandon(self) -> None:
        """Delete the output so far. Blocks. Twice is fine."""
        self.changelog.merge = None
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        for run in self._finished or ():
            if isinstance(run, RunFile):
                run.delete()
        self._finished = None


def _file(writer: RunWriter, layout: Layout, first: int, last: int) -> RunFile:
    writer.finish()
    run = RunFile(writer.path, layout, writer.room)
    run.first_version, run.last_version = first, last
    return run


def _write_checkpoint(writer: RunWriter, changelog: Changelog, state: State) -> None:
    writer.sync()
    save(changelog, state)
