"""Compactor: folds and rewrites (``compaction``) what ``planning`` says, of all changelogs in turn, a slice at a time.

Guarantee: a changelog costs nothing here while there is nothing to do: it has no task and no timer. Work goes on
without new input until nothing is left to fold.

At once
    Two duties take the changelogs that are due, one after the other, and do the next slice of each work that no other
    one does. A changelog has at most one rewrite of runs in memory, and one fold or rewrite of files.

Few rows
    Runs of few rows become one in the event loop as commits come, because a small step of a follower looks into each;
    and before work is planned, because a thread would take them otherwise: with four waits for it.

Too few old rows
    ``planning`` lets them wait for more. Those that have waited (``timeline``) are folded all the same where that may
    be much, and all once the newest ones have waited: for ``SLOW_ROWS`` rows a second in the whole server. The next
    such fold begins when the last one has been paid.

Trouble
    While the disk refuses, work is abandoned and begun again after ``TROUBLE_SECONDS``. If it is full, folds of all old
    rows go on meanwhile, which make room; rewrites need more than they free. A damaged run ends the compaction of its
    changelog (``Changelog.damaged``).
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog

from flight_server.concurrency import in_thread
from flight_server.memory import MemoryPool
from flight_server.protocol import DataQuarantined, DatasetDropped
from flight_server.records import BegunFold, DiskTrouble, RecordGone

from . import planning
from .changelog import OF_KEPT_FOR_FOLDS, Changelog, ChangelogState
from .compaction import Fold, Rewrite, Work
from .planning import Amounts, Plan, few_runs, plan_left_over, plans
from .runs import MAX_HASH, Damaged, MemoryRun, RunFile

DUTIES = 2
TICK_SECONDS = 0.02
TROUBLE_SECONDS = 5.0
SOON_SECONDS = 0.25
"""After a commit, or a follower's step, a changelog is looked at within this time: once for all of them."""
SLOW_ROWS = 64 << 10
"""See "Too few old rows"."""

_log = structlog.get_logger("flight_server.kinds.changelog.compactor")


class Compactor:
    """The duties, their threads and timers. ``memory`` counts runs in memory."""

    def __init__(self, memory: MemoryPool) -> None:
        self._memory = memory
        self._threads = ThreadPoolExecutor(max_workers=DUTIES, thread_name_prefix="flight-server-fold")
        # When changelogs are looked at next, the earliest first; the entry that counts is in ``_times``, too. They are
        # not held: the files of one that was dropped count as disk that is used until nothing refers to them.
        self._entries: list[tuple[float, int, weakref.ref[Changelog]]] = []
        self._times: weakref.WeakKeyDictionary[Changelog, float] = weakref.WeakKeyDictionary()
        self._entered = 0
        self._slow_at = 0.0  # when old rows that are too few may be folded
        self._planning: set[Changelog] = set()
        self._wake = asyncio.Event()

    def poke(self, changelog: Changelog, *, soon: bool = False) -> None:
        """Look whether work of it is due, at once or within ``SOON_SECONDS``."""
        self._look_at(changelog, time.monotonic() + (SOON_SECONDS if soon else 0.0))
        if soon and len(changelog.contents.recent) >= planning.FAN_IN:
            # Behind the answers to producers, and the reads of followers.
            asyncio.get_running_loop().call_soon(self._join_few, changelog)

    def _join_few(self, changelog: Changelog) -> None:
        """Rewrite runs of few rows in the event loop, while no other work goes on."""
        contents, state = changelog.contents, changelog.state
        if changelog.working or changelog in self._planning or state is not ChangelogState.OPEN:
            return
        runs = few_runs(contents)
        if runs:
            work = Rewrite(contents, runs, None, self._memory)
            for _ in work.steps:
                pass
            changelog.compacted(work.published(contents))

    async def run(self) -> None:
        """One of ``DUTIES``; never returns."""
        while True:
            due_in = self.due_in()
            if due_in == 0:
                await self.look_at_next()
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(due_in):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def due_in(self) -> float | None:
        """In how many seconds a changelog is to be looked at; None if not before one is poked."""
        while self._entries and self._next() is None:
            heapq.heappop(self._entries)
        return max(0.0, self._entries[0][0] - time.monotonic()) if self._entries else None

    def _next(self) -> Changelog | None:
        """The changelog of the first entry, if that counts."""
        when, _, reference = self._entries[0]
        changelog = reference()
        return changelog if changelog is not None and self._times.get(changelog) == when else None

    async def look_at_next(self) -> None:
        """Look at the changelog that is due first; there is one."""
        changelog = self._next()
        heapq.heappop(self._entries)
        if changelog is not None:
            del self._times[changelog]
            await self.look(changelog)

    def close(self) -> None:
        """End the thread. Blocks. Twice is fine."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def look(self, changelog: Changelog) -> None:
        """Begin the work that is due, and do the next slice of all that no other duty does."""
        if changelog.state is not ChangelogState.OPEN:
            self.abandon(changelog)
            return
        try:
            await self._begin(changelog)
            for work in list(changelog.working):
                if work.busy or work not in changelog.working:
                    continue  # another duty does it, or did it, while this one was at the work before
                work.busy = True
                try:
                    await self._work(changelog, work)
                except BaseException:
                    # Its steps have ended, and would look as if they had come to their end.
                    if work in changelog.working:
                        changelog.working.remove(work)
                    raise
                finally:
                    work.busy = False
        except (DiskTrouble, OSError, MemoryError) as trouble:
            _log.warning("compaction_failed", dataset=changelog.name, trouble=str(trouble))
            self.abandon(changelog)
            now = time.monotonic()
            if isinstance(trouble, DiskTrouble) and trouble.full and changelog.full_until <= now:
                changelog.full_until = now + TROUBLE_SECONDS
                self.poke(changelog)
            self._look_at(changelog, now + TROUBLE_SECONDS)
        except Damaged as damage:
            _log.error("changelog_damaged", dataset=changelog.name, damage=str(damage))
            self.abandon(changelog)
            changelog.damaged(str(damage))
        except (DatasetDropped, DataQuarantined, RecordGone):
            self.abandon(changelog)

    async def _begin(self, changelog: Changelog) -> None:
        going = changelog.working
        if changelog in self._planning or len(going) == 2:
            return
        free = self._free()
        base_in_memory = changelog.contents.bases.in_memory and not free
        if not (
            changelog.contents.recent or changelog.begun or changelog.records.size_bytes or base_in_memory
        ):
            return
        self._join_few(changelog)
        now = time.monotonic()
        self._planning.add(changelog)
        try:
            since = changelog.advanced_since(now)
            amounts = Amounts(changelog.contents, since, changelog.rule, free=free)
            await in_thread(self._threads, amounts.count)
            # In the turn no commit is written: the next one brings along what began before it.
            async with changelog.turn:
                self._begin_counted(changelog, amounts, now)
        finally:
            self._planning.discard(changelog)

    def _free(self) -> float:
        """The part of memory that is free; none while commits wait for some."""
        available_bytes, limit_bytes = self._memory.available_bytes, self._memory.limit_bytes
        if self._memory.waiting:
            return 0.0
        return 1.0 if available_bytes is None or not limit_bytes else available_bytes / limit_bytes

    def _begin_counted(self, changelog: Changelog, amounts: Amounts, now: float) -> None:
        going, contents, counted = changelog.working, changelog.contents, amounts.contents
        if contents.bases is not counted.bases or not set(counted.recent) <= set(contents.recent):
            self.poke(changelog)  # other work was published meanwhile, or the changelog is closed
            return
        self._look_at(changelog, amounts.recount_at)
        if changelog.full_until > now:
            memory, files = None, None if going else amounts.fold(waited=changelog.upper)
        else:
            memory, files = plans(amounts, changelog.records.size_bytes)
            # Readers see the keys of a begun fold as folded, so the duty ends that before it begins planned work.
            files = files if changelog.begun is None else Plan((0, 0))
            if files is None and not going:
                files = self._left_over(changelog, amounts, now)
        for plan in (memory, files):
            # Two works on the same runs would both put their rows there.
            if plan is not None and not any(each.in_memory == plan.in_memory for each in going):
                self.start(changelog, plan, changelog.advanced_since(time.monotonic()))

    def _left_over(self, changelog: Changelog, amounts: Amounts, now: float) -> Plan | None:
        """The work on old rows that are too few for any, if they have waited; else the changelog is looked at again
        when that is so.
        """
        held = changelog.holds.oldest()
        timeline = changelog.timeline
        if changelog.contents.recent and timeline.horizon(now) < (changelog.upper if held is None else held):
            self._look_at(changelog, timeline.last + changelog.delay_seconds + TICK_SECONDS)
        plan = plan_left_over(amounts, timeline.waited(now))
        if plan is not None and self._slow_at <= now:
            self._slow_at = now + plan.cost_rows / SLOW_ROWS
            return plan
        if plan is not None:
            self._look_at(changelog, self._slow_at)
        elif amounts.old.any():
            self._look_at(changelog, now + timeline.patience_seconds)
        return None

    def start(self, changelog: Changelog, plan: Plan, since: int) -> Work:
        """Begin this work; ``since``: the version up to which compaction may go. In the changelog's turn."""
        contents, begun = changelog.contents, changelog.begun
        make = partial(RunFile.make, changelog.folder, changelog.layout, of_kept=OF_KEPT_FOR_FOLDS)
        new_file = make if plan.to_file else None
        work: Work
        if plan.ranges is None:
            work = Rewrite(contents, plan.runs, new_file, self._memory)
        else:
            if begun is None:
                changelog.since = max(changelog.since, since)
                first, last = (contents.bases.ranges[place] for place in plan.ranges)
                # It knows all versions up to the newest, also those without rows.
                begun = BegunFold(changelog.upper, changelog.since, first.low, last.high)
                changelog.begun = begun
                changelog.records.begin(begun)
            # A begun fold of some ranges may be planned again as one of all, of which the base may be in memory.
            of_all = (begun.low, begun.high) == (0, MAX_HASH)
            work = Fold(contents, begun, changelog.rule, new_file if of_all else make, self._memory)
        changelog.working.append(work)
        return work

    async def _work(self, changelog: Changelog, work: Work) -> None:
        if await in_thread(self._threads, next, work.steps, None) is None:
            await self.publish(changelog, work)
        self.poke(changelog)

    async def publish(self, changelog: Changelog, work: Work) -> None:
        """Put the result in its place, on disk and in memory. Raises DiskTrouble, RecordGone: nothing was changed."""
        async with changelog.turn:
            changelog.step("compact")
            before = changelog.contents
            if work.to_file:
                contents = await in_thread(self._threads, work.published, before)
            else:
                contents = work.published(before)

            def replace() -> None:
                if work in changelog.working:  # not given up while the records took it
                    changelog.working.remove(work)
                if changelog.state is not ChangelogState.CLOSED:
                    changelog.compacted(contents)
                if work.begun is not None:
                    changelog.begun = None

            if work.to_file or work.begun is not None:
                in_memory = [run.first_version for run in contents.recent if isinstance(run, MemoryRun)]
                await changelog.records.publish(
                    contents.files,
                    [each.stored for each in contents.bases.ranges],
                    changelog.since,
                    # What is older than all ranges' is in their bases.
                    max(min(in_memory, default=changelog.upper + 1) - 1, int(contents.bases.sinces.min())),
                    folded=work.begun is not None,
                    then=replace,
                )
            else:
                replace()
        if before.files:
            # To unmap large files takes tens of milliseconds, so the last reference goes in a thread.
            last = [before]
            del before
            await in_thread(self._threads, last.clear)

    @staticmethod
    def abandon(changelog: Changelog) -> None:
        """Give up all work but what another duty does; its files go."""
        for work in [each for each in changelog.working if not each.busy]:
            changelog.working.remove(work)
            work.close()

    def _look_at(self, changelog: Changelog, when: float) -> None:
        if when < self._times.get(changelog, math.inf):
            self._times[changelog] = when
            self._entered += 1
            heapq.heappush(self._entries, (when, self._entered, weakref.ref(changelog)))
            self._wake.set()
