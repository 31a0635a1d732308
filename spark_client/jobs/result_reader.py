"""A result that the driver reads: the batches of a dataset with one partition, which is dropped with its reader.

Guarantee: :func:`collected` gives every row of the sealed dataset once, in the order of its producers and of the rows
in each, or raises. The driver holds the reader's memory budget (``merge.merged``), whatever the size of the result.

What drops the dataset
    The last batch, an error (also Ctrl-C), the collection of the reader, the end of the scope that it was made in, the
    close of the client. Not ``close`` of the reader: pyarrow does not tell the iterator of it. A driver that dies
    leaves it to its lease.

A collected reader is ended by a thread of its own: its collection may happen in any thread, which must not wait for
the server.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator
from typing import Any, Self

import pyarrow as pa

from .readable import Readable
from .results import told
from .shuffles import Shuffles


def collected(shuffles: Shuffles, source: Readable, schema: pa.Schema) -> pa.RecordBatchReader:
    """A reader of the dataset's partition 0, which owns the dataset from now on."""
    shuffles.results.add(source.dataset)
    return pa.RecordBatchReader.from_batches(schema, _Batches(shuffles, source))


class _Batches:
    def __init__(self, shuffles: Shuffles, source: Readable) -> None:
        self._rows = told(source.dataset, "what this reader reads", source.read(0))
        self._end = weakref.finalize(self, _end_later, shuffles, source.dataset, self._rows)
        self._end.atexit = False
        self._shuffles = shuffles
        self._dataset = source.dataset

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._rows)
        except BaseException:
            if self._end.detach() is not None:
                _end(self._shuffles, self._dataset, self._rows)
            raise


def _end(shuffles: Shuffles, dataset: str, rows: Generator[Any, None, None]) -> None:
    try:
        rows.close()
    finally:
        shuffles.results.forget(dataset)
        shuffles.discard(dataset)


def _end_later(shuffles: Shuffles, dataset: str, rows: Generator[Any, None, None]) -> None:
    threading.Thread(target=_end, args=(shuffles, dataset, rows), name="collected", daemon=True).start()
