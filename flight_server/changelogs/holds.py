"""Holds: the versions that readers keep readable, each with a lease and a maximal lag.

Guarantee: compaction does not go past the oldest hold. A hold ends with its lease, or when its version has been out of
date for ``max_lag_seconds``; who reads on from it then gets ``Compacted``. The names of the last ``MAX_LAPSED`` that
ended so are remembered: who asks for such a hold again gets the version that it held, or ``Compacted``, never another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flight_server.protocol import Compacted, InvalidRequest

MAX_LAPSED = 1000

T = TypeVar("T")


@dataclass(frozen=True)
class Hold:
    """One hold; times in seconds of the monotonic clock.

    Args:
        passed: since when there is a newer version, as far as was looked; None if there was none.
    """

    version: int
    until: float
    passed: float | None = None


class Holds:
    """The holds of one changelog."""

    def __init__(self, dataset: str, max_lag_seconds: float) -> None:
        self._dataset = dataset
        self._max_lag_seconds = max_lag_seconds
        self._holds: dict[str, Hold] = {}
        self.lapsed: dict[str, int] = {}
        # Of readers whose stream is open.
        self._followers: dict[object, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds) + len(self._followers)

    def oldest(self) -> int | None:
        """The oldest version that is held."""
        return min(
            (hold.version for hold in (*self._holds.values(), *self._followers.values())), default=None
        )

    def get(self, name: str) -> Hold | None:
        return self._holds.get(name)

    def knows(self, name: str) -> bool:
        """Whether there is such a hold, or one of the last that ended by themselves."""
        return name in self._holds or name in self.lapsed

    def check(self, name: str, version: int | None, since: int, upper: int) -> int:
        """The version that :meth:`put` is to be called with. Changes nothing.

        Raises:
            Compacted: the version is below ``since``.
            InvalidRequest: it is above ``upper``, or below what the hold of this name holds.
        """
        held = self._holds.get(name)
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

    def put(self, name: str, version: int, until: float) -> None:
        held = self._holds.get(name)
        passed = held.passed if held is not None and held.version == version else None
        self._holds[name] = Hold(version, until, passed)
        self.lapsed.pop(name, None)

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            self._holds.pop(name, None)
            self.lapsed.pop(name, None)

    def named(self, prefix: str) -> list[str]:
        return [name for name in self._holds if name.startswith(prefix)]

    def follow(self, follower: object, version: int, until: float = math.inf) -> None:
        """An open stream has been sent everything up to this version, or reads it; its hold ends at ``until``."""
        held = self._followers.get(follower)
        passed = held.passed if held is not None and held.version == version else None
        self._followers[follower] = Hold(version, until, passed)

    def leave(self, follower: object) -> None:
        self._followers.pop(follower, None)

    @property
    def followers(self) -> int:
        return len(self._followers)

    def expire(self, now: float, upper: int) -> list[str]:
        """End what has ended, see the module's text; the names, and "a follower" for each open stream."""
        before = {name: hold.version for name, hold in self._holds.items()}
        ended = self._expired(self._holds, now, upper)
        self.lapsed |= {name: before[name] for name in ended}
        while len(self.lapsed) > MAX_LAPSED:
            del self.lapsed[next(iter(self.lapsed))]
        return ended + ["a follower" for _ in self._expired(self._followers, now, upper)]

    def _expired(self, holds: dict[T, Hold], now: float, upper: int) -> list[T]:
        ended = []
        for name, hold in list(holds.items()):
            passed = None if hold.version >= upper else now if hold.passed is None else hold.passed
            if hold.until <= now or (passed is not None and now - passed > self._max_lag_seconds):
                del holds[name]
                ended.append(name)
            elif passed != hold.passed:
                holds[name] = replace(hold, passed=passed)
        return ended

    def leases(self) -> dict[str, tuple[int, float]]:
        """The version and the end of each hold that has a name."""
        return {name: (hold.version, hold.until) for name, hold in self._holds.items()}

    def listed(self, now: float) -> list[dict[str, Any]]:
        """For ``statistics``."""
        return [
            {"hold": name, "version": hold.version, "lease_left_seconds": round(hold.until - now, 3)}
            for name, hold in self._holds.items()
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
