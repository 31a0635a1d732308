"""Quotas: what each principal has on this server, and the most that it may have.

Guarantee: a principal at a quota is refused more, and nothing changes for any other one.

Who has what
    The principal whose call makes a dataset owns it, and with it the bytes that others put there. Its *bytes* are those
    of its datasets' frames in RAM and in files on disk, of a frame in both twice, and what a kind keeps beside frames.
    Not counted are records (``metadata``), and what sources pull, which goes when others need the room. A replaced or
    dropped dataset counts no more; its bytes do until its last reader has ended. After a restart recovered datasets
    have no owner.

When
    Bytes are claimed before a message of a put waits for room, so puts at the same time do not pass the quota
    together. A put that a quota ends leaves nothing behind. A stream counts while it runs.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

from flight_server.memory import Budget, Tally
from flight_server.protocol import QuotaExceeded, QuotaInUse

from .principals import Principal, Quotas

LOOK_SECONDS = 1.0
"""How old the count of what kinds keep beside frames may be, while all that has come since would fit the quota."""


class Owned(Protocol):
    """A dataset."""

    @property
    def name(self) -> str: ...

    @property
    def gone(self) -> bool:
        """Whether no name leads to it, and no staged write is it, any more."""

    @property
    def attached(self) -> Any:
        """Its ``Attachment``, whose ``stored`` has the bytes that are in no frames."""


class Usage:
    """What one principal has, against its ``quotas``. Methods are called in the event loop."""

    def __init__(self, principal: str, quotas: Quotas, budget: Budget) -> None:
        self.principal = principal
        self.quotas = quotas
        self.frames = Tally(budget.frames, f"frames of {principal}")
        self.disk = Tally(budget.disk, f"disk of {principal}")
        self.streams = 0
        self._claimed_bytes = self._since_look_bytes = 0
        self._attached_bytes, self._looked_at = 0, -math.inf
        self._datasets: weakref.WeakSet[Owned] = weakref.WeakSet()

    @property
    def used_bytes(self) -> int:
        self._looked_at, self._since_look_bytes = time.monotonic(), 0
        self._attached_bytes = sum(
            [sum(each.attached.stored()[1:]) for each in self._datasets if not each.gone]
        )
        return self._known_bytes

    @property
    def _known_bytes(self) -> int:
        """As ``used_bytes``, with what kinds keep beside frames as it was at the last look."""
        return self.frames.used_bytes + self.disk.used_bytes + self._claimed_bytes + self._attached_bytes

    def datasets(self) -> list[Owned]:
        """Those that it owns."""
        for each in [each for each in self._datasets if each.gone]:
            self._datasets.discard(each)
        return list(self._datasets)

    def check_new(self, dataset: str) -> None:
        """Raise QuotaExceeded if it may own no further dataset, or has no bytes left for one. One that replaces another
        of its own is none; of several that are to replace it the first.
        """
        limit = self.quotas.datasets
        if limit is not None and len(self._datasets) >= limit:
            mine = self.datasets()
            others = len(mine) - any(each.name == dataset for each in mine)
            if others >= limit:
                raise self._exceeded("datasets", others, limit, dataset)
        self._check_bytes(0, dataset)

    def own(self, dataset: Owned) -> None:
        self._datasets.add(dataset)

    @contextmanager
    def claim(self, size_bytes: int, dataset: str) -> Iterator[None]:
        """Count the bytes inside, where they are reserved and taken by ``frames``. Raises QuotaExceeded."""
        self._check_bytes(size_bytes, dataset)
        self._claimed_bytes += size_bytes
        self._since_look_bytes += size_bytes
        try:
            yield
        finally:
            self._claimed_bytes -= size_bytes

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a put or get inside. Raises QuotaInUse: it has as many as it may."""
        limit = self.quotas.streams
        if limit is not None and self.streams >= limit:
            raise QuotaInUse(
                f"principal {self.principal!r} has {self.streams} running puts and gets, as many as its quota allows: "
                "wait until one ends, use fewer tasks at a time, or have the quota raised in the token file",
                principal=self.principal,
                quota="streams",
                used=self.streams,
                limit=limit,
            )
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    def statistics(self) -> dict[str, Any]:
        """What it has, and may have at most, for itself."""
        used = {"bytes": self.used_bytes, "datasets": len(self.datasets()), "streams": self.streams}
        return {name: {"used": used[name], "limit": getattr(self.quotas, name)} for name in used}

    def _check_bytes(self, more_bytes: int, dataset: str) -> None:
        limit = self.quotas.bytes
        if limit is None:
            return
        wanted_bytes = max(1, more_bytes)
        # Not at each message: a principal may have many datasets.
        looked = time.monotonic() < self._looked_at + LOOK_SECONDS
        if looked and self._known_bytes + self._since_look_bytes + wanted_bytes <= limit:
            return
        if (used := self.used_bytes) + wanted_bytes > limit:
            raise self._exceeded("bytes", used, limit, dataset, wanted_bytes=more_bytes)

    def _exceeded(self, quota: str, used: int, limit: int, dataset: str, **detail: Any) -> QuotaExceeded:
        return QuotaExceeded.about(
            dataset,
            f"gets no more: principal {self.principal!r} has {used} of {limit} {quota}, its quota; drop some of its "
            "datasets, let leases end, or have the quota raised in the token file",
            principal=self.principal,
            quota=quota,
            used=used,
            limit=limit,
            **detail,
        )


class Usages:
    """The usage of each principal, by its name: it outlives a change of the quotas."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._known: dict[str, Usage] = {}

    def of(self, principal: Principal) -> Usage:
        """Its usage, from now on under the quotas that it has now."""
        known = self._known.get(principal.name)
        if known is None:
            known = self._known[principal.name] = Usage(principal.name, principal.quotas, self._budget)
        known.quotas = principal.quotas
        return known

    def calls_of(self, principal: Principal) -> AbstractContextManager[None]:
        """What a call inside makes is this principal's. One that never had quotas owns nothing."""
        none = principal.quotas == _NO_QUOTAS and principal.name not in self._known
        return acting_for(None if none else self.of(principal))


_NO_QUOTAS = Quotas()
acting: ContextVar[Usage | None] = ContextVar("acting", default=None)
"""The usage of the principal whose call runs. None for the server itself."""


@contextmanager
def acting_for(usage: Usage | None) -> Iterator[None]:
    """Datasets that are made inside belong to ``usage``."""
    token = acting.set(usage)
    try:
        yield
    finally:
        acting.reset(token)


def open_stream() -> AbstractContextManager[None]:
    """Count a put or get of the principal whose call runs. Raises as :meth:`Usage.stream`."""
    usage = acting.get()
    return nullcontext() if usage is None else usage.stream()
