"""RuleChecks: tests puts into a changelog whose rule is a query of the user's own, before they are committed.

Guarantee: the query has been run over the asserted rows of each put that is committed, so that no read and no merge
finds a row on which it fails by itself; and it has been tested on a sample of the rows of all puts since the start
(``Sample``), without the keys of which rows were retracted or deleted. A put that fails
is refused alone. Retractions are not tested: they remove rows, also some on which the query fails.

Puts that wait together are tested together; if that fails, one after the other. The rows of a put that is refused are
not in the sample; those of one that is not committed for another reason are.

Not seen, unless they are in the sample: rows on which the query fails only together with others, such as a sum that is
too large for its type. Reads fail then, and compaction waits, until one of these rows is retracted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flight_server.keys import unique
from flight_server.protocol import FlightShuffleError
from flight_server.storage import to_its_end

from .rules import Query, Sample
from .runs import Layout, Updates

Hashes = NDArray[np.uint64]

TOGETHER_ROWS = 64 << 10


@dataclass(eq=False)
class _Put:
    updates: Updates
    done: Future[None] = field(default_factory=Future)


class RuleChecks:
    """The tests of one changelog's puts.

    Args:
        dataset: the changelog's name.
        threads: run one piece of work at a time.
    """

    def __init__(self, dataset: str, rule: Query, layout: Layout, threads: Executor) -> None:
        self._dataset = dataset
        self._rule = rule
        self._layout = layout
        self._threads = threads
        self._waiting: deque[_Put] = deque()
        self._removed: deque[Hashes] = deque()  # keys of which rows were retracted or deleted
        self._sample = Sample.empty(layout.schema)

    async def check(self, updates: Updates) -> None:
        """Return when these may be committed. A cancelled put is not tested, or the cancellation comes after its test.

        Raises InvalidRequest if the query fails on them, or is not idempotent; OutOfBudget and Unavailable as
        :class:`~flight_server.kinds.changelog.rules.Query`.
        """
        asserted, removes = updates.where(updates.diffs > 0), updates.diffs < 0
        if removes.any():
            self._removed.append(unique(updates.hashes[removes]))
        if not len(asserted):
            if removes.any():
                self._threads.submit(self._remove)
            return
        put = _Put(asserted)
        self._waiting.append(put)
        self._threads.submit(self._next)  # finds nothing if the one before has taken this put, too
        tested = asyncio.wrap_future(put.done)
        try:
            await asyncio.wait([tested])
        except asyncio.CancelledError:
            if not put.done.cancel():
                await to_its_end(tested)
            raise
        tested.result()

    def _next(self) -> None:
        puts: list[_Put] = []
        rows = 0
        while self._waiting and (not puts or rows + len(self._waiting[0].updates) <= TOGETHER_ROWS):
            put = self._waiting.popleft()
            if put.done.set_running_or_notify_cancel():
                puts.append(put)
                rows += len(put.updates)
        if len(puts) > 1 and self._failure(puts) is None:
            for put in puts:
                put.done.set_result(None)
            return
        for put in puts:
            failure = self._failure([put])
            if failure is None:
                put.done.set_result(None)
            else:
                put.done.set_exception(failure)

    def _failure(self, puts: Sequence[_Put]) -> BaseException | None:
        """Why these must not be committed; None if they may."""
        try:
            self._test(Updates.joined(self._layout, [put.updates for put in puts]))
        except FlightShuffleError as error:
            return type(error)(f"dataset {self._dataset!r}: {error.message}", dataset=self._dataset)
        except BaseException as bug:  # noqa: BLE001  # it belongs to the puts
            return bug
        return None

    def _test(self, updates: Updates) -> None:
        self._rule.check_rows(updates.rows, updates.diffs)
        self._remove()
        sample = self._sample.plus(updates.rows, updates.hashes, updates.diffs)
        if sample.due:
            self._rule.check_idempotent(sample.rows)
            sample = sample.was_tested()
        self._sample = sample

    def _remove(self) -> None:
        while self._removed:
            self._sample = self._sample.without(self._removed.popleft())
