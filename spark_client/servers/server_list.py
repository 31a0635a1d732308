"""ServerList: the servers of one client, and the start that each last answered under.

They are given, or learnt from tasks that have started them (:meth:`ServerList.learn`). Those that are learnt hold the
datasets of exchanges alone: every other dataset is on the driver's server. One that is lost is forgotten: the
next task starts another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from flight_server.protocol import FlightShuffleError
from spark_client.connection import RemoteServer

from .driver_calls import ServerStart
from .driver_server import DriverServer

CALLS_AT_ONCE = 32
_SECONDS = 10.0
_AWAY_SECONDS = 2.0
"""The deadline of calls to a server that did not answer the last one."""
T = TypeVar("T")


def owner_of(name: str, locations: Iterable[str]) -> str:
    """The location of the server that holds the dataset of this name, where one server does: the same for each client
    of the same servers, whatever the order of the list; a server that is added takes over its share of the names only
    (rendezvous hashing, Thaler and Ravishankar 1998).
    """
    return max(locations, key=lambda each: (zlib.crc32(f"{each} {name}".encode()), each))


class ServerList:
    """Thread-safe.

    Args:
        first: one of the servers; its credentials and options are used for all.
        locations: of all of them, in one order for the driver and its tasks.
        home: where the servers are learnt, the driver's own. Then ``first`` is not called, and has no location.
    """

    def __init__(
        self, first: RemoteServer, locations: Iterable[str] = (), home: DriverServer | None = None
    ) -> None:
        self.first = first
        self.home = home
        self.locations = () if home is not None else tuple(locations) or (first.location,)
        if self.several and home is None:
            first.keep_peers()
        self._starts: dict[str, str] = {}
        self._away: set[str] = set()  # those that did not answer when they were last asked

    @property
    def several(self) -> bool:
        """Whether an exchange is spread."""
        return self.home is not None or len(self.locations) > 1

    @property
    def main(self) -> RemoteServer:
        """The first one; where they are learnt, the driver's, which this starts."""
        return self.first if self.home is None else self.home.server()

    def at(self, location: str) -> RemoteServer:
        own = None if self.home is None else self.home.started
        return own if own is not None and own.location == location else self.first.at(location)

    def learn(self, found: Sequence[ServerStart]) -> None:
        """Tasks have written to these."""
        self._starts.update((each.location, each.start) for each in found)
        self.locations = tuple(dict.fromkeys([*self.locations, *(each.location for each in found)]))

    def knows(self, start: str) -> bool:
        """Whether the start is one that a server had when it was last asked, or that was learnt."""
        return start in [*self._starts.values()]

    def of(self, name: str) -> RemoteServer:
        """The server of a dataset that one server holds, see :func:`owner_of`."""
        if self.home is not None or not self.several:
            return self.main
        return self.at(owner_of(name, self.locations))

    def owner(self, name: str) -> str:
        """The location of the server that is to hold a new dataset which one server holds: one that can be reached."""
        return self.main.location if self.home is not None else owner_of(name, self.reachable())

    def patience_seconds(self, location: str) -> float | None:
        """The deadline of a call that need not reach the server; None for that of all calls."""
        return _AWAY_SECONDS if location in self._away else None

    def each(self, call: Callable[[RemoteServer], T], locations: Iterable[str] | None = None) -> list[T]:
        """The results of a call at each server, made at once. Without ``locations`` those that were learnt and are lost
        are left out, and the driver's is asked, too, if it was started.
        """
        if locations is None and self.home is not None:
            self.lost()
        servers = [self.at(each) for each in (self.locations if locations is None else locations)]
        if locations is None and self.home is not None and self.home.started is not None:
            servers.append(self.home.started)
        if len(servers) < 2:
            return [call(each) for each in servers]
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(servers)), "servers") as threads:
            return list(threads.map(call, servers))

    def reachable(self) -> tuple[str, ...]:
        """The locations of the servers that have answered since they were last found lost; the others are asked now.
        All of them if none answers: then their own errors say why.
        """
        self._ask([each for each in self.locations if each not in self._starts])
        return tuple(each for each in self.locations if each in self._starts) or self.locations

    def lost(self) -> list[ServerStart]:
        """Ask all servers: those that were reachable and are not now, or answer under another start."""
        before = dict(self._starts)
        self._ask(self.locations)
        lost = [ServerStart(each, before[each]) for each in before if self._starts.get(each) != before[each]]
        if self.home is not None:
            gone = {each.location for each in lost}
            self.locations = tuple(each for each in self.locations if each not in gone)
        return lost

    def end(self) -> None:
        """End the driver's server, and those that were learnt: one that cannot be reached ends with its executor. Given
        servers go on. Twice is fine.
        """

        def drain(server: RemoteServer) -> None:
            with suppress(FlightShuffleError):
                server.action("drain", timeout_seconds=_SECONDS, once=True)

        if self.home is not None:
            self.each(drain, self.locations)
            self.locations = ()
            self.home.close()

    def _ask(self, locations: Iterable[str]) -> None:
        locations = list(locations)

        def start(server: RemoteServer) -> str | None:
            seconds = self.patience_seconds(server.location) or _SECONDS
            try:
                return str(server.action("locations", timeout_seconds=seconds, once=True)["start"])
            except FlightShuffleError:
                return None

        for location, found in zip(locations, self.each(start, locations), strict=True):
            if found is None:
                self._away.add(location)
                self._starts.pop(location, None)
            else:
                self._away.discard(location)
                self._starts[location] = found
