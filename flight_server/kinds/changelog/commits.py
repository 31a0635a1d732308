"""Commits: makes versions of producers' writes, in groups that share one change of the records and a block of rows.

Guarantee: a commit that returned is on disk and readable; one that raised is not there, unless the server was going
down. Each commit is one version. Versions count up in the order of the calls.

Grouping
    While one group is written, further commits wait; then they are the next group, up to ``GROUP_ROWS``. One task for
    each changelog that is written to does this, and ends when nothing waits. A large put, whose rows are in run files
    already, is a group of its own.

Repetition
    A commit whose transaction was committed before changes nothing and returns the version that it had then. One that
    may have been, or that another one of its id has overtaken, is refused (``datasets.transactions``).

A full disk
    Commits that only retract or delete may take a part of the bytes that the disk pool keeps (``KEPT_DISK_PARTS``),
    because folds free the rows that they remove. In a group that has no room the others are refused first.

Waiting
    While memory runs fill their share of memory, or there are more than ``MAX_RUNS`` recent runs, commits wait for the
    compactor until a deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial

import structlog

from flight_server.concurrency import Background, Waits, in_thread
from flight_server.memory import MemoryPool, reserve
from flight_server.protocol import (
    FlightShuffleError,
    OutOfBudget,
    Transaction,
    Unavailable,
)
from flight_server.records import DiskTrouble, RecordGone, StoredVersions

from .changelog import OF_KEPT_FOR_DELETES, Changelog, ChangelogState
from .runs import MemoryRun, Run, RunFile, Updates, to_block
from .timeline import wall_time

GROUP_ROWS = 64 << 10
MAX_RUNS = 256
IN_LOOP_COMMITS = 32
"""So few are encoded in the event loop, if their rows are few."""

_REMEDY = "write it again"
_log = structlog.get_logger("flight_server.kinds.changelog.commits")


class PendingCommit:
    """One commit: ``updates``, whose versions are not set yet, and ``files`` have its rows."""

    def __init__(self, changelog: Changelog) -> None:
        self.changelog = changelog
        self.updates: Updates | None = None
        self.files: list[RunFile] = []
        self.transaction: Transaction | None = None
        self.version: asyncio.Future[int] | None = None  # while it waits, or is written

    @property
    def only_removes(self) -> bool:
        parts: list[RunFile | Updates] = [*self.files, *([] if self.updates is None else [self.updates])]
        return all(part.only_removes for part in parts)

    @property
    def memory_rows(self) -> int:
        """Those that memory has."""
        return 0 if self.updates is None else len(self.updates)

    def made(self, version: int) -> None:
        """It is this version. Its caller may have left."""
        if (answer := self._answer()) is not None:
            answer.set_result(version)

    def refuse(self, why: FlightShuffleError) -> None:
        """It was not made."""
        if (answer := self._answer()) is not None:
            answer.set_exception(why.fresh())

    def _answer(self) -> asyncio.Future[int] | None:
        answer, self.version = self.version, None
        # A caller may hold its error for long, and through that this object.
        self.updates, self.files = None, []
        return None if answer is None or answer.done() else answer


class Commits:
    """The commits of all changelogs.

    Args:
        memory: counts memory runs; its limit is their share.
        short: called when commits wait for memory.
    """

    def __init__(
        self,
        background: Background,
        waits: Waits,
        memory: MemoryPool,
        threads: Executor,
        *,
        deadline_seconds: float,
        short: Callable[[], None],
    ) -> None:
        self.memory = memory
        self._short = short
        self._background = background
        self._waits = waits
        self._threads = threads
        self._deadline_seconds = deadline_seconds
        self._queues: dict[Changelog, deque[PendingCommit]] = {}

    async def commit(self, write: PendingCommit) -> int:
        """The version that it became. Cancelling is safe: it may become one all the same.

        Raises:
            DatasetDropped, DataQuarantined: the changelog takes no writes.
            Conflict: see :meth:`Transactions.find` and ``check_after``.
            Unavailable: the disk did not take it; nothing of it is there.
            OutOfBudget: the compactor did not make room until the deadline.
        """
        changelog = write.changelog
        changelog.check_step("write")
        write.version = asyncio.get_running_loop().create_future()
        queue = self._queues.get(changelog)
        if queue is None:
            queue = self._queues[changelog] = deque()
            # The task begins at the next pass of the loop, when its first commit is queued. It is not awaited:
            # background holds it, and each commit has a future of its own.
            self._background.start(self._run(changelog, queue), f"commits of {changelog.name}")  # type: ignore[unused-awaitable]  # the background keeps the task
        queue.append(write)
        return await write.version

    async def _run(self, changelog: Changelog, queue: deque[PendingCommit]) -> None:
        group: list[PendingCommit] = []
        try:
            while queue:
                await self._room(changelog, queue[0].memory_rows)
                async with changelog.turn:
                    group = self._next_group(changelog, queue)
                    if group:
                        await self._write(changelog, group)
                    group = []
        except FlightShuffleError as refusal:
            _refuse([*group, *queue], refusal)
        except BaseException:
            why = f"dataset {changelog.name!r}: the server is going down, or has a bug; write it again"
            _refuse([*group, *queue], Unavailable(why))
            raise
        finally:
            del self._queues[changelog]

    async def _room(self, changelog: Changelog, rows: int) -> None:
        if len(changelog.contents.recent) > MAX_RUNS:
            changelog.wake()
            try:
                async with asyncio.timeout(self._deadline_seconds):
                    with self._waits.enter(
                        "budget", dataset=changelog.name, deadline_seconds=self._deadline_seconds
                    ):
                        while len(changelog.contents.recent) > MAX_RUNS:
                            changelog.check_step("write")
                            await changelog.changes.next()
            except TimeoutError:
                raise OutOfBudget(
                    f"dataset {changelog.name!r} has {len(changelog.contents.recent)} recent runs, and compaction "
                    "does not keep up; write fewer and larger puts",
                    dataset=changelog.name,
                ) from None
        if rows and self.memory.available_bytes == 0:
            self._short()
            room = await reserve(
                self.memory, 1, self._waits, dataset=changelog.name, deadline_seconds=self._deadline_seconds
            )
            room.free()

    def _next_group(self, changelog: Changelog, queue: deque[PendingCommit]) -> list[PendingCommit]:
        """Take the next commits that go together; answer those that need no new version."""
        group: list[PendingCommit] = []
        rows = 0
        seen: set[str] = set()
        while queue:
            write = queue[0]
            if group and (write.files or group[0].files or rows + write.memory_rows > GROUP_ROWS):
                break
            if write.transaction is not None and write.transaction.id in seen:
                break  # looked up once the one before it is there
            queue.popleft()
            if not self._answered(changelog, write):
                group.append(write)
                rows += write.memory_rows
                if write.transaction is not None:
                    seen.add(write.transaction.id)
        return group

    def _answered(self, changelog: Changelog, write: PendingCommit) -> bool:
        """Whether the commit was there before, or is refused; then it is answered."""
        transaction = write.transaction
        try:
            changelog.step("write")
            if transaction is None:
                return False
            version = changelog.transactions.find(transaction)
            if version is not None:
                write.made(version)
                return True
            changelog.transactions.check_after(transaction)
        except FlightShuffleError as error:
            write.refuse(error)
            return True
        return False

    async def _write(self, changelog: Changelog, group: list[PendingCommit]) -> None:
        now = time.monotonic()
        first, last = changelog.upper + 1, changelog.upper + len(group)
        entries = {
            transaction.id: changelog.transactions.noted(transaction.id, transaction.version, version)
            for version, write in enumerate(group, first)
            if (transaction := write.transaction) is not None
        }
        try:
            encode = partial(_encoded, changelog, first, group)
            updates, block = (
                encode() if _is_small(changelog, group) else await in_thread(self._threads, encode)
            )
            await changelog.records.add(
                StoredVersions(first, last, wall_time(now), block),
                entries,
                [file for write in group for file in write.files],
                of_kept=OF_KEPT_FOR_DELETES if all(write.only_removes for write in group) else 0.0,
                then=lambda: self._made(changelog, group, updates, now),
            )
        except RecordGone:
            _refuse(group, changelog.dropped(_REMEDY))
        except DiskTrouble as trouble:
            _log.warning("commit_failed", dataset=changelog.name, trouble=str(trouble))
            removing = [write for write in group if write.only_removes and trouble.full]
            again = removing if len(removing) < len(group) else []
            refusal = (OutOfBudget if trouble.full else Unavailable)(
                f"dataset {changelog.name!r}: the disk did not take the commit: {trouble}; nothing of it was kept, "
                "write it again",
                dataset=changelog.name,
            )
            closed = changelog.state is ChangelogState.CLOSED
            others = [write for write in group if write not in again]
            _refuse(others, changelog.dropped(_REMEDY) if closed else refusal)
            if again:
                await self._write(changelog, again)

    def _made(self, changelog: Changelog, group: list[PendingCommit], updates: Updates, now: float) -> None:
        """The versions of the group are on disk."""
        if changelog.state is ChangelogState.CLOSED:
            _refuse(group, changelog.dropped(_REMEDY))
            return
        first, last = changelog.upper + 1, changelog.upper + len(group)
        runs: list[Run] = [file for write in group for file in write.files]
        if len(updates):
            runs.append(MemoryRun(updates, self.memory.reserve(updates.size_bytes)))
        forgotten: dict[str, int] = {}
        for version, write in enumerate(group, first):
            if (transaction := write.transaction) is not None:
                forgotten |= changelog.transactions.note((transaction.id, transaction.version), version)
        if forgotten:
            changelog.records.forget(forgotten)
        # Producers before followers: a producer gathers its next rows while followers read.
        for version, write in enumerate(group, first):
            write.made(version)
        changelog.published(runs, last, now)


def _refuse(group: Iterable[PendingCommit], why: FlightShuffleError) -> None:
    for write in group:
        write.refuse(why)


def _is_small(changelog: Changelog, group: list[PendingCommit]) -> bool:
    updates = [write.updates for write in group if write.updates is not None]
    rows, size_bytes = sum(map(len, updates)), sum(each.size_bytes for each in updates)
    return len(group) <= IN_LOOP_COMMITS and changelog.layout.are_few(rows, size_bytes)


def _encoded(changelog: Changelog, first: int, group: list[PendingCommit]) -> tuple[Updates, bytes]:
    """The group's updates with their versions, and their block. Blocks."""
    versioned = []
    for version, write in enumerate(group, first):
        if write.updates is not None:
            write.updates.versions.fill(version)
            versioned.append(write.updates)
        for file in write.files:
            file.commit(version)
    updates = Updates.joined(changelog.layout, versioned)
    return updates, changelog.records.block(lambda: to_block(updates).to_pybytes()) if len(updates) else b""
