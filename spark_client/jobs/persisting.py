"""Datasets that several plans use: each is written once, and stays.

Guarantee: :meth:`Kept.dataset` writes the dataset at its first call, and again only if the server has it no longer: it
was restarted, the lease ended, or the dataset was dropped. Of concurrent calls one writes, and the others wait for it;
if it fails, its error is raised there, and the next call tries again.

Its end
    :meth:`Persisted.forget`, the end of the scope in which it was written, the close of the client. A job or DataFrame
    that reads it then fails with an error that says so.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from .readable import Sealed
from .written import Ran


class Kept:
    """One dataset. ``is_there`` asks the server, ``discard`` drops it and raises nothing."""

    def __init__(self, is_there: Callable[[Sealed], bool], discard: Callable[[str], None]) -> None:
        self._is_there = is_there
        self._discard = discard
        self._lock = threading.Lock()
        self._ran: Ran | None = None

    def dataset(self, write: Callable[[], Ran]) -> tuple[Ran, bool]:
        """The dataset, and whether this call has written it."""
        with self._lock:
            if self._ran is not None and self._is_there(self._ran.sealed):
                return self._ran, False
            self._ran = None
            self._ran = write()
            return self._ran, True

    def drop(self) -> None:
        """Drop it, after a call that writes it. Twice is fine."""
        with self._lock:
            ran, self._ran = self._ran, None
        if ran is not None:
            self._discard(ran.sealed.source.dataset)


class Persisted:
    """What a driver keeps, each by the node of a plan that writes it."""

    def __init__(self, is_there: Callable[[Sealed], bool], discard: Callable[[str], None]) -> None:
        self._is_there = is_there
        self._discard = discard
        self._lock = threading.Lock()
        self._kept: weakref.WeakKeyDictionary[object, Kept] = weakref.WeakKeyDictionary()

    def keep(self, node: object) -> None:
        """Keep what the node writes from now on. Twice is fine."""
        with self._lock:
            if node not in self._kept:
                self._kept[node] = Kept(self._is_there, self._discard)

    def find(self, node: object) -> Kept | None:
        with self._lock:
            return self._kept.get(node)

    def forget(self, node: object) -> None:
        """Drop what the node has written, and keep nothing of it. Twice is fine."""
        with self._lock:
            kept = self._kept.pop(node, None)
        if kept is not None:
            kept.drop()
