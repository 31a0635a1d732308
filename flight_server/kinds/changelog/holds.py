"""Holds: the versions that readers keep readable, each with a lease and a maximal lag.

Guarantee: compaction does not go past the oldest hold. A hold ends with its lease, or when its version has been out of
date for ``max_lag_seconds``; a reader that goes on from it then gets ``Compacted``. An emitter's hold has no maximal
lag. The names of the last ``MAX_LAPSED`` that ended so are remembered: a client that asks for such a hold again gets
the version that it held, or ``Compacted``, never another.

Owners
    A hold names its owner in words for people; these give no right. It belongs to the principal that took it: only that
    one and admins may renew, move or release it. One without a principal (the server had no tokens) is any client's.
    The open stream of a read or follower has its peer, and cannot be
    released.

Memory
    A hold is counted with ``HOLD_BYTES`` and four bytes for each character of its owner, the name of one that has
    lapsed with ``LAPSED_BYTES``, in ``metadata``. A changelog has at most ``MAX_HOLDS``. An open stream's hold is part
    of the stream.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flight_server.memory import Metadata
from flight_server.protocol import Compacted, InvalidRequest, OutOfBudget

MAX_LAPSED = 1000
MAX_HOLDS = 10_000
MAX_LISTED = 100
HOLD_BYTES = 768
LAPSED_BYTES = 256
FOLLOWER = "a follower"
SAID_SECONDS = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold; times in seconds of the monotonic clock.

    Args:
        taken: when it was first taken, at this version or an earlier one.
        owner: as the last request with an owner names it.
        passed: since when there is a newer version, as far as was looked; None if there was none.
        lasting: whether it has no maximal lag.
        principal: that took it.
    """

    version: int
    until: float
    taken: float
    owner: str | None = None
    passed: float | None = None
    lasting: bool = False
    principal: str | None = None


@dataclass(frozen=True)
class HeldBack:
    """The hold that compaction waits for: without it ``since`` would be greater.

    Args:
        hold: its name, or ``FOLLOWER`` for an open stream.
        seconds: how long its version has been out of date.
    """

    hold: str
    owner: str | None
    version: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "hold": self.hold,
            "owner": self.owner,
            "version": self.version,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        owner = "" if self.owner is None else f" of {self.owner}"
        return f"hold {self.hold!r}{owner}, at version {self.version}"


class Holds:
    """The holds of one changelog. ``named``: those that are no open streams'; ``lapsed``: the versions of the last that
    ended by themselves.
    """

    def __init__(self, dataset: str, max_lag_seconds: float, metadata: Metadata | None = None) -> None:
        self._dataset = dataset
        self._metadata = Metadata() if metadata is None else metadata
        self._room = self._metadata.pool.empty()
        self._max_lag_seconds = max_lag_seconds
        self.named: dict[str, Hold] = {}
        self.lapsed: dict[str, int] = {}
        self.writing: frozenset[str] = (
            frozenset()
        )  # changes of these are being written: they do not end meanwhile
        # Of readers whose stream is open.
        self._followers: dict[object, Hold] = {}
        self._said: HeldBack | None = None

    def __len__(self) -> int:
        return len(self.named) + len(self._followers)

    def oldest(self) -> int | None:
        return min((hold.version for _, hold in self._all()), default=None)

    def held_back(self, wanted: int, now: float) -> HeldBack | None:
        """The oldest hold, if it holds a version before the one up to which compaction would go."""
        name, hold = min(self._all(), key=lambda each: each[1].version, default=(FOLLOWER, None))
        if hold is None or hold.version >= wanted:
            return None
        return HeldBack(name, hold.owner, hold.version, 0.0 if hold.passed is None else now - hold.passed)

    def long_held_back(self, wanted: int, now: float) -> HeldBack | None:
        """As :meth:`held_back`, once that has lasted for ``SAID_SECONDS``, and again whenever the time has doubled."""
        held, said = self.held_back(wanted, now), self._said
        if held is None or said is None or (held.hold, held.version) != (said.hold, said.version):
            self._said = said = held and replace(held, seconds=SAID_SECONDS / 2)
        if held is None or said is None or held.seconds < 2 * said.seconds:
            return None
        self._said = held
        return held

    def _all(self) -> Iterator[tuple[str, Hold]]:
        yield from self.named.items()
        for hold in self._followers.values():
            yield FOLLOWER, hold

    def check(self, name: str, version: int | None, since: int, upper: int) -> int:
        """The version that :meth:`put` is to be called with. Changes nothing.

        Raises:
            Compacted: the version is below ``since``.
            InvalidRequest: it is above ``upper``, or below the present version of the hold of this name.
            OutOfBudget: there is no room for another hold.
        """
        held = self.named.get(name)
        if held is None:
            self._check_room()
        if held is not None and (version is None or version == held.version):
            return held.version
        wanted = self.lapsed.get(name, upper) if version is None else version
        if held is not None and wanted < held.version:
            raise InvalidRequest(
                f"dataset {self._dataset!r}: hold {name!r} is at version {held.version} and cannot go back to {wanted}",
                dataset=self._dataset,
            )
        if wanted > upper:
            raise InvalidRequest(
                f"dataset {self._dataset!r}: there is no version {wanted} to hold; the newest is {upper}",
                dataset=self._dataset,
            )
        if wanted < since:
            raise gone(self._dataset, wanted, since, upper)
        return wanted

    def put(
        self,
        name: str,
        version: int,
        until: float,
        *,
        taken: float,
        owner: str | None = None,
        principal: str | None = None,
    ) -> Hold:
        """Take, renew or move it; see :meth:`renewed` and :meth:`take`."""
        hold = self.renewed(name, version, until, taken=taken, owner=owner, principal=principal)
        self.take(name, hold)
        return hold

    def renewed(
        self,
        name: str,
        version: int,
        until: float,
        *,
        taken: float,
        owner: str | None = None,
        principal: str | None = None,
    ) -> Hold:
        """The hold for :meth:`take`, which is new, renewed or moved. One that there is keeps ``taken``, its principal,
        and its owner if none comes. Changes nothing.
        """
        known = self.named.get(name)
        if known is None:
            return Hold(version, until, taken, owner, principal=principal)
        passed = known.passed if known.version == version else None
        return replace(known, version=version, until=until, owner=owner or known.owner, passed=passed)

    def take(self, name: str, hold: Hold) -> None:
        """Let the hold have the name. One that is on disk is taken whether there is room or not."""
        self._release(name)
        self._room.grow(_held_bytes(hold))
        self.named[name] = hold

    def _check_room(self) -> None:
        what = f"another hold of dataset {self._dataset!r}"
        self._metadata.reserve(HOLD_BYTES, what, dataset=self._dataset).free()
        if len(self.named) >= MAX_HOLDS:
            raise OutOfBudget(
                f"there is no room for {what}: it has {MAX_HOLDS}, the most of a changelog; release some, or let their "
                "leases end",
                dataset=self._dataset,
            )

    def _release(self, name: str) -> None:
        if (held := self.named.pop(name, None)) is not None:
            self._room.shrink(_held_bytes(held))
        if self.lapsed.pop(name, None) is not None:
            self._room.shrink(LAPSED_BYTES)

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            self._release(name)

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
        self._followers[follower] = Hold(version, until, -math.inf, owner, passed, lasting)

    def leave(self, follower: object) -> None:
        self._followers.pop(follower, None)

    @property
    def followers(self) -> int:
        return len(self._followers)

    def expire(self, now: float, upper: int) -> list[str]:
        """End the holds whose lease or lag has ended; their names, and "a follower" for each open stream."""
        before = dict(self.named)
        ended = self._end_due(self.named, now, upper)
        for name in ended:
            self._room.shrink(_held_bytes(before[name]))
            self.add_lapsed(name, before[name].version)
        while len(self.lapsed) > MAX_LAPSED:
            self._release(next(iter(self.lapsed)))
        return ended + [FOLLOWER for _ in self._end_due(self._followers, now, upper)]

    def add_lapsed(self, name: str, version: int) -> None:
        """Remember the name of a hold that there is not, which had this version."""
        self._room.grow(LAPSED_BYTES)
        self.lapsed[name] = version

    def _end_due(self, holds: dict[T, Hold], now: float, upper: int) -> list[T]:
        ended = []
        for name, hold in list(holds.items()):
            passed = None if hold.version >= upper else now if hold.passed is None else hold.passed
            late = not hold.lasting and passed is not None and now - passed > self._max_lag_seconds
            if (hold.until <= now or late) and name not in self.writing:
                del holds[name]
                ended.append(name)
            elif passed != hold.passed:
                holds[name] = replace(hold, passed=passed)
        return ended

    def listed(self, now: float) -> list[dict[str, Any]]:
        """Those of the ``MAX_LISTED`` oldest versions, the oldest first."""
        oldest = heapq.nsmallest(MAX_LISTED, self.named.items(), key=lambda each: each[1].version)
        return [
            {
                "hold": name,
                "owner": hold.owner,
                "version": hold.version,
                "held_seconds": round(now - hold.taken, 3),
                "lease_left_seconds": round(hold.until - now, 3),
            }
            for name, hold in oldest
        ]


def _held_bytes(hold: Hold) -> int:
    return HOLD_BYTES + 4 * len(hold.owner or "")


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
