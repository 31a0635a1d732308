"""One lease that is renewed while its owner lives, drops, and the names of owners.

Guarantee: an open :class:`LeaseKeeper` tries to renew its lease every third of it, in a daemon thread; a call that
fails is made again at the next turn. When the owner has died, the server drops what is leased when the lease ends.
What the server no longer has is renewed no more, with a warning; its next reader gets the error. The datasets of a
driver are renewed by its own loop (``servers.driver_loop``).

Drops
    A drop by name is sent once, because it is not fine twice: when its answer is lost, the name may lead to another
    dataset by the next try. That of a generation is; then a generation that is gone was dropped.

    A server drops its own part of a dataset, and says whether others have one. Those are asked, too, once each: of one
    that does not answer, the part goes when its lease ends.

Owners
    Of holds, in words for the people who see the hold; see ``protocol.HoldRequest``.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from flight_server.protocol import MAX_OWNER_CHARACTERS, DatasetRequest, FlightShuffleError, NotFound, Ticket

from .transport import RemoteServer

_log = logging.getLogger(__name__)
_SECONDS = 10.0
"""The deadline of each other server."""


class LeaseKeeper:
    """Renews one lease in the background, by calls of ``renew``, from the first :meth:`begin` on.

    Args:
        what: is renewed; for the log.
    """

    def __init__(self, renew: Callable[[], object], lease_seconds: float, what: str) -> None:
        self._renew = renew
        self._interval_seconds = lease_seconds / 3
        self._what = what
        self.is_gone = False
        """Whether the server has said that it has it no longer, since :meth:`begin`."""
        self._begun = 0  # how often
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Renew it from now on; after a :attr:`loss <is_gone>` its successor. Twice is fine."""
        self._begun += 1
        self.is_gone = False
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, waiting at most 5 s: a running call ends at its own deadline. Twice is fine."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._closed.wait(self._interval_seconds):
            if self.is_gone:
                continue
            begun = self._begun
            try:
                self._renew()
            except NotFound as error:
                if begun == self._begun:  # not of its successor
                    _log.warning("%s is gone from the server: %s", self._what, error.message)
                    self.is_gone = True
            except Exception as error:  # noqa: BLE001 - also "can't start new thread": the next turn comes
                _log.info("the lease of %s was not renewed, trying again: %s", self._what, error)


def drop(server: RemoteServer, dataset: str, generation: str | None = None) -> None:
    """Drop a generation of a dataset, or, without one, that which the name leads to.

    Raises:
        NotFound: there is none.
        Unavailable: it may be dropped or not.
    """
    request, tries = DatasetRequest(dataset, generation).encode(), 0
    renewed = server.action("renew", request)  # which waits until the server is back
    others = _others(server, dataset) if renewed.get("server_count", 1) > 1 else {}

    def call() -> None:
        nonlocal tries
        tries += 1
        try:
            server.action("drop", request, once=True)
        except NotFound:
            if tries == 1:
                raise

    server.riding_out(call, once=generation is None)
    for location, of_others in others.items():
        with contextlib.suppress(FlightShuffleError):
            server.at(location).action("drop", of_others, _SECONDS, once=True)


def _others(server: RemoteServer, dataset: str) -> dict[str, bytes]:
    """What to ask of each server that has a part, by its location; none if a part has failed."""
    requests: dict[str, bytes] = {}
    try:
        endpoints = server.flight_info(dataset).endpoints
    except FlightShuffleError:
        return requests
    for endpoint in endpoints:
        request = DatasetRequest(dataset, Ticket.parse(endpoint.ticket.ticket).generation).encode()
        locations = (each.uri.decode() for each in endpoint.locations)
        requests.update(dict.fromkeys((each for each in locations if each.startswith("grpc")), request))
    return requests


def owner(*parts: str | None) -> str:
    """The parts that there are as one text that a hold takes."""
    text = ", ".join(part for part in parts if part)
    return "".join(each if each.isprintable() else " " for each in text)[:MAX_OWNER_CHARACTERS]


def user() -> str | None:
    """The name of this process's user, if it has one."""
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return None


def owner_of_process() -> str:
    """Of this process: its program, number, host and user."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return owner(f"{program}, process {os.getpid()} on {socket.gethostname()}", user())
