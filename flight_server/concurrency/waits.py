"""Waits: every wait of a stream has a name, an owner and an end, and is listed while it lasts.

The end is a deadline, or stands in :data:`ENDS`. The action ``why`` answers :meth:`Waits.listed`. ``what`` is one of

    producer    a reader waits for a frame or the schema from a producer
    budget      a stream waits for bytes in a memory account
    reader      a stream waits for its peer to take what was written
    disk        a stream waits for frames to come back from disk, or to be synced to it
    source      a pull waits for its source's next message, or a reader for a pull's next frame
    writer      a producer's stream waits for its peer to send

Entering costs about a microsecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Kind, beginning, dataset, partition, producer, peer, deadline and end.
_Wait = tuple[str, float, str | None, int | None, int | None, str | None, float | None, str | None]
Shown = Callable[[str], bool]
_ALL = slice(None)
ENDS = {
    "producer": "with that put, or the dataset's lease",
    "budget": "when readers read on, or are ended",
    "reader": "when it reads on or leaves, or others need its memory",
    "disk": "with the disk's answer",
    "source": "with the pull",
    "writer": "when it sends or leaves",
}
"""What ends a wait that has no deadline, by what it waits for. A follower's wait for a producer is one without end that
its reader asks for. A put has no deadline where ``put_idle_seconds`` is 0."""
WAITED_FOR = tuple(ENDS)


class Waits:
    """The waits of one server; one event loop."""

    def __init__(self) -> None:
        self._open: dict[int, _Wait] = {}
        self._next = 0

    @contextmanager
    def enter(
        self,
        what: str,
        *,
        dataset: str | None = None,
        partition: int | None = None,
        producer: int | None = None,
        peer: str | None = None,
        deadline_seconds: float | None = None,
    ) -> Iterator[int]:
        """List a wait while the block runs; its number. ``what``: of :data:`ENDS`."""
        self._next += 1
        key = self._next
        ends = ENDS[what] if deadline_seconds is None else None
        self._open[key] = (what, time.monotonic(), dataset, partition, producer, peer, deadline_seconds, ends)
        try:
            yield key
        finally:
            del self._open[key]

    def extend(self, number: int, deadline_seconds: float) -> None:
        """Give an open wait a later deadline, from its beginning on."""
        what, since, dataset, partition, producer, peer, _, ends = self._open[number]
        self._open[number] = (what, since, dataset, partition, producer, peer, deadline_seconds, ends)

    def __len__(self) -> int:
        return len(self._open)

    def count(self, dataset: str | None = None, shown: Shown | None = None) -> int:
        """The number of open waits; of those of ``dataset``, if given, and those of datasets that are ``shown``."""
        return len(self._open) if (dataset, shown) == (None, None) else len(self._of(dataset, shown))

    def overdue(self, after_seconds: float) -> int:
        """The number of open waits that have lasted so much longer than their deadline."""
        now = time.monotonic()
        return sum(
            deadline is not None and now - since > deadline + after_seconds
            for _, since, _, _, _, _, deadline, _ in self._open.values()
        )

    def listed(
        self, dataset: str | None = None, part: slice = _ALL, shown: Shown | None = None
    ) -> list[dict[str, Any]]:
        """``part`` of the same waits, longest first."""
        now = time.monotonic()
        return [
            {
                "waiting_for": what,
                "seconds": round(now - since, 6),
                "dataset": name,
                "partition": partition,
                "producer": producer,
                "peer": peer,
                "deadline_seconds": deadline_seconds,
                "ends": ends,
            }
            for what, since, name, partition, producer, peer, deadline_seconds, ends in self._of(
                dataset, shown
            )[part]
        ]

    def _of(self, dataset: str | None, shown: Shown | None) -> list[_Wait]:
        # Insertion-ordered: the longest wait comes first.
        return [
            wait
            for wait in self._open.values()
            if (dataset is None or wait[2] == dataset)
            and (shown is None or (wait[2] is not None and shown(wait[2])))
        ]
