"""Compactor: the one duty that merges runs, of all changelogs in turn, a slice at a time, in one thread.

Guarantee: a changelog costs nothing here while there is nothing to merge: it has no task and no timer. Merges go on
without new input until nothing is left to compact.

Fuel
    A committed row buys ``changelog.FUEL_OF_A_ROW`` rows of merging of files. A merge that has used up its fuel waits
    for the next tick, after ``TICK_SECONDS``, which buys ``TICK_ROWS`` more: so merging keeps up with writing, goes on
    without it, and leaves the machine's time to readers in between. Merges in memory need no fuel: they are short, and
    save readers time.

Too few old rows
    ``planning`` lets them wait for more. Those that have waited for the delay, and ``SLOW_SECONDS``, are merged all the
    same, for ``SLOW_ROWS`` rows of merging a second in the whole server: the next such merge begins when the last one
    has been paid.

Trouble
    While the disk refuses, a merge is abandoned and tried again after ``TROUBLE_SECONDS``. A damaged run ends merging
    of its changelog (``Changelog.damaged``).
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

import structlog

from flight_server.concurrency import in_thread
from flight_server.memory import MemoryPool
from flight_server.protocol import DataQuarantined, DatasetDropped
from flight_server.records import DiskTrouble, RecordGone

from .changelog import Changelog, ChangelogState
from .merges import Merge
from .planning import Plan, cost_rows, plan_files, plan_memory
from .runs import Damaged

TICK_SECONDS = 0.02
TICK_ROWS = 64 << 10
TROUBLE_SECONDS = 5.0
SOON_SECONDS = 0.02
"""After a commit, or a follower's step, a changelog is looked at within this time: once for all of them."""
SLOW_SECONDS = 0.5
"""Old rows that are too few for a merge wait so long, and the delay at least, for more of them."""
SLOW_ROWS = 64 << 10
"""So many rows a second are read by merges of too few old rows, of all changelogs together."""

_log = structlog.get_logger("flight_server.kinds.changelog.compactor")


class Compactor:
    """The duty, its thread and its timers.

    Args:
        memory: counts memory runs.
    """

    def __init__(self, memory: MemoryPool) -> None:
        self._memory = memory
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flight-server-merge")
        self._due: OrderedDict[Changelog, None] = OrderedDict()
        self._soon: dict[Changelog, float] = {}  # when they are due, in this order
        # When changelogs are looked at again. Each has one entry that counts; an earlier one replaces it, and entries
        # that were replaced are harmless. A changelog that was dropped is not held: its files stay, and count as disk
        # that is used, until nothing refers to them.
        self._later: list[tuple[float, int, weakref.ref[Changelog]]] = []
        self._times: weakref.WeakKeyDictionary[Changelog, float] = weakref.WeakKeyDictionary()
        self._entered = 0
        self._slow_at = 0.0  # when old rows that are too few may be merged
        self._wake = asyncio.Event()

    def poke(self, changelog: Changelog, *, soon: bool = False) -> None:
        """Look whether a merge of it is due, at once or within ``SOON_SECONDS``."""
        if not soon:
            self._due[changelog] = None
        elif changelog in self._soon or changelog in self._due:
            return
        else:
            self._soon[changelog] = time.monotonic() + SOON_SECONDS
        self._wake.set()

    async def run(self) -> None:
        """The duty; never returns."""
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
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            due = heapq.heappop(self._later)[2]()
            if due is not None:
                self._times.pop(due, None)
                self._due[due] = None
        while self._soon and self._soon[first := next(iter(self._soon))] <= now:
            del self._soon[first]
            self._due[first] = None
        if self._due:
            return 0.0
        times = [*([self._later[0][0]] if self._later else ()), *islice(self._soon.values(), 1)]
        return min(times) - now if times else None

    async def look_at_next(self) -> None:
        """Look at the changelog that is due first; there is one."""
        found = next(chain(self._due, self._soon))
        self._due.pop(found, None)
        self._soon.pop(found, None)
        changelogs = [found]
        del found  # no variable holds it while this waits
        await self.look(changelogs.pop())

    def close(self) -> None:
        """End the thread. Blocks. Twice is fine."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def look(self, changelog: Changelog) -> None:
        """Begin the merges that are due, and do the next slice of each."""
        if changelog.state is not ChangelogState.OPEN:
            self._abandon(changelog)
            return
        try:
            self._begin(changelog)
            for merge in list(changelog.merges):
                await self._work(changelog, merge)
        except (DiskTrouble, OSError) as trouble:
            _log.warning("merge_failed", dataset=changelog.name, trouble=str(trouble))
            self._abandon(changelog)
            self._look_at(changelog, time.monotonic() + TROUBLE_SECONDS)
        except Damaged as damage:
            _log.error("changelog_damaged", dataset=changelog.name, damage=str(damage))
            self._abandon(changelog)
            changelog.damaged(str(damage))
        except (DatasetDropped, DataQuarantined, RecordGone):
            self._abandon(changelog)

    def _begin(self, changelog: Changelog) -> None:
        now = time.monotonic()
        found = self._plans(changelog, slow=False)
        if not found and not changelog.merges:
            found, again_at = self._left_over(changelog, now)
            if not found and again_at < math.inf:
                self._look_at(changelog, again_at)
        for plan in found:
            changelog.since = changelog.advanced_since(now)
            Merge(changelog, plan, changelog.since)

    def _plans(self, changelog: Changelog, *, slow: bool) -> list[Plan]:
        since = changelog.advanced_since(time.monotonic())
        files_busy = any(merge.of_files for merge in changelog.merges)
        found: list[Plan | None] = []
        if not files_busy:
            found.append(plan_files(changelog.runs, since, slow=slow))
        if all(merge.of_files for merge in changelog.merges):
            short = self._memory.available_bytes == 0 or self._memory.waiting > 0
            found.append(
                plan_memory(
                    changelog.runs,
                    since,
                    changelog.records.size_bytes,
                    short=short,
                    slow=slow,
                    files_busy=files_busy,
                )
            )
        return [plan for plan in found if plan is not None]

    def _left_over(self, changelog: Changelog, now: float) -> tuple[list[Plan], float]:
        """The merge of old rows that are too few for one, if they have waited; see "Whole merges" in ``planning``. And
        when there may be more to merge if no commit comes and no hold ends.
        """
        held = changelog.holds.oldest()
        again_at = math.inf
        if changelog.runs and changelog.timeline.horizon(now) < (changelog.upper if held is None else held):
            again_at = changelog.timeline.last + changelog.delay_seconds + TICK_SECONDS
        found = self._plans(changelog, slow=True)
        if not found:
            changelog.old_since = None
            return [], again_at
        if changelog.old_since is None:
            changelog.old_since = now
        due_at = max(changelog.old_since + max(SLOW_SECONDS, changelog.delay_seconds), self._slow_at)
        if due_at > now:
            return [], min(again_at, due_at)
        changelog.old_since = None
        self._slow_at = now + sum(cost_rows(plan) for plan in found) / SLOW_ROWS
        return found, again_at

    async def _work(self, changelog: Changelog, merge: Merge) -> None:
        files = merge.of_files
        if files and changelog.fuel_rows <= 0:
            if changelog.tick_at > time.monotonic():
                self._look_at(changelog, changelog.tick_at)
                return
            changelog.tick_at = time.monotonic() + TICK_SECONDS
            changelog.fuel_rows = TICK_ROWS
        rows = await in_thread(self._threads, merge.step)
        if files:
            changelog.fuel_rows -= rows
        if merge.done:
            await merge.publish(self._threads, self._memory)
        self.poke(changelog)

    @staticmethod
    def _abandon(changelog: Changelog) -> None:
        for merge in list(changelog.merges):
            merge.abandon()

    def _look_at(self, changelog: Changelog, when: float) -> None:
        if when < self._times.get(changelog, math.inf):
            self._times[changelog] = when
            self._entered += 1
            heapq.heappush(self._later, (when, self._entered, weakref.ref(changelog)))
