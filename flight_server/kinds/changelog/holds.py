"""Holds: the versions that readers keep readable, each with a lease and a maximal lag.

Guarantee: compaction does not go past the oldest hold. A hold ends with its lease, or when its version has been out of
date for ``max_lag_seconds``; a reader that goes on from it then gets ``Compacted``. An emitter's hold has no maximal
lag. The names of the last ``MAX_LAPSED`` that ended so are remembered: a client that asks for such a hold again gets
the version that it held, or ``Compacted``, never another.

Owners
    A hold names its owner in words for people; these give no right. It belongs to the principal that took it: only that
    one and admins may renew, move or release it. One without a principal (the server had no tokens) is any client's.
    The open stream of a read or follower has its peer, and cannot be released.

Memory
    A hold is counted with ``HOLD_BYTES`` and four bytes for each character of its owner, the name of one that has
    lapsed with ``LAPSED_BYTES``, in ``metadata``. A changelog has at most ``MAX_HOLDS``. An open stream's hold is part
    of the stream.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from flight_server.memory import Metadata, Reservation
from flight_server.protocol import Compacted, HoldRequest, InvalidRequest, NotFound, OutOfBudget
from flight_server.records import StoredHold

from .timeline import monotonic_time, past_time, wall_time

MAX_LAPSED = 1000
MAX_HOLDS = 10_000
MAX_LISTED = 100
HOLD_BYTES = 768
LAPSED_BYTES = 256
FOLLOWER = "a follower"
SAID_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold; times in seconds of the monotonic clock.

    Args:
        since: when it was first taken, at this version or an earlier one.
        owner: as the last request with an owner names it.
        passed: since when there is a newer version, as far as was looked; None if there was none.
        lasting: it has no maximal lag.
        room: counts it; of a follower None.
    """

    version: int
    until: float
    since: float = -math.inf
    owner: str | None = None
    passed: float | None = None
    lasting: bool = False
    principal: str | None = None
    room: Reservation | None = field(default=None, compare=False)


@dataclass(frozen=True)
class HoldChange:
    """What a request makes of the holds: ``hold`` gets the name, if it is not None, and ``released`` end. ``version``:
    of the hold; of a release the one that it had.
    """

    name: str
    version: int
    hold: Hold | None
    released: frozenset[str]

    def stored(self) -> StoredHold | None:
        """The hold with times of the host's clock."""
        hold = self.hold
        if hold is None:
            return None
        until, since = wall_time(hold.until), wall_time(hold.since)
        return StoredHold(self.name, hold.version, until, since, hold.owner, hold.principal)


@dataclass(frozen=True)
class HeldBack:
    """The hold that compaction waits for: without it ``since`` would be greater. ``hold``: its name, or ``FOLLOWER``;
    ``seconds``: how long its version has been out of date.
    """

    hold: str
    owner: str | None
    version: int
    seconds: float

    def __str__(self) -> str:
        owner = "" if self.owner is None else f" of {self.owner}"
        return f"hold {self.hold!r}{owner}, at version {self.version}"


class Holds:
    """The holds of one changelog. ``named``: those that are no open streams'; ``lapsed``: the last that ended by
    themselves.
    """

    def __init__(self, dataset: str, max_lag_seconds: float, metadata: Metadata | None = None) -> None:
        self._dataset = dataset
        self._metadata = Metadata() if metadata is None else metadata
        self._max_lag_seconds = max_lag_seconds
        self.named: dict[str, Hold] = {}
        self.lapsed: dict[str, Hold] = {}
        self._followers: dict[object, Hold] = {}
        self._changing: frozenset[str] = frozenset()
        self._logged: tuple[str, int] | None = None
        self._log_at_seconds = 0.0

    def __len__(self) -> int:
        return len(self.named) + len(self._followers)

    @property
    def followers(self) -> int:
        return len(self._followers)

    # What compaction waits for

    def oldest(self) -> int | None:
        return min((hold.version for _, hold in self._all()), default=None)

    def held_back(self, horizon: int, now: float) -> HeldBack | None:
        """The oldest hold, if it holds a version before the one up to which compaction would go."""
        name, hold = min(self._all(), key=lambda each: each[1].version, default=(FOLLOWER, None))
        if hold is None or hold.version >= horizon:
            return None
        seconds = 0.0 if hold.passed is None else now - hold.passed
        return HeldBack(name, hold.owner, hold.version, round(seconds, 3))

    def long_held_back(self, horizon: int, now: float) -> HeldBack | None:
        """As :meth:`held_back`, once that has lasted for ``SAID_SECONDS``, and again whenever the time has doubled."""
        held = self.held_back(horizon, now)
        place = None if held is None else (held.hold, held.version)
        if place != self._logged:
            self._logged, self._log_at_seconds = place, SAID_SECONDS
        if held is None or held.seconds < self._log_at_seconds:
            return None
        self._log_at_seconds = 2 * held.seconds
        return held

    def _all(self) -> Iterator[tuple[str, Hold]]:
        yield from self.named.items()
        for hold in self._followers.values():
            yield FOLLOWER, hold

    # Named holds

    def change(
        self, request: HoldRequest, since: int, upper: int, now: float, principal: str | None
    ) -> HoldChange:
        """What the request is to change; it is not changed yet.

        Raises:
            NotFound: a release of a hold that there is not.
            Compacted: the version is below ``since``.
            InvalidRequest: it is above ``upper``, or below the present version of the hold of this name.
            OutOfBudget: there is no room for another hold.
        """
        name, held = request.hold, self.named.get(request.hold)
        released = frozenset([] if request.releases is None else [request.releases]) - {name}
        if request.release:
            if held is None and name not in self.lapsed:
                raise NotFound(
                    f"dataset {self._dataset!r} has no hold {name!r}: it was never taken, was released, or ended long "
                    "ago; 'statistics' lists the holds that there are",
                    dataset=self._dataset,
                )
            return HoldChange(name, upper if held is None else held.version, None, released | {name})
        if held is None:
            self._check_room()
            before = self.lapsed.get(name)
            held = Hold(upper if before is None else before.version, now, now, principal=principal)
        version = held.version if request.version is None else request.version
        if name in self.named and version < held.version:
            raise InvalidRequest(
                f"dataset {self._dataset!r}: hold {name!r} is at version {held.version} and cannot go back to "
                f"{version}",
                dataset=self._dataset,
            )
        if version > upper:
            raise InvalidRequest(
                f"dataset {self._dataset!r}: there is no version {version} to hold; the newest is {upper}",
                dataset=self._dataset,
            )
        if version < since:
            raise gone(self._dataset, version, since, upper)
        until, passed = now + request.lease_seconds, held.passed if held.version == version else None
        owner = request.owner or held.owner
        hold = replace(held, version=version, until=until, owner=owner, passed=passed)
        return HoldChange(name, version, hold, released)

    def _check_room(self) -> None:
        what = f"another hold of dataset {self._dataset!r}"
        self._metadata.reserve(HOLD_BYTES, what, dataset=self._dataset).free()
        if len(self.named) >= MAX_HOLDS:
            raise OutOfBudget(
                f"there is no room for {what}: it has {MAX_HOLDS}, the most of a changelog; release some, or let their "
                "leases end",
                dataset=self._dataset,
            )

    @contextmanager
    def changing(self, change: HoldChange) -> Iterator[None]:
        """While a change is written, in the changelog's turn, in which no fold begins, the present holds do not end by
        themselves: they stay if the disk refuses.
        """
        self._changing = change.released | {change.name}
        try:
            yield
        finally:
            self._changing = frozenset()

    def make(self, change: HoldChange) -> None:
        """The change is on disk."""
        self.release([change.name, *change.released])
        if change.hold is not None:
            self._take(change.name, change.hold)

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            self.named.pop(name, None)
            self.lapsed.pop(name, None)

    def restore(self, stored: StoredHold) -> None:
        """A hold is on disk, or one that has ended."""
        name, version, until, since, owner, principal = stored
        if until is None:
            self._lapse(name, version)
        else:
            self._take(
                name, Hold(version, monotonic_time(until), past_time(since), owner, principal=principal)
            )

    def _take(self, name: str, hold: Hold) -> None:
        room = self._metadata.pool.reserve(HOLD_BYTES + 4 * len(hold.owner or ""))
        self.named[name] = replace(hold, room=room)

    def _lapse(self, name: str, version: int) -> None:
        self.lapsed[name] = Hold(version, -math.inf, room=self._metadata.pool.reserve(LAPSED_BYTES))
        if len(self.lapsed) > MAX_LAPSED:
            del self.lapsed[next(iter(self.lapsed))]

    # Open streams

    def follow(
        self,
        follower: object,
        version: int,
        owner: str | None = None,
        *,
        until: float = math.inf,
        lasting: bool = False,
    ) -> None:
        """An open stream has been sent everything up to this version, or reads it; its hold ends at ``until``.
        ``lasting``: see :class:`Hold`.
        """
        held = self._followers.get(follower)
        passed = held.passed if held is not None and held.version == version else None
        self._followers[follower] = Hold(version, until, owner=owner, passed=passed, lasting=lasting)

    def leave(self, follower: object) -> None:
        self._followers.pop(follower, None)

    # Ends

    def expire(self, now: float, upper: int) -> list[str]:
        """End the holds whose lease or lag has ended; their names, and ``FOLLOWER`` for each open stream."""
        ended = []
        every: Any
        for every in (self.named, self._followers):
            for name, hold in list(every.items()):
                passed = None if hold.version >= upper else now if hold.passed is None else hold.passed
                late = not hold.lasting and passed is not None and now - passed > self._max_lag_seconds
                if (hold.until <= now or late) and name not in self._changing:
                    del every[name]
                    if every is self.named:
                        self._lapse(name, hold.version)
                    ended.append(name if every is self.named else FOLLOWER)
                elif passed != hold.passed:
                    every[name] = replace(hold, passed=passed)
        return ended

    def listed(self, now: float) -> list[dict[str, Any]]:
        """Those of the ``MAX_LISTED`` oldest versions, the oldest first."""
        oldest = heapq.nsmallest(MAX_LISTED, self.named.items(), key=lambda each: each[1].version)
        return [
            {
                "hold": name,
                "owner": hold.owner,
                "version": hold.version,
                "held_seconds": round(now - hold.since, 3),
                "lease_left_seconds": round(hold.until - now, 3),
            }
            for name, hold in oldest
        ]


def gone(dataset: str, version: int, since: int, upper: int) -> Compacted:
    """The error for a version below ``since``."""
    return Compacted(
        f"dataset {dataset!r}: version {version} was compacted; versions {since} to {upper} can be asked for: take a "
        "snapshot and go on from its version, and hold the versions that are still needed (action 'hold')",
        dataset=dataset,
        version=version,
        since=since,
        upper=upper,
    )
