"""ServerList: the servers of one client, and the start that each last answered under."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from flight_server.protocol import FlightShuffleError
from spark_client.connection import RemoteServer

from .driver_calls import ServerStart

CALLS_AT_ONCE = 32
_SECONDS = 10.0
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
    """

    def __init__(self, first: RemoteServer, locations: Iterable[str] = ()) -> None:
        self.first = first
        self.locations = tuple(locations) or (first.location,)
        if self.several:
            first.keep_peers()
        self._starts: dict[str, str] = {}

    @property
    def several(self) -> bool:
        return len(self.locations) > 1

    def at(self, location: str) -> RemoteServer:
        return self.first.at(location)

    def of(self, name: str) -> RemoteServer:
        """The server of a dataset that one server holds, see :func:`owner_of`."""
        return self.at(owner_of(name, self.locations)) if self.several else self.first

    def each(self, call: Callable[[RemoteServer], T], locations: Iterable[str] | None = None) -> list[T]:
        """The results of a call at each server, made at once."""
        servers = [self.at(each) for each in (self.locations if locations is None else locations)]
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
        return [ServerStart(each, before[each]) for each in before if self._starts.get(each) != before[each]]

    def _ask(self, locations: Iterable[str]) -> None:
        locations = list(locations)

        def start(server: RemoteServer) -> str | None:
            try:
                return str(server.action("locations", timeout_seconds=_SECONDS, once=True)["start"])
            except FlightShuffleError:
                return None

        for location, found in zip(locations, self.each(start, locations), strict=True):
            if found is None:
                self._starts.pop(location, None)
            else:
                self._starts[location] = found
