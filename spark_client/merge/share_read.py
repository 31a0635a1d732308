"""ShareRead: several partitions of a dataset, one after the other, over one stream for each server.

Guarantee: each read gives its whole partition, or an error. A task opens a stream for each server, not for each server
and partition. Batches of later partitions arrive meanwhile, within the reader's memory (``merged``, *Parts*).

A partition that is left before its end is dropped where all of it has arrived; else the streams end, and the next read
opens new ones, because the rest may be large.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Self

from spark_client.spill import TaskMemory

from .dataset_ref import DatasetRef
from .merged import MergedStream


class ShareRead:
    """For one thread. Reads of other partitions, and of frames, are the dataset's own.

    Args:
        partitions: in the order in which they are read, each once; some may be passed over.
        memory: counts the batches that waited on disk.
    """

    def __init__(self, ref: DatasetRef, partitions: Sequence[int], memory: TaskMemory | None = None) -> None:
        self._ref = ref
        self._partitions = partitions
        self._places = {partition: place for place, partition in enumerate(partitions)}
        self._memory = memory
        self._merged: MergedStream | None = None
        self._first = 0  # the place of the first partition of the open streams
        self._next = 0  # the place of the first partition that was not read yet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(self, partition: int, memory: TaskMemory | None = None) -> Generator[Any, None, None]:
        """As :meth:`DatasetRef.read`."""
        place = self._places.get(partition)
        if place is None or place < self._next:
            yield from self._ref.read(partition, memory)
            return
        self._next = place + 1
        if self._merged is None or not self._merged.skip_to(place - self._first):
            self.close()
            if streams := self._ref.portion_streams(self._partitions[place:]):
                self._merged, self._first = self._ref.merge(streams, len(self._partitions) - place), place
        if self._merged is not None:
            yield from self._merged.part(place - self._first)

    def read_frames(
        self, partition: int, first: int, until: int, memory: TaskMemory | None = None
    ) -> Generator[Any, None, None]:
        """As :meth:`DatasetRef.read_frames`."""
        return self._ref.read_frames(partition, first, until, memory)

    def close(self) -> None:
        """End the streams; a later read opens new ones. Twice is fine."""
        merged, self._merged = self._merged, None
        if merged is not None:
            merged.close()
            if self._memory is not None:
                self._memory.spilled_bytes += merged.statistics().spilled_bytes
