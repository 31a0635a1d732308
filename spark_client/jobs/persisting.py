"""Datasets that several plans use: each is written once, and stays.

Guarantee: of concurrent runs that use a dataset one writes it, and the others wait for it; if that run fails, the next
one writes it. A dataset is written again only if the server has it no longer: it was restarted, the lease ended, or the
dataset was dropped.

Its end
    :meth:`Persisted.forget`, the end of the scope in which it was written, the close of the client, and the collection
    of its node, when no plan can use it any more. A dataset that a DataFrame of ``toDF`` reads then stays, as a result
    like all others (``results``). A job or DataFrame that reads a dropped one fails with an error that says so.

After a collection
    A collector runs in any thread and between any two lines of it, also where the thread holds a lock. So a finalizer
    must not wait, take a lock or start a thread: it puts its call into a queue, and a thread makes it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from .sealed import SealedDataset

Call = Callable[[], object]


class AfterCollection:
    """The calls of one client that are made after an object was collected; they must not raise. The first :meth:`add`
    starts a daemon thread.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def add(self, thing: object, call: Call) -> weakref.finalize[..., object]:
        """Make the call after ``thing`` was collected, to which it must not refer; not at the interpreter's end. The
        answer's ``detach`` takes it back.
        """
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="after-collection", daemon=True)
                self._thread.start()
        end = weakref.finalize(thing, self._calls.put, call)
        end.atexit = False
        return end

    def close(self) -> None:
        """End the thread, waiting at most 5 s for a running call. Calls to come are not made. Twice is fine."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            if thread is not threading.current_thread():
                thread.join(5.0)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # which may refer to much, while this thread waits


class PersistedDataset:
    """One dataset. ``is_there`` asks the server, ``discard`` drops it and raises nothing."""

    def __init__(self, is_there: Callable[[SealedDataset], bool], discard: Callable[[str], None]) -> None:
        self._is_there = is_there
        self._discard = discard
        self._changed = threading.Condition()
        self._run: object = None
        self._sealed: SealedDataset | None = None
        self.is_dropped = False
        """For the run that has it to write: no other run will find it."""

    def claim(self, run: object) -> SealedDataset | None:
        """Wait until no run has it to write; the dataset, or None: then this run has it to write.

        The others wait until :meth:`end`, also after an error of this call, such as Ctrl-C in any line of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._run is None)
            self._run = run
        sealed = self._sealed
        if sealed is not None and self._is_there(sealed):
            self.end(run, sealed)
            return sealed
        self._sealed = None
        return None

    def end(self, run: object, sealed: SealedDataset | None = None) -> None:
        """The run has written it; None: it has failed. Of a run that does not have it to write, nothing changes."""
        with self._changed:
            if self._run is run:
                self._sealed = sealed or self._sealed
                self._run = None
                self._changed.notify_all()

    def drop(self, *, unless: Callable[[str], bool] = lambda _: False) -> None:
        """Drop it, after a call that writes it, ``unless`` that says no. Twice is fine."""
        with self._changed:
            self._changed.wait_for(lambda: self._run is None)
            sealed, self._sealed, self.is_dropped = self._sealed, None, True
        if sealed is not None and not unless(sealed.source.dataset):
            self._discard(sealed.source.dataset)


class Persisted:
    """The datasets that a driver keeps, each by the node of a plan that writes it.

    ``unshare`` is told of a dataset whose node was collected, and says whether a DataFrame reads it.
    """

    def __init__(
        self,
        is_there: Callable[[SealedDataset], bool],
        discard: Callable[[str], None],
        unshare: Callable[[str], bool],
        after: AfterCollection,
    ) -> None:
        self._is_there = is_there
        self._discard = discard
        self._unshare = unshare
        self._after = after
        self._lock = threading.Lock()
        self._kept: weakref.WeakKeyDictionary[object, tuple[PersistedDataset, Callable[[], object]]] = (
            weakref.WeakKeyDictionary()
        )

    def keep(self, node: object) -> None:
        """Keep the datasets that the node writes from now on. Twice is fine."""
        with self._lock:
            if node not in self._kept:
                kept = PersistedDataset(self._is_there, self._discard)
                end = self._after.add(node, partial(kept.drop, unless=self._unshare))
                self._kept[node] = kept, end.detach

    def find(self, node: object) -> PersistedDataset | None:
        with self._lock:
            found = self._kept.get(node)
        return None if found is None else found[0]

    def forget(self, node: object) -> None:
        """Drop the node's dataset, and keep no later one. Twice is fine."""
        with self._lock:
            found = self._kept.pop(node, None)
        if found is not None:
            kept, detach = found
            detach()
            kept.drop()
