"""A result that the driver reads: the batches of a dataset, which is dropped with its reader.

Guarantee: :func:`collected` gives every row of the sealed dataset once, in the order of its partitions, of the
producers and of the rows in each, or raises. The driver holds at most the reader's memory budget (``merge.merged``)
of a result of any size.

Dropping
    If a DataFrame reads it, too, ``results`` decides. Otherwise the dataset is dropped by the last batch, an error
    (also Ctrl-C), the collection of the reader, the end of the scope that it was made in, and the close of the client.
    Not ``close`` of the reader: pyarrow does not tell the iterator of it. A driver that dies leaves it to its lease.

A reader of a persisted dataset keeps it alive, as a plan that uses it does.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, Self

import pyarrow as pa

from .results import told
from .sealed import SealedDataset
from .shuffles import Shuffles


def collected(
    shuffles: Shuffles, sealed: SealedDataset, *, owned: bool = True, node: object = None
) -> pa.RecordBatchReader:
    """A reader of the dataset, which is dropped at the reader's end if ``owned``. It keeps the ``node`` of a plan
    alive.
    """
    if owned:
        shuffles.results.add(sealed.source.dataset)
    return pa.RecordBatchReader.from_batches(sealed.schema, _Batches(shuffles, sealed, node, owned=owned))


class _Batches:
    def __init__(self, shuffles: Shuffles, sealed: SealedDataset, node: object, *, owned: bool) -> None:
        self._node = node
        dataset = sealed.source.dataset
        self._rows = told([dataset], "what this reader reads", sealed.read())
        self._ending = partial(_end, self._rows, shuffles, dataset if owned else None)
        self._end = shuffles.after_collection.add(self, self._ending)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._rows)
        except BaseException:
            if self._end.detach() is not None:
                self._ending()
            raise


def _end(rows: Generator[Any, None, None], shuffles: Shuffles, dataset: str | None) -> None:
    try:
        rows.close()
    finally:
        if dataset is not None:
            shuffles.results.forget(dataset)
            shuffles.discard(dataset)
