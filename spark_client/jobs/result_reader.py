"""A result that the driver reads: the batches of a dataset, which its reader holds.

Guarantee: :func:`collected` gives every row of the sealed dataset once, in the order of its partitions and, where one
server holds it, of the producers and of the rows in each, or raises. The driver holds at most the reader's memory
budget (``merge.merged``) of a result of any size.

Dropping
    The reader holds the dataset until the last batch, an error (also Ctrl-C), or its collection; the end of the scope
    that it was made in, and the close of the client, drop it before. Not ``close`` of the reader: pyarrow does not tell
    the iterator of it. A driver that dies leaves it to its lease.

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
from spark_client.servers import RERUNS, DriverLoop, Holder, HolderKind

from .results import explaining_losses
from .sealed import SealedDataset

_log = logging.getLogger(__name__)

Again = Callable[[str, Holder], SealedDataset]
"""Makes the run again after this loss; its dataset, which the holder holds."""


def collected(
    loop: DriverLoop, sealed: SealedDataset, holder: Holder, again: Again | None = None
) -> pa.RecordBatchReader:
    """A reader of the dataset, which ``holder`` holds until the reader's end. It keeps alive what ``again`` refers to,
    which is None where no run can be made again.
    """
    return pa.RecordBatchReader.from_batches(sealed.schema, _Batches(loop, sealed, holder, again))


class _Batches:
    def __init__(self, loop: DriverLoop, sealed: SealedDataset, holder: Holder, again: Again | None) -> None:
        self._loop = loop
        self._again = again
        self._left = RERUNS
        self._is_begun = False
        self._read(sealed, holder)

    def _read(self, sealed: SealedDataset, holder: Holder) -> None:
        self._sealed = sealed
        self._holder = holder
        self._rows = explaining_losses([sealed.source.dataset], "what this reader reads", sealed.read())
        self._ending = partial(_end, self._rows, self._loop, holder)
        self._end = self._loop.after_collection(self, self._ending)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while True:
            dataset = self._sealed.source.dataset
            try:
                if not self._is_begun and len(self._sealed.source.portions) > 1 and self._may_run_again():
                    raise ServerLost(f"a server that held a part of {dataset!r} is gone", dataset=dataset)
                batch = next(self._rows)
            except BaseException as error:
                is_lost = not self._is_begun and isinstance(error, FlightShuffleError)
                is_lost = is_lost and self._may_run_again()
                if self._end.detach() is not None:
                    self._ending()
                if not is_lost:
                    raise
                loss = str(error)
            else:
                if not self._is_begun:
                    self._is_begun = True
                    with self._loop.machine() as machine:
                        machine.hand_out(dataset, self._holder)
                return batch
            self._left -= 1
            _log.warning("a result is run again: %s", loss)
            assert self._again is not None
            holder = Holder(HolderKind.READER)
            self._read(self._again(loss, holder), holder)

    def _may_run_again(self) -> bool:
        if self._again is None or not self._left:
            return False
        self._loop.lost([self._sealed.source.dataset])
        with self._loop.machine() as machine:
            return machine.may_run_again(self._sealed.source.dataset, self._holder)


def _end(rows: Generator[Any, None, None], loop: DriverLoop, holder: Holder) -> None:
    try:
        rows.close()
    finally:
        loop.end(holder)
