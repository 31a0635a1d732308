"""Loading: the records of a recovered partition's frames, when it is read first.

Guarantee: after :meth:`Loading.load` the partition has the records of all frames that are left, or has failed. They are
read in a thread, once, however many readers come first, and installed in one step. A damaged index fails its partition
alone, and is noted in the quarantine; an error of the disk changes nothing.

A drop, or the end of a lease, deletes the row before it takes the dataset away. A reader that finds no row then waits
for that, and gets the dataset's end for an error.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from flight_server.concurrency import in_thread
from flight_server.datasets import Dataset, OnDisk, Partition
from flight_server.frames import Records, unpacked
from flight_server.memory import RECORD_BYTES, Metadata, Reservation
from flight_server.protocol import CorruptFrame, ReadTrouble
from flight_server.records import DamagedDatabase, DamagedRow, Database, DiskTrouble, index
from flight_server.storage import Disk

from .readback import frame_lost

TAKEN_AWAY_SECONDS = 10.0
"""So long a reader waits until a dataset without a row is taken away: two passes of the leases, and a slow disk."""


class _Deleted(Exception):
    """The dataset's row was deleted."""


class Loading:
    """Loads partitions of one server."""

    def __init__(self, disk: Disk, metadata: Metadata) -> None:
        self._disk = disk
        self._metadata = metadata

    async def load(self, dataset: Dataset, partition: Partition) -> None:
        """Let the partition have its records. At once, unless it was recovered and nothing has read it since.

        A call that is cancelled may have loaded it.

        Raises:
            OutOfBudget: ``metadata`` has no room for them.
            ReadTrouble: the disk does not give them now, or the dataset is just being deleted.
            FlightShuffleError: the partition has failed or was dropped, also meanwhile.
        """
        if partition.loaded:
            return
        on_disk, records = dataset.on_disk, self._disk.records
        assert on_disk is not None
        assert records is not None
        try:
            async with on_disk.turn:
                partition.check()
                if not partition.loaded:
                    await self._load(dataset, partition, on_disk, records)
        except _Deleted:
            await _taken_away(dataset)  # without the turn: a lease that has ended waits for it
            dataset.partition(partition.index).check()
            raise ReadTrouble.about(
                dataset.name, ": the dataset is being deleted; read again", partition=partition.index
            ) from None
        partition.check()

    async def _load(self, dataset: Dataset, partition: Partition, on_disk: OnDisk, records: Database) -> None:
        frames = partition.frames_left
        room = self._metadata.reserve(
            frames * RECORD_BYTES,
            f"the records of {frames} frames",
            dataset=dataset.name,
            partition=partition.index,
        )
        loaded: list[Records] = []

        def install() -> None:
            dataset.load(partition, loaded.pop())

        try:
            work = partial(_read, records, on_disk, partition, room, loaded)
            await in_thread(self._disk.io_threads, work, then=install)
        except DiskTrouble as trouble:
            raise ReadTrouble.about(
                dataset.name, f": its index cannot be read: {trouble}; read again", partition=partition.index
            ) from trouble
        except (DamagedRow, DamagedDatabase, ValueError) as damage:
            corrupt = CorruptFrame(
                f"data loss: the index of its frames is damaged: {damage}; write the dataset again"
            )
            raise frame_lost(
                self._disk.quarantine, dataset, partition, partition.epoch, corrupt
            ).fresh() from damage


async def _taken_away(dataset: Dataset) -> None:
    """Return when no name leads to the dataset any more, or after ``TAKEN_AWAY_SECONDS``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(TAKEN_AWAY_SECONDS):
            while not dataset.gone:
                await dataset.changes.next()


def _read(
    records: Database, on_disk: OnDisk, partition: Partition, room: Reservation, loaded: list[Records]
) -> None:
    """Add the partition's records. Blocks. Raises DiskTrouble, DamagedRow, DamagedDatabase, ValueError, _Deleted."""
    row = on_disk.row if on_disk.row is not None else on_disk.left
    data = None if row is None else records.read(lambda connection: index(connection, row, partition.index))
    if data is None:
        raise _Deleted
    table = unpacked(
        data,
        partition.totals.frames,
        partition.totals.bytes,
        room=room,
        files=on_disk.files,
        states=on_disk.states,
    )
    if len(table) - table.first != partition.frames_left:
        raise ValueError("it has other frames than the partition")
    loaded.append(table)
