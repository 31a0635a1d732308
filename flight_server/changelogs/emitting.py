"""Emitting: the rows that a rule puts together, such as pairs, go to another changelog, which the rule names.

Guarantee: each change of what the rule emits becomes one change of the other changelog, also after a crash: its
transaction names the version of the source that it comes from, so a repetition changes nothing.

How
    A task runs while the source has versions that were not emitted yet. The source holds these versions (``holds``).
    When the other changelog was dropped, the task ends; the next ``create`` of the source makes another one. Versions
    that emit nothing make no version of the other changelog, except one after ``MARK_SECONDS``, which says how
    far the task has come, so that the source can compact.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import structlog

from flight_server.concurrency import Background
from flight_server.protocol import FlightShuffleError, Transaction
from flight_server.rules import Emitting
from flight_server.runs import Damaged, Updates
from flight_server.storage import to_its_end

from .changelog import EMITTED, Changelog, ChangelogState
from .commits import Commits
from .folding import emitted
from .views import View

MARK_SECONDS = 1.0
TROUBLE_SECONDS = 1.0

_log = structlog.get_logger("flight_server.changelogs.emitting")


class Emitter:
    """Emits what the rule of one changelog puts together; see the module's text."""

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
        self._name = f"{source.generation}{EMITTED}"
        self._marked = target.transactions.get(self._name, (0, 0))[0]
        self._position = self._marked
        self._task: asyncio.Task[None] | None = None
        source.holds.follow(self, self._marked)

    def wake(self) -> None:
        """The source has new versions."""
        if self._task is None or self._task.done():
            self._task = self._background.start(self._run(), f"emitting of {self._source.name}")

    @property
    def open(self) -> bool:
        """Whether both changelogs take writes."""
        return self._source.state is ChangelogState.OPEN and self._target.state is ChangelogState.OPEN

    async def _run(self) -> None:
        while self.open:
            try:
                if self._source.upper > self._position:
                    await self._emit()
                elif self._position > self._marked:
                    await asyncio.sleep(MARK_SECONDS)
                    if self._source.upper == self._position:
                        await self._commit(None, 0, self._position)
                else:
                    return
            except Damaged as damage:
                self._source.damaged(str(damage))
            except FlightShuffleError as trouble:
                _log.warning("not_emitted", dataset=self._source.name, trouble=trouble.message)
                await asyncio.sleep(TROUBLE_SECONDS)
        # Nothing takes what the source puts together any more, so nothing of it is held.
        self._source.holds.leave(self)

    async def _emit(self) -> None:
        view, after = self._source.view(), self._position
        updates = await to_its_end(
            asyncio.get_running_loop().run_in_executor(self._threads, self._changes, view, after)
        )
        if len(updates):
            await self._commit(updates, len(updates), view.upper)
        self._position = view.upper

    async def _commit(self, updates: Updates | None, rows: int, version: int) -> None:
        await self._commits.commit(self._target, updates, [], rows, Transaction(self._name, version))
        self._marked = version
        self._source.holds.follow(self, version)
        self._source.wake()

    def _changes(self, view: View, after: int) -> Updates:
        rule, layout = view.rule, self._target.layout
        assert isinstance(rule, Emitting)
        parts = [
            emitted(updates, after, view.upper, rule, layout) for updates in view.changed(after, view.upper)
        ]
        return Updates.joined(layout, parts)


def is_emitting(changelog: Changelog) -> bool:
    """Whether its rule names a changelog for what it puts together."""
    return isinstance(changelog.rule, Emitting) and changelog.rule.emitted_schema is not None
