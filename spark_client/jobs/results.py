"""The datasets that a driver's results read, and when they are dropped.

Guarantee: a result, and every frame, view and cache made from it, can be computed until :meth:`Results.release`, the
end of a :meth:`Results.scope`, or the close of the client.

Why not when the DataFrame is garbage-collected
    Derived frames, views and caches read the dataset without a reference to the result's Python object: their plans
    are in the JVM or in Spark Connect's server. ``toDF().filter(...)`` would fail, because its first frame is
    collected at once.

Shared results
    ``release`` leaves datasets that other plans may read (``persisting``). When no plan can use one any more, it is
    dropped, or, if a frame was made of it that was not released, it is from then on a result like all others.

Which results a frame reads
    Spark shows functions' names in every plan, and the function that reads a result is named after its dataset. So
    ``release`` asks Spark to explain the frame, and takes derived frames, too.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from flight_server.protocol import InvalidRequest, NotFound, ServerLost
from spark_client.executors import Portable
from spark_client.servers import DriverLoop, Holder, Scope

from .sealed import SealedDataset
from .session_facts import explained
from .tasks import ReadTask

_scopes: ContextVar[tuple[tuple[Results, Scope], ...]] = ContextVar("scopes", default=())
"""Those that are open in this thread or asyncio task, of all clients, the innermost last."""


def reader(task: ReadTask, datasets: Sequence[str]) -> Portable:
    """The function with which Spark's tasks read a result of these ``datasets``, or, without any, a scan."""
    function = Portable(partial(_read, task, datasets))
    if datasets:
        function.__name__ = "+".join(datasets)  # type: ignore[attr-defined]  # where Spark looks for a name
    return function


def _read(task: ReadTask, datasets: Sequence[str], numbers: Iterator[Any]) -> Iterator[Any]:
    return explaining_losses(datasets, "what this DataFrame reads", task.run(numbers))


def explaining_losses(
    datasets: Sequence[str], what: str, batches: Iterator[Any]
) -> Generator[Any, None, None]:
    """The batches; a ``NotFound`` of one of the datasets names the reason why ``what`` is gone."""
    try:
        yield from batches
    except NotFound as error:
        if error.detail.get("dataset") not in datasets:
            raise
        if isinstance(error, ServerLost):
            why = f"{what} was on a server that is gone, or was started again; run the pipeline again"
            raise ServerLost(f"{why} ({error.message})", **error.detail) from error
        why = f"{what} is gone: it was released, or its client closed; run the pipeline again"
        raise NotFound(f"{why} ({error.message})", **error.detail) from error


class Results:
    """The DataFrames and scopes of one driver. Thread-safe."""

    def __init__(self, loop: DriverLoop) -> None:
        self._loop = loop
        self._frames: weakref.WeakKeyDictionary[DataFrame, SealedDataset] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def hold(self, holder: Holder, datasets: Iterable[str]) -> None:
        """The holder reads these datasets from now on; those that only their run held belong to the innermost scope of
        this client.
        """
        scope = next((scope for results, scope in reversed(_scopes.get()) if results is self), None)
        with self._loop.machine() as machine:
            for dataset in datasets:
                machine.hold(dataset, holder, scope)

    def add_frame(self, frame: DataFrame, sealed: SealedDataset) -> None:
        """``frame`` has the rows of this dataset, in order and without a stage after it."""
        with self._lock:
            self._frames[frame] = sealed

    def sealed(self, frame: DataFrame, schema: pa.Schema) -> SealedDataset | None:
        """The dataset that this very frame reads, if it has the schema and was not released; None for any
        other frame.
        """
        with self._lock:
            sealed = self._frames.get(frame)
        if sealed is None or sealed.schema != schema:
            return None
        with self._loop.machine() as machine:
            return sealed if sealed.source.dataset in machine.datasets else None

    def release(self, result: DataFrame) -> None:
        """Drop every dataset that ``result`` reads; errors are those of ``ShuffleClient.release``."""
        if not hasattr(result, "explain"):
            raise InvalidRequest(f"release takes a DataFrame of Spark, not {type(result).__name__}")
        with self._loop.machine() as machine:
            kept = machine.kept()
        datasets = sorted(_named_in(explained(result), kept)) if kept else []
        if not datasets:
            raise InvalidRequest(
                "this DataFrame reads no pipeline's result, or what it reads was released: give what toDF() "
                "returned, or what was made from that; Spark must show its plan whole "
                "(spark.sql.maxPlanStringLength)"
            )
        self._loop.release(lambda machine: machine.end_frames(datasets))

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Release, at the end of the block, the results that it made in its thread or asyncio task."""
        scope = Scope()
        _scopes.set((*_scopes.get(), (self, scope)))
        try:
            yield
        finally:
            # Not by a token: scopes may end in another order than they began in.
            _scopes.set(tuple(each for each in _scopes.get() if each[1] is not scope))
            self._loop.act(lambda machine: machine.end_scope(scope))


def _named_in(text: str, datasets: set[str]) -> set[str]:
    # Not followed by a digit: exchange/…/e1 is not in exchange/…/e10.
    return {
        dataset for dataset in datasets if any(not rest[:1].isdigit() for rest in text.split(dataset)[1:])
    }
