"""From which host each host fetches a broadcast: a tree below the server, in which a host has a place once it asks.

Guarantee: a host is given the server, or a host that has asked before and can be read; never itself, and never a host
that reads from it, over however many others. So frames reach every host that stays.

Fan-out
    At most ``FAN_OUT`` hosts at a time are given the same parent, and so the server. It is given to more only if no
    host has a place left: above all where none can be read. The host nearest to the server comes first.

Begun
    A host that names its location can be read there from then on: it passes frames on while they arrive. One that has
    all frames is given to others for ``SERVES_SECONDS`` more; one that does not get them, for ``FETCH_SECONDS``.

Loss
    A host that cannot read from its parent says so, and gets another one. The lost parent is given to no other host
    until it asks, or has all frames. So a dead host costs at most ``FAN_OUT`` readers a time-out, and each of them one.
    A host that has lost ``MAX_LOSSES`` parents gets the server: in a network where hosts do not reach each other, that
    is what each costs. The word of a host counts about its own parent only.

Cost: a few steps of a heap for each call; for a host that others read from, up to ``_MAX_PASSED`` of those are passed
over, and then it gets the server.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

FAN_OUT = 2
MAX_LOSSES = 2
SERVES_SECONDS = 30.0
FETCH_SECONDS = 600.0
_MAX_PASSED = 1000
_SPARE = 64


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Host:
    """``until``: when it is last given to others. ``parent``: from which it may still read; None for the server and
    for a host that has all frames. ``has_place``: it counts among the parent's ``children``.
    """

    location: str | None
    until: float
    parent: _Host | None = None
    has_place: bool = False
    children: int = 0
    depth: int = 0
    losses: int = 0
    is_queued: bool = False


class CopyTree:
    """The tree of one content. Hosts are named as in ``host_copies``."""

    def __init__(self, clock: Callable[[], float], fan_out: int = FAN_OUT) -> None:
        self._clock = clock
        self._fan_out = fan_out
        self._server = _Host(None, math.inf)
        self._hosts: dict[str, _Host] = {}
        self._at: dict[str | None, _Host] = {None: self._server}
        # Others may still read from them, and must not be given to them when they come back.
        self._left: WeakValueDictionary[str, _Host] = WeakValueDictionary()
        self._queue: list[tuple[int, int, _Host]] = []
        self._queued = 0
        self._offer(self._server)

    def fetch(self, host: str, location: str | None = None, lost: str | None = None) -> str | None:
        """The location from which the host is to fetch; None for the server. Asked again, it is the same until the host
        loses it or has all frames.

        Args:
            location: where others can read from this host; None if they cannot. Hosts of one location are one.
            lost: the location of the parent from which the host cannot read.
        """
        known = self._known(host, location)
        if (before := known.parent) is not None:
            if lost is not None and before.location == lost:
                known.losses += 1
                self._lose(before)
            elif known.has_place and self._at.get(before.location) is before:
                return before.location
        self._give_up_place(known)
        known.until = self._clock() + FETCH_SECONDS
        parent = self._server if known.losses >= MAX_LOSSES else self._choose(known)
        known.parent, known.has_place, known.depth = parent, True, parent.depth + 1
        parent.children += 1
        self._offer(parent)
        self._offer(known)
        return parent.location

    def has_all(self, host: str) -> None:
        """The host has all frames. Of a host that did not ask it is nothing new; twice is fine."""
        if (known := self._hosts.get(host)) is not None:
            self._give_up_place(known)
            known.parent, known.losses, known.depth = None, 0, 1
            known.until = self._clock() + SERVES_SECONDS
            self._offer(known)

    def leave(self, host: str) -> None:
        """The host is given to no other one. Twice is fine."""
        if (known := self._hosts.pop(host, None)) is not None:
            self._lose(known)
            self._free_location(known)
            if known.location is not None:
                self._left[known.location] = known

    def _known(self, host: str, location: str | None) -> _Host:
        known = self._hosts.get(host)
        occupant = None if location is None else self._at.get(location)
        if occupant is not None and occupant is not known:
            self.leave(host)
            known = occupant
        elif known is None:
            known = self._left.pop(location or "", None) or _Host(location, 0.0)
        self._free_location(known)
        known.location = location
        if location is not None:
            self._at[location] = known
        self._hosts[host] = known
        return known

    def _free_location(self, host: _Host) -> None:
        if self._at.get(host.location) is host:
            del self._at[host.location]

    def _choose(self, asking: _Host) -> _Host:
        passed: list[_Host] = []
        source = self._server
        while self._queue and len(passed) < _MAX_PASSED:
            each = heapq.heappop(self._queue)[2]
            each.is_queued = False
            if not self._has_room(each):
                continue
            if not _reads_from(each, asking):
                source = each
                break
            passed.append(each)
        for each in passed:
            self._offer(each)
        return source

    def _has_room(self, host: _Host) -> bool:
        can_be_read = self._at.get(host.location) is host and host.until >= self._clock()
        return can_be_read and host.children < self._fan_out

    def _offer(self, host: _Host) -> None:
        if host.is_queued or not self._has_room(host):
            return
        if len(self._queue) > 2 * len(self._hosts) + _SPARE:
            # Most of them have left, or are full.
            for _, _, each in self._queue:
                each.is_queued = self._has_room(each)
            self._queue = [entry for entry in self._queue if entry[2].is_queued]
            heapq.heapify(self._queue)
        host.is_queued = True
        self._queued += 1
        heapq.heappush(self._queue, (host.depth, self._queued, host))

    def _lose(self, host: _Host) -> None:
        # It may still read from its parent: what reads from it must not be given to that parent.
        if host is not self._server:
            host.until = -math.inf
            self._give_up_place(host)

    def _give_up_place(self, host: _Host) -> None:
        if host.has_place and host.parent is not None:
            host.has_place = False
            host.parent.children -= 1
            self._offer(host.parent)


def _reads_from(host: _Host | None, other: _Host) -> bool:
    while host is not None and host is not other:
        host = host.parent
    return host is other
