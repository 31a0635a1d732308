"""The datasets that a driver's results read, and when they are dropped.

Guarantee: a result, and every frame, view and cache made from it, can be computed until :meth:`Results.release`, the
end of a :meth:`Results.scope`, or the close of the client.

Why not when the DataFrame is garbage-collected
    Derived frames, views and caches read the dataset without a reference to the result's Python object: their plans
    are in the JVM or in Spark Connect's server. ``toDF().filter(...)`` would fail, because its first frame is
    collected at once.

Shared results
    ``release`` leaves datasets that other plans may read (``persisting``). When no plan can use it any more, it is
    dropped, or, if a frame was made of it that was not released, it is from then on a result like all others.

Which results a frame reads
    Spark shows functions' names in every plan, and the function that reads a result is named after its dataset. So
    ``release`` asks Spark to explain the frame, and takes derived frames, too.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from flight_server.protocol import InvalidRequest, NotFound, ServerLost
from spark_client.executors import Portable

from .sealed import SealedDataset
from .session_facts import explained
from .tasks import ReadTask

_scope: ContextVar[tuple[Results, list[str]] | None] = ContextVar("scope", default=None)


def reader(task: ReadTask, datasets: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function with which Spark's tasks read a result of these ``datasets``, or, without any, a scan."""
    function = Portable(partial(_read, task, datasets))
    if datasets:
        function.__name__ = "+".join(datasets)  # type: ignore[attr-defined]  # where Spark looks for a name
    return function


def _read(task: ReadTask, datasets: Sequence[str], numbers: Iterator[Any]) -> Iterator[Any]:
    return told(datasets, "what this DataFrame reads", task.run(numbers))


def told(datasets: Sequence[str], what: str, batches: Iterator[Any]) -> Generator[Any, None, None]:
    """The batches; a ``NotFound`` of one of the datasets names the reason why ``what`` is gone."""
    try:
        yield from batches
    except NotFound as error:
        if error.detail.get("dataset") not in datasets:
            raise
        if isinstance(error, ServerLost):
            again = f"{what} was in part on a server that is gone; run the pipeline again ({error.message})"
            raise ServerLost(again, **error.detail) from error
        why = (
            "its server was restarted"
            if error.detail.get("restarted")
            else "it was released, or its client closed"
        )
        raise NotFound(
            f"{what} is gone: {why}; run the pipeline again ({error.message})",
            **error.detail,
        ) from error


class Results:
    """The datasets that one driver's results read. Where ``drop`` raises, ``discard`` leaves them to their lease."""

    def __init__(self, drop: Callable[[str], None], discard: Callable[[str], None]) -> None:
        self._drop = drop
        self._discard = discard
        self._datasets: set[str] = set()
        self._shared: set[str] = set()
        self._made: dict[str, set[object]] = {}
        """The frames that were made of a dataset and not released, each by an object that stands for it."""
        self._frames: weakref.WeakKeyDictionary[DataFrame, SealedDataset] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def add(self, dataset: str, *, shared: bool = False) -> None:
        with self._lock:
            self._datasets.add(dataset)
            if shared:
                self._shared.add(dataset)
        scope = _scope.get()
        if scope is not None and scope[0] is self:
            scope[1].append(dataset)

    def add_frame(self, frame: DataFrame, sealed: SealedDataset) -> None:
        """``frame`` has the rows of this dataset, in order and without a stage after it. It was added."""
        with self._lock:
            self._frames[frame] = sealed

    def sealed(self, frame: DataFrame, schema: pa.Schema) -> SealedDataset | None:
        """The dataset that this very frame reads, if it has the schema and was not released; None for any
        other frame.
        """
        with self._lock:
            found = self._frames.get(frame)
            if found is None or found.source.dataset not in self._datasets or found.schema != schema:
                return None
            return found

    def has(self, dataset: str) -> bool:
        """Whether it was added, and neither released nor forgotten."""
        with self._lock:
            return dataset in self._datasets

    def forget(self, dataset: str) -> None:
        """Remove a dataset that its owner drops. Twice is fine."""
        with self._lock:
            self._remove({dataset})

    def made_of(self, datasets: Iterable[str]) -> object:
        """A frame was made of these datasets; the object that stands for it."""
        frame = object()
        with self._lock:
            for dataset in datasets:
                self._made.setdefault(dataset, set()).add(frame)
        return frame

    def end(self, frame: object, dataset: str) -> None:
        """The frame has ended: drop the dataset, if no other frame or plan reads it. Raises nothing. Twice is fine."""
        with self._lock:
            made = self._made.get(dataset, set())
            made.discard(frame)
            if made or dataset in self._shared:
                return
            self._remove({dataset})
        self._discard(dataset)

    def unshare(self, dataset: str) -> bool:
        """No plan can use the shared dataset any more; whether a frame reads it, whose result it is from now on."""
        with self._lock:
            self._shared.discard(dataset)
            if self._made.get(dataset):
                return True
            self._remove({dataset})
            return False

    def _remove(self, datasets: set[str]) -> None:
        self._datasets -= datasets
        self._shared -= datasets
        for dataset in datasets:
            self._made.pop(dataset, None)

    def release(self, result: DataFrame) -> None:
        """Drop every dataset that ``result`` reads; errors are those of ``ShuffleClient.release``."""
        if not hasattr(result, "explain"):
            raise InvalidRequest(f"release takes a DataFrame of Spark, not {type(result).__name__}")
        with self._lock:
            kept = set(self._datasets)
        found = _named_in(explained(result), kept) if kept else set()
        if not found:
            raise InvalidRequest(
                "this DataFrame reads no pipeline's result, or what it reads was released: give what toDF() "
                "returned, or what was made from that; Spark must show its plan whole "
                "(spark.sql.maxPlanStringLength)"
            )
        with self._lock:
            for dataset in found & self._shared:
                self._made.pop(dataset, None)
            found -= self._shared
            self._remove(found)
        for number, dataset in enumerate(sorted(found), 1):
            (self._drop if number == len(found) else self._discard)(dataset)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Release, at the end of the block, the results that it made in its thread or asyncio task."""
        made: list[str] = []
        token = _scope.set((self, made))
        try:
            yield
        finally:
            _scope.reset(token)
            with self._lock:
                left = self._datasets & set(made)
                self._remove(left)
            for dataset in sorted(left):
                self._discard(dataset)

    def clear(self) -> None:
        """Forget all: the close drops every dataset of the driver."""
        with self._lock:
            self._remove(set(self._datasets))


def _named_in(text: str, datasets: set[str]) -> set[str]:
    # Not followed by a digit: exchange/…/1 is not in exchange/…/10.
    return {
        dataset for dataset in datasets if any(not rest[:1].isdigit() for rest in text.split(dataset)[1:])
    }
