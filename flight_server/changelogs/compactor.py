"""Compactor: the one duty that merges runs, of all changelogs in turn, a slice at a time, in one thread.

Changelogs with rules of users' own are merged beside the others (``Changelog.querying``), which wait for no query.

Guarantee: a changelog costs nothing here while there is nothing to merge: it has no task and no timer. Merges go on
without new input until nothing is left to compact.

Fuel
    A committed row buys ``changelog.FUEL_OF_A_ROW`` rows of merging of files. A merge that has used up its fuel waits
    for the next tick, after ``TICK_SECONDS``, which buys ``TICK_ROWS`` more: so merging keeps up with writing, goes on
    without it, and leaves the machine's time to readers in between. Merges in memory need no fuel: they are short,
    and readers wait for what they save.

Trouble
    While the disk refuses, a merge is abandoned and tried again after ``TROUBLE_SECONDS``. A damaged run ends merging
    of its changelog (``Changelog.damaged``).
"""

from __future__ import annotations

import asyncio
import heapq
import time
import weakref
from collections import OrderedDict
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog

from flight_server.concurrency import Background
from flight_server.memory import MemoryPool
from flight_server.protocol import DatasetDropped, FlightShuffleError
from flight_server.runs import Damaged
from flight_server.storage import DiskTrouble, Forgotten, to_its_end

from .changelog import Changelog, ChangelogState
from .merges import Merge
from .planning import LOG_BYTES, plan
from .saving import begin_log

TICK_SECONDS = 0.02
TICK_ROWS = 64 << 10
TROUBLE_SECONDS = 5.0
IDLE_SECONDS = 0.5
"""A shorter pause between commits is none: merges of all runs would follow each other."""

_log = structlog.get_logger("flight_server.changelogs.compactor")


class Compactor:
    """See the module's text.

    Args:
        memory: counts memory runs.
        background: has the tasks that look at changelogs with rules of users' own.
    """

    def __init__(self, memory: MemoryPool, background: Background) -> None:
        self._memory = memory
        self._background = background
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flight-server-merge")
        self._due: OrderedDict[Changelog, None] = OrderedDict()
        # When changelogs are looked at again. Each has one entry that counts; an earlier one replaces it, and entries
        # that were replaced are harmless. A changelog that was dropped is not held: its log counts as disk that is used
        # until nothing refers to it.
        self._later: list[tuple[float, int, weakref.ref[Changelog]]] = []
        self._times: weakref.WeakKeyDictionary[Changelog, float] = weakref.WeakKeyDictionary()
        self._entered = 0
        self._looking = False
        self._apart: set[Changelog] = set()
        self._wake = asyncio.Event()

    def poke(self, changelog: Changelog) -> None:
        """Look whether a merge of it is due, soon."""
        self._due[changelog] = None
        self._wake.set()

    async def run(self) -> None:
        """The duty; never returns."""
        while True:
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                due = heapq.heappop(self._later)[2]()
                if due is not None:
                    self._times.pop(due, None)
                    self._due[due] = None
                del due
            if self._due and await self._look_at_next():
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(self._later[0][0] - now if self._later else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look_at_next(self) -> bool:
        """Look at the next changelog that is due and not looked at; whether there was one."""
        found = next((each for each in self._due if each not in self._apart), None)
        if found is None:
            return False
        del self._due[found]
        if found.querying is not None:
            self._apart.add(found)
            self._background.start(self._look_apart(found), f"merge of {found.name}")  # type: ignore[unused-awaitable]
            return True
        changelogs = [found]
        del found  # no variable holds it while this waits
        self._looking = True
        try:
            await self.look(changelogs.pop())
        finally:
            self._looking = False
        return True

    async def _look_apart(self, changelog: Changelog) -> None:
        """Look at a changelog whose rule may take long, while others are looked at."""
        try:
            await self.look(changelog)
        finally:
            self._apart.discard(changelog)
            self._wake.set()

    @property
    def busy(self) -> bool:
        """Whether a changelog is looked at, or is to be at once."""
        return bool(self._due) or self._looking or bool(self._apart)

    @property
    def timers(self) -> int:
        """How many times to look at something are remembered."""
        return len(self._later)

    def close(self) -> None:
        """End the thread. Blocks. Twice is fine."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def look(self, changelog: Changelog) -> None:
        """Begin the merge that is due, or do its next slice."""
        if changelog.state is not ChangelogState.OPEN:
            await self._abandon(changelog)
            return
        try:
            if changelog.merge is None and not self._begin(changelog):
                if changelog.log.size_bytes > LOG_BYTES:  # of holds
                    await begin_log(changelog, self._threads_of(changelog))
                return
            await self._work(changelog, changelog.merge)
        except (DiskTrouble, OSError) as trouble:
            _log.warning("merge_failed", dataset=changelog.name, trouble=str(trouble))
            await self._abandon(changelog)
            self._look_later(changelog, TROUBLE_SECONDS)
        except Damaged as damage:
            _log.error("changelog_damaged", dataset=changelog.name, damage=str(damage))
            await self._abandon(changelog)
            changelog.damaged(str(damage))
        except (DatasetDropped, Forgotten):
            await self._abandon(changelog)
        except FlightShuffleError as error:
            _log.warning(
                "merge_failed", dataset=changelog.name, trouble=error.message
            )  # its rule refuses these rows
            await self._abandon(changelog)
            self._look_later(changelog, TROUBLE_SECONDS)

    def _begin(self, changelog: Changelog) -> bool:
        """Begin the next merge; False if none is due."""
        now = time.monotonic()
        since = changelog.advanced_since(now)
        idle_in = changelog.timeline.last + max(changelog.delay_seconds, IDLE_SECONDS) - now
        found = plan(
            changelog.runs,
            changelog.log_bytes,
            idle=idle_in <= 0,
            settled=changelog.settled == (changelog.upper, since),
            short=self._memory.available_bytes == 0 or self._memory.waiting > 0,
        )
        if found is None:
            if changelog.runs and 0 < idle_in < 1e8:
                self._look_later(changelog, idle_in + TICK_SECONDS)
            return False
        changelog.since = since
        changelog.merge = Merge(changelog, found, since)
        if found.runs == changelog.runs:
            changelog.settled = (changelog.upper, since)
        return True

    async def _work(self, changelog: Changelog, merge: Merge) -> None:
        files = merge.of_files
        if files and changelog.fuel_rows <= 0:
            changelog.fuel_rows = TICK_ROWS
            self._look_later(changelog, TICK_SECONDS)
            return
        threads = self._threads_of(changelog)
        rows = await to_its_end(asyncio.get_running_loop().run_in_executor(threads, merge.step))
        if files:
            changelog.fuel_rows -= rows
        if merge.done:
            await merge.publish(threads, self._memory)
        elif merge.checkpoint_due():
            await merge.checkpoint(threads)
        self.poke(changelog)

    async def _abandon(self, changelog: Changelog) -> None:
        merge = changelog.merge
        if merge is not None:
            threads = self._threads_of(changelog)
            await to_its_end(asyncio.get_running_loop().run_in_executor(threads, merge.abandon))

    def _threads_of(self, changelog: Changelog) -> Executor:
        return changelog.querying or self._threads

    def _look_later(self, changelog: Changelog, seconds: float) -> None:
        when = time.monotonic() + seconds
        if when < self._times.get(changelog, float("inf")):
            self._times[changelog] = when
            self._entered += 1
            heapq.heappush(self._later, (when, self._entered, weakref.ref(changelog)))
