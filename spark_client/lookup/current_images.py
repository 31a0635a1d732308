"""Keeps images of streaming queries current between their micro-batches, so that a micro-batch finds most changes since
the last one on its host.

A thread of each process that has used an image asks the server every ``EVERY_SECONDS`` for the newest version, and
fetches the changes, until ``IDLE_SECONDS`` after the last use, or an error: the next use then fetches by itself, and
raises the error. After each fetch it pauses ``PAUSE`` times as long as that took. Of the processes of a host one
fetches at a time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass

from flight_server.protocol import FlightShuffleError

from .host_images import HostImages

EVERY_SECONDS = 0.5
IDLE_SECONDS = 10.0
PAUSE = 4

_log = logging.getLogger(__name__)


@dataclass
class _Used:
    images: HostImages
    at: float


class CurrentImages:
    """The images and the thread of one process. Thread-safe; a forked child begins with none."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, _Used] = {}
        self._thread: threading.Thread | None = None

    def use(self, images: HostImages) -> None:
        """A micro-batch has used an image of this content."""
        with self._lock:
            self._used[images.prefix] = _Used(images, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="lookups: keeps images current", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        pause_seconds = EVERY_SECONDS
        while True:
            time.sleep(pause_seconds)
            with self._lock:
                idle_since = time.monotonic() - IDLE_SECONDS
                self._used = {key: each for key, each in self._used.items() if each.at > idle_since}
                if not self._used:
                    self._thread = None
                    return
                chosen = list(self._used.values())
            begun = time.monotonic()
            for each in chosen:
                self._advance(each)
            pause_seconds = max(EVERY_SECONDS, PAUSE * (time.monotonic() - begun))

    def _advance(self, used: _Used) -> None:
        try:
            used.images.advance()
        except (FlightShuffleError, OSError) as error:
            _log.info(
                "the image of changelog %s is not kept current: %s", used.images.content.source.name, error
            )
            with self._lock:
                if self._used.get(used.images.prefix) is used:
                    del self._used[used.images.prefix]


current_images = CurrentImages()
"""This process's."""
