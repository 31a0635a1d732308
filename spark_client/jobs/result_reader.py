"""A result that the driver reads: the batches of a dataset, which is dropped with its reader.

Guarantee: :func:`collected` gives every row of the sealed dataset once, in the order of its partitions and, where one
server holds it, of the producers and of the rows in each, or raises. The driver holds at most the reader's memory
budget (``merge.merged``) of a result of any size.

Dropping
    If a DataFrame reads it, too, ``results`` decides. Otherwise the dataset is dropped by the last batch, an error
    (also Ctrl-C), the collection of the reader, the end of the scope that it was made in, and the close of the client.
    Not ``close`` of the reader: pyarrow does not tell the iterator of it. A driver that dies leaves it to its lease.

A reader of a persisted dataset keeps it alive, as a plan that uses it does.

Losing a server
    Before the first batch the reader asks each of several servers, because the others' rows may come before the loss is
    found. Until that batch was handed out the run is made again, at most ``RERUNS`` times. Later the reader raises:
    rows of two runs never meet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Self

import pyarrow as pa

from flight_server.protocol import FlightShuffleError, ServerLost
from spark_client.servers import RERUNS

from .results import told
from .sealed import SealedDataset
from .shuffles import Shuffles

_log = logging.getLogger(__name__)

Again = Callable[[str], tuple[SealedDataset, bool]]
"""Makes the run again after this loss; its dataset, and whether the reader owns it."""


def collected(
    shuffles: Shuffles, sealed: SealedDataset, *, owned: bool = True, again: Again | None = None
) -> pa.RecordBatchReader:
    """A reader of the dataset, which is dropped at the reader's end if ``owned``. It keeps alive what ``again`` refers
    to, which is None where no run can be made again.
    """
    return pa.RecordBatchReader.from_batches(sealed.schema, _Batches(shuffles, sealed, again, owned=owned))


class _Batches:
    def __init__(
        self, shuffles: Shuffles, sealed: SealedDataset, again: Again | None, *, owned: bool
    ) -> None:
        self._shuffles = shuffles
        self._again = again
        self._left = RERUNS
        self._read(sealed, owned=owned)

    def _read(self, sealed: SealedDataset, *, owned: bool) -> None:
        dataset = sealed.source.dataset
        if owned:
            self._shuffles.results.add(dataset)
        self._sealed = sealed
        self._rows = told([dataset], "what this reader reads", sealed.read())
        self._ending = partial(_end, self._rows, self._shuffles, dataset if owned else None)
        self._end = self._shuffles.after_collection.add(self, self._ending)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                if self._left and self._is_lost():
                    loss = self._sealed.source.dataset
                    raise ServerLost(f"a server that held a part of {loss!r} is gone", dataset=loss)
                batch = next(self._rows)
            except BaseException as error:
                lost = self._left and isinstance(error, FlightShuffleError) and self._is_lost()
                if self._end.detach() is not None:
                    self._ending()
                if not lost:
                    raise
                loss = str(error)
            else:
                self._left = 0  # rows were handed out
                return batch
            self._left -= 1
            _log.warning("a result is run again: %s", loss)
            assert self._again is not None
            sealed, owned = self._again(loss)
            self._read(sealed, owned=owned)

    def _is_lost(self) -> bool:
        # What was released or dropped is gone, and not lost.
        kept = self._again is not None and self._shuffles.results.has(self._sealed.source.dataset)
        return kept and self._shuffles.has_lost([self._sealed])


def _end(rows: Generator[Any, None, None], shuffles: Shuffles, dataset: str | None) -> None:
    try:
        rows.close()
    finally:
        if dataset is not None:
            shuffles.results.forget(dataset)
            shuffles.discard(dataset)
