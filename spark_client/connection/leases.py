"""Datasets that are held: their leases are renewed while the driver lives, they are dropped, and owners are named.

Guarantee: an open :class:`LeaseKeeper` tries to renew each of its datasets every third of a lease; a call that fails
stops none of the others, and is tried again at the next turn. After the driver has died, the server drops the
datasets when their lease ends.

The first dataset starts a daemon thread. A dataset that the server no longer has is removed with a warning; its next
reader gets the error. One that its owner has removed while it was renewed is not warned of.

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
    """Renews leases in the background, by calls of ``renew`` with dataset and generation."""

    def __init__(self, renew: Callable[[str, str], object], lease_seconds: float) -> None:
        self._renew = renew
        self._interval_seconds = lease_seconds / 3
        self._datasets: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, dataset: str, generation: str) -> None:
        with self._lock:
            self._datasets[dataset] = generation
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)
                self._thread.start()

    def remove(self, dataset: str) -> None:
        """Renew it no more. Twice is fine."""
        with self._lock:
            self._datasets.pop(dataset, None)

    def datasets(self) -> dict[str, str]:
        """The generation of each renewed dataset."""
        with self._lock:
            return dict(self._datasets)

    def renew_all(self) -> None:
        """Renew each dataset once. Raises nothing."""
        for dataset, generation in self.datasets().items():
            if self._closed.is_set():
                return
            try:
                self._renew(dataset, generation)
            except NotFound as error:
                with self._lock:
                    is_ours = self._datasets.get(dataset) == generation
                    if is_ours:
                        del self._datasets[dataset]
                if is_ours:
                    _log.warning("dataset %s is gone from the server: %s", dataset, error.message)
            except FlightShuffleError as error:
                _log.info("the lease of %s was not renewed, trying again: %s", dataset, error.message)

    def close(self) -> None:
        """End the thread, waiting at most 5 s: a running call ends at its own deadline. Twice is fine."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._closed.wait(self._interval_seconds):
            self.renew_all()


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
