"""ServerTable: what the driver knows of each server. The one book of it, without I/O.

A refusal is an answer, and silence is none. So a server is *lost* when it refuses connections, answers under another
start, or was silent past the deadline of a job that needs it. One that is *silent* is asked nothing for
``QUIET_SECONDS``, unless a job needs it, and nothing of it is forgotten: an answer brings it back. ``_AFTER`` has the
states. Displays, ``why`` and ``statistics`` ask servers without telling this table.

Starts
    A server that was started again is another one, at the same location. A loss is of one start, and final for what
    that start held. New rows may be placed on a lost server that answers again.

Late news
    Calls of several jobs end in any order. What a call says of a server that was made before the server was last heard
    of changes nothing, because it may be of an earlier start, or of a silence that has ended. But a refusal is of now,
    and a start that is new takes the place of one that is lost.

Two lists
    Servers that are given stay in the list. Those that tasks have started are learnt from their reports, and leave it
    when they refuse connections: the next task on that executor starts another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from flight_server.protocol import transitions

QUIET_SECONDS = 10.0
"""How long a silent server is asked nothing that can wait."""
FRESH_SECONDS = 5.0
"""How long an answer counts as one of now, before a job begins."""


class ServerStart(NamedTuple):
    """One start of a server: a process that was started again at the same location is another one."""

    location: str
    start: str


class Presence(StrEnum):
    """See ``_AFTER``."""

    UNKNOWN = "not asked yet"
    ANSWERING = "answering"
    SILENT = "silent"
    LOST = "lost"


_AFTER = transitions(
    Presence,
    """
    state      answer     restart    silence  refusal  deadline
    UNKNOWN    ANSWERING  error      SILENT   LOST     LOST
    ANSWERING  ANSWERING  UNKNOWN    SILENT   LOST     LOST
    SILENT     ANSWERING  UNKNOWN    SILENT   LOST     LOST
    LOST       ANSWERING  UNKNOWN    LOST     LOST     LOST
    """,
)


@dataclass(slots=True)
class _Server:
    presence: Presence = Presence.UNKNOWN
    start: str | None = None
    asked_seconds: float = float("-inf")
    """When it last answered, or did not."""
    heard_seconds: float = float("-inf")
    """When it last answered, or refused."""


class ServerTable:
    """Not thread-safe. Times are seconds of one monotonic clock.

    Args:
        locations: the servers that are given; empty if they are learnt.
    """

    def __init__(self, locations: Iterable[str] = ()) -> None:
        self._servers = {location: _Server() for location in locations}
        self._is_learnt = not self._servers
        self._lost: dict[ServerStart, int] = {}
        self._losses = 0

    @property
    def locations(self) -> tuple[str, ...]:
        """Of all servers, in one order."""
        return tuple(self._servers)

    @property
    def losses(self) -> int:
        return self._losses

    def start(self, location: str) -> str | None:
        """The start that the server last answered under, if it is known."""
        server = self._servers.get(location)
        return None if server is None else server.start

    def presence(self, location: str) -> Presence:
        server = self._servers.get(location)
        return Presence.UNKNOWN if server is None else server.presence

    def answering(self, locations: Iterable[str]) -> tuple[str, ...]:
        """Those that answer; of several locations of one server the first."""
        starts: dict[str, str] = {}
        for location in locations:
            if self.presence(location) is Presence.ANSWERING:
                starts.setdefault(self.start(location) or location, location)
        return tuple(starts.values())

    def is_fresh(self, location: str, now_seconds: float) -> bool:
        """Whether a job need not ask whether the server answers."""
        server = self._servers.get(location)
        return (
            server is not None
            and server.presence is Presence.ANSWERING
            and now_seconds - server.asked_seconds < FRESH_SECONDS
        )

    def is_quiet(self, location: str, now_seconds: float) -> bool:
        """Whether the server is to be asked nothing that can wait."""
        server = self._servers.get(location)
        if server is None or server.presence in (Presence.UNKNOWN, Presence.ANSWERING):
            return False
        return now_seconds - server.asked_seconds < QUIET_SECONDS

    def is_lost(self, server: ServerStart, since: int = 0) -> bool:
        """Whether this start was lost, after the first ``since`` losses."""
        return self._lost.get(server, -1) >= since

    def lost_since(self, losses: int) -> list[ServerStart]:
        """The starts that were lost after the first ``losses``, in order."""
        return [server for server, number in self._lost.items() if number >= losses]

    # Events.

    def add(self, locations: Iterable[str]) -> None:
        """These servers are in the list, too, as the driver's own among those that are learnt."""
        for location in locations:
            self._servers.setdefault(location, _Server())

    def learn(
        self, server: ServerStart, now_seconds: float, asked_seconds: float | None = None
    ) -> list[ServerStart]:
        """A start has answered; the starts that are lost by that. A server that is learnt is in the list from now on.

        Args:
            asked_seconds: when the call was made; None for now.
        """
        known = self._servers.setdefault(server.location, _Server())
        return self._answered(server.location, known, server.start, now_seconds, asked_seconds)

    def answered(
        self, location: str, start: str | None, now_seconds: float, asked_seconds: float | None = None
    ) -> list[ServerStart]:
        """As :meth:`learn`, of a server in the list, which may not say its start. Another start at the port of a server
        that was learnt is not one of the list.
        """
        server = self._servers.get(location)
        if server is None:
            return []
        lost = self._answered(location, server, start, now_seconds, asked_seconds)
        if lost and self._is_learnt:
            del self._servers[location]
        return lost

    def _answered(
        self,
        location: str,
        server: _Server,
        start: str | None,
        now_seconds: float,
        asked_seconds: float | None,
    ) -> list[ServerStart]:
        if _is_late(server, asked_seconds) and not self._is_new(location, server, start):
            return []
        lost = []
        if start is not None and server.start != start:
            lost = self._lose(location, server)
            server.start = start
        elif start is None and server.presence is Presence.LOST:
            server.start = None  # it may be another one
        server.heard_seconds = now_seconds
        self._step(server, "answer", now_seconds)
        return lost

    def _is_new(self, location: str, server: _Server, start: str | None) -> bool:
        """Whether the start takes the place of none that lives as far as is known."""
        is_open = server.start is None or server.presence is Presence.LOST
        return is_open and start is not None and ServerStart(location, start) not in self._lost

    def silent(self, location: str, now_seconds: float, asked_seconds: float | None = None) -> None:
        """The server did not answer a call that no job needs."""
        server = self._servers.get(location)
        if server is not None and not _is_late(server, asked_seconds):
            self._step(server, "silence", now_seconds)

    def unanswered(
        self, location: str, now_seconds: float, asked_seconds: float | None = None
    ) -> list[ServerStart]:
        """The server was silent past the deadline of a call that a job needs; the starts that are lost by that."""
        server = self._servers.get(location)
        if server is None or _is_late(server, asked_seconds):
            return []
        return self._gone(location, server, "deadline", now_seconds)

    def refused(self, location: str, now_seconds: float) -> list[ServerStart]:
        """The server refuses connections; the starts that are lost by that."""
        server = self._servers.get(location)
        if server is None:
            return []
        lost = self._gone(location, server, "refusal", now_seconds)
        server.heard_seconds = now_seconds
        if self._is_learnt:
            del self._servers[location]
        return lost

    def restarted(self, server: ServerStart, now_seconds: float) -> list[ServerStart]:
        """Another start has answered in its place, which is not known yet; the starts that are lost by that."""
        known = self._servers.get(server.location)
        if known is None or known.start != server.start:
            return []
        lost = self._gone(server.location, known, "restart", now_seconds)
        known.start, known.heard_seconds = None, now_seconds
        if self._is_learnt:
            del self._servers[server.location]
        return lost

    def _gone(
        self,
        location: str,
        server: _Server,
        verb: Literal["refusal", "deadline", "restart"],
        now_seconds: float,
    ) -> list[ServerStart]:
        lost = self._lose(location, server)
        self._step(server, verb, now_seconds)
        return lost

    def forget_all(self) -> None:
        """The servers that were learnt have ended."""
        if self._is_learnt:
            self._servers.clear()

    def _lose(self, location: str, server: _Server) -> list[ServerStart]:
        if server.start is None or server.presence is Presence.LOST:
            return []
        lost = ServerStart(location, server.start)
        self._lost.pop(lost, None)  # so that they are in the order of their losses
        self._lost[lost] = self._losses
        self._losses += 1
        return [lost]

    @staticmethod
    def _step(server: _Server, verb: str, now_seconds: float) -> None:
        server.presence = _AFTER[server.presence, verb]
        server.asked_seconds = now_seconds


def _is_late(server: _Server, asked_seconds: float | None) -> bool:
    return asked_seconds is not None and asked_seconds < server.heard_seconds
