"""Datasets that several plans use: each is written once, and stays.

Guarantee: of concurrent runs that use a dataset one writes it, and the others wait for it; if that run fails, the next
one writes it. A dataset is written again only if a server has lost it: it was restarted, or the lease ended; or if the
dataset was dropped.

Its end
    :meth:`Persisted.forget`, the end of the scope in which it was written, the close of the client, and the collection
    of its node, when no plan can use it any more. A dataset that a DataFrame of ``toDF`` reads then stays, as a result
    like all others (``results``). A job or DataFrame that reads a dropped one fails with an error that says so.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from spark_client.servers import DriverLoop, Holder, HolderKind

from .results import Results
from .sealed import SealedDataset


class PersistedDataset:
    """The dataset of one node."""

    def __init__(self, loop: DriverLoop, results: Results) -> None:
        self._loop = loop
        self._results = results
        self._holder = Holder(HolderKind.PERSISTED)
        self._changed = threading.Condition()
        self._run: object = None
        self._sealed: SealedDataset | None = None
        self.is_dropped = False
        """For the run that has it to write: no other run will find it."""

    @property
    def is_written(self) -> bool:
        """Whether a run has written it, and it has not been dropped. A server may have lost it since."""
        return self._sealed is not None

    def claim(self, run: object) -> SealedDataset | None:
        """Wait until no run has it to write; the dataset, or None: then this run has it to write.

        The others wait until :meth:`end`, also after an error of this call, such as Ctrl-C in any line of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._run is None)
            self._run = run
        sealed = self._sealed
        if sealed is not None and self._loop.is_whole(sealed.source.dataset):
            self.end(run)
            return sealed
        self._sealed = None
        if sealed is not None:
            self._loop.end(self._holder)
        return None

    def end(self, run: object, sealed: SealedDataset | None = None) -> None:
        """The run has written it; None: it has failed. Of a run that does not have it to write, nothing changes."""
        with self._changed:
            if self._run is not run:
                return
            if sealed is not None:
                # In this order: what Ctrl-C leaves in between is not whole at the next claim.
                self._sealed = sealed
                self._results.hold(self._holder, [sealed.source.dataset])
            self._run = None
            self._changed.notify_all()

    def drop(self) -> None:
        """Drop it, after a call that writes it, also if DataFrames read it. Twice is fine."""
        if (sealed := self._ended()) is not None:
            self._loop.act(lambda machine: machine.release(sealed.source.dataset))

    def leave(self) -> None:
        """No plan can use it any more."""
        if self._ended() is not None:
            self._loop.end(self._holder)

    def _ended(self) -> SealedDataset | None:
        with self._changed:
            self._changed.wait_for(lambda: self._run is None)
            sealed, self._sealed, self.is_dropped = self._sealed, None, True
        return sealed


class Persisted:
    """The datasets that a driver keeps, each by the node of a plan that writes it."""

    def __init__(self, loop: DriverLoop, results: Results) -> None:
        self._loop = loop
        self._results = results
        self._lock = threading.Lock()
        self._kept: weakref.WeakKeyDictionary[object, tuple[PersistedDataset, Callable[[], object]]] = (
            weakref.WeakKeyDictionary()
        )

    def keep(self, node: object) -> None:
        """Keep the datasets that the node writes from now on. Twice is fine."""
        with self._lock:
            if node not in self._kept:
                kept = PersistedDataset(self._loop, self._results)
                end = self._loop.after_collection(node, kept.leave)
                self._kept[node] = kept, end.detach

    def find(self, node: object) -> PersistedDataset | None:
        with self._lock:
            kept = self._kept.get(node)
        return None if kept is None else kept[0]

    def forget(self, node: object) -> None:
        """Drop the node's dataset, and keep no later one. Twice is fine."""
        with self._lock:
            kept = self._kept.pop(node, None)
        if kept is not None:
            dataset, detach = kept
            detach()
            dataset.drop()
