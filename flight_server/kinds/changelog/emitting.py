"""Emitting: the rows that a rule puts together, such as pairs, go to another changelog, which the rule names.

Guarantee: each change of the rule's pairs becomes one change of the other changelog, also after a crash at any moment;
or the source says in ``statistics``, as ``not_emitting``, and in the log why not.

How
    A task runs while the source has versions that were not emitted yet. Each commit to the other changelog, the
    *target*, has a transaction: the source's generation, and the *mark*, the source's version up to which all is in the
    target. So the rows and the mark are on disk in one step, and a restart goes on at the mark. Versions that emit
    nothing make no version of the target, but one each ``MARK_SECONDS`` while they come, so that the source can
    compact.

Holding
    The source keeps all versions from the mark on, however old they get. An emitter that finds the mark below ``since``
    ends, because the pairs in between cannot be known any more.

When the target takes nothing
    While it refuses, because the disk or memory is full, the emitter tries again each ``TROUBLE_SECONDS``. When it was
    dropped or is damaged, the emitter ends, and the source keeps nothing for it. The next ``create`` of the source
    makes another emitter, and another target if there is none; it gets the pairs from ``since`` on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import structlog

from flight_server.concurrency import Background, in_thread
from flight_server.memory import MemoryPool
from flight_server.protocol import FlightShuffleError, Transaction
from flight_server.records import DiskTrouble

from .changelog import Changelog, ChangelogState
from .commits import Commits
from .folding import emitted
from .runs import Damaged
from .views import View, with_diffs
from .writes import ChangelogWrite

MARK_SECONDS = 1.0
TROUBLE_SECONDS = 1.0

_log = structlog.get_logger("flight_server.kinds.changelog.emitting")


class Emitter:
    """Emits the rows that the rule of one changelog puts together. ``threads`` read the source's runs."""

    def __init__(
        self,
        source: Changelog,
        target: Changelog,
        commits: Commits,
        background: Background,
        threads: Executor,
    ) -> None:
        self._source = source
        self._target = target
        self._commits = commits
        self._background = background
        self._threads = threads
        self._uncounted = MemoryPool(None)  # of rows that are not written yet, some MiB
        self._id = f"{source.generation}:emitted"
        target.transactions.keep(self._id)
        mark = target.transactions.last(self._id)
        self._after = mark  # the number of the target's last transaction
        self._marked = source.since if mark is None else mark
        self._marked_at = _clock()
        self._position = self._marked
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        source.not_emitting = None
        source.holds.follow(self, self._marked, lasting=True)
        self.wake()

    def wake(self) -> None:
        """The source may have new versions."""
        self.look()
        if self.open and self._source.upper > self._marked and (self._task is None or self._task.done()):
            self._task = self._background.start(self._run(), f"emitting of {self._source.name}")

    @property
    def open(self) -> bool:
        """Whether it emits, now or when the target takes rows again."""
        states = self._source.state, self._target.state
        return not self._ended and states == (ChangelogState.OPEN, ChangelogState.OPEN)

    def look(self) -> None:
        """End it if it cannot go on. Twice is fine."""
        source, target = self._source, self._target.name
        if self._ended:
            return
        again = f"create {source.name!r} again"
        if source.state is not ChangelogState.OPEN:
            self._ended = True
            source.holds.leave(self)
        elif self._target.state is ChangelogState.CLOSED:
            self._end(f"{target!r} {self._target.why_closed}; {again}, which makes another one")
        elif self._target.state is ChangelogState.DAMAGED:
            self._end(f"{target!r} is damaged and takes nothing more; drop it and {again}")
        elif not source.since <= self._position <= source.upper:
            self._end(
                f"{target!r} has what was put together up to version {self._position}, and of {source.name!r} there "
                f"are versions {source.since} to {source.upper}: what came in between is lost. Drop {target!r} and "
                f"{again}: a new one gets what comes from then on"
            )

    def _end(self, why: str) -> None:
        self._ended = True
        self._source.holds.leave(self)
        self._source.not_emitting = f"since {_now()}: {why}"
        _log.error("not_emitting", dataset=self._source.name, target=self._target.name, trouble=why)
        self._source.wake()

    async def _run(self) -> None:
        while self.open:
            try:
                if self._source.upper > self._position:
                    await self._emit()
                elif self._position == self._marked:
                    return
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(self._marked_at + MARK_SECONDS):
                            await self._source.changes.next()
                if self._position > self._marked and _clock() >= self._marked_at + MARK_SECONDS:
                    mark = ChangelogWrite(self._target, self._commits, self._threads)
                    await self._commit(mark, self._position)
            except Damaged as damage:
                self._source.damaged(str(damage))
            except (FlightShuffleError, DiskTrouble, OSError, pa.ArrowException) as trouble:
                self._trouble(trouble)
                await asyncio.sleep(TROUBLE_SECONDS)
            except Exception as bug:
                self._trouble(bug)
                raise
        self.look()

    def _trouble(self, trouble: Exception) -> None:
        why = trouble.message if isinstance(trouble, FlightShuffleError) else str(trouble)
        source = self._source
        if source.not_emitting is None:
            _log.warning("not_emitting", dataset=source.name, target=self._target.name, trouble=why)
            source.not_emitting = (
                f"since {_now()}, and versions from {self._marked} on are kept for it: {why}"
            )

    async def _emit(self) -> None:
        self.look()
        if self._ended:
            return
        view, after = self._source.view(), self._position
        write = ChangelogWrite(self._target, self._commits, self._threads)
        parts = self._changes(view, after)
        while (part := await in_thread(self._threads, next, parts, None)) is not None:
            await write.take(part, self._uncounted.reserve(part.nbytes))
        if write.rows:
            await self._commit(write, view.upper)
        self._position = view.upper

    async def _commit(self, write: ChangelogWrite, version: int) -> None:
        await write.commit(Transaction(self._id, version, self._after))
        self._after = self._marked = version
        self._marked_at = _clock()
        if self._ended:  # meanwhile
            return
        self._source.holds.follow(self, version, lasting=True)
        if self._source.not_emitting is not None:
            _log.info("emitting_again", dataset=self._source.name, target=self._target.name)
            self._source.not_emitting = None
        self._source.wake()

    def _changes(self, view: View, after: int) -> Iterator[pa.RecordBatch]:
        for updates in view.changed(after, view.upper):
            pairs = emitted(updates, after, view.upper, view.rule, self._target.layout)
            if len(pairs):
                yield with_diffs(self._target.layout, pairs.rows, pairs.diffs)


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
