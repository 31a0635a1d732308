"""Renews the leases of a driver's datasets while the driver lives.

Guarantee: an open :class:`LeaseKeeper` tries to renew each of its datasets every third of a lease; a call that fails
stops none of the others, and is tried again at the next turn. After the driver has died, the server drops the
datasets when their lease ends.

The first dataset starts a daemon thread. A dataset that the server no longer has is removed with a warning; its next
reader gets the error. One that its owner has removed while it was renewed is not warned of.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from flight_server.protocol import FlightShuffleError, NotFound

_log = logging.getLogger(__name__)


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
