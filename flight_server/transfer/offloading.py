"""Offloading: what this server holds of a sealed dataset is written to shared storage, from where readers take it when
the server is gone (``protocol.stored_objects``).

Guarantee: after :meth:`Offloads.write` the object is there whole, with the totals of each partition; after an error
nothing of it is. Where the storage has not answered, it is removed, and may be written again, once the call that was
late has ended. It is written only below the prefixes of the configuration. It is deleted when its dataset is dropped or
its lease ends, and stays when the server ends. What the storage does not delete is tried again every
``REMOVE_AGAIN_SECONDS``.

Who holds what
    The object is written as a reader reads: frames from RAM or disk, in bursts of about ``PIECE_BYTES`` or one larger
    message, counted in ``sends``. Beside them the library of an object store holds up to 32 MiB and a part of each
    object that is being written.

Cancelling
    A cancelled write ends after the call to the storage that is under way, and removes what it has written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import structlog

from flight_server.concurrency import to_its_end
from flight_server.datasets import Counters, Dataset, own_start
from flight_server.protocol import Conflict, Unavailable, check_allowed, shown
from flight_server.storage import Disk, StoredObject
from flight_server.tiering import Reader

from .frame_ranges import FrameRange
from .reading import Reads

BURST_BYTES = 2 << 20
OBJECTS_AT_ONCE = 4
REMOVE_AGAIN_SECONDS = 30.0

T = TypeVar("T")
_log = structlog.get_logger("flight_server.transfer.offloading")


@dataclass(eq=False)
class Offloads:
    """The objects of one server.

    Args:
        prefixes: where it may write, as ``check_prefix`` gives them.
        reads: that are not counted as those of clients.
        deadline_seconds: of each call to the storage.
    """

    prefixes: Sequence[str]
    reads: Reads
    disk: Disk
    counters: Counters
    deadline_seconds: float
    _written: set[Dataset] = field(default_factory=set)  # that have an object
    # By address: these wait for a call that goes on after its deadline.
    _late: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    # By address: those that the storage has not deleted, and when that is tried again, by the event loop's clock.
    _left: dict[str, StoredObject] = field(default_factory=dict)
    _removes_again_at: float = 0.0

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(OBJECTS_AT_ONCE, thread_name_prefix="flight-server-offload")

    def check(self, dataset: Dataset, prefix: str) -> str:
        """The allowed prefix that a dataset may be offloaded below. Raises Forbidden: see ``check_allowed``; Conflict:
        it is durable, or was offloaded elsewhere.
        """
        if dataset.durable:
            raise Conflict.about(
                dataset.name, "is durable: it is on this server's disk, and is not offloaded"
            )
        if dataset.stored is not None and dataset.stored.prefix != prefix:
            raise Conflict.about(dataset.name, f"was offloaded to {shown(dataset.stored.folder)} already")
        return check_allowed(prefix, self.prefixes)

    async def write(self, dataset: Dataset, prefix: str) -> str:
        """Write the object of a sealed dataset; its address. Twice is fine.

        Raises:
            Forbidden, Conflict: see :meth:`check`.
            Unavailable: the storage refuses, or does not answer; the message has its reason.
            FlightShuffleError: as :meth:`Reads.read`; the dataset was dropped, for one.
        """
        stored = StoredObject(
            prefix, self.check(dataset, prefix), dataset.name, dataset.generation, own_start()
        )
        with dataset.held_back():
            if (late := self._late.get(stored.address)) is not None:
                await asyncio.wait([late], timeout=self.deadline_seconds)
            async with self.disk.turn(stored.address):
                if dataset.stored is None:
                    self.counters.offloads += 1
                    try:
                        await self._write(dataset, stored)
                    except BaseException:
                        self.counters.offloads_failed += 1
                        raise
                    self.counters.offloaded_bytes += stored.size_bytes
        return stored.address

    async def _write(self, dataset: Dataset, stored: StoredObject) -> None:
        began = time.monotonic()
        if stored.address in self._late:
            raise self._refusal(dataset, stored, "no answer yet to an earlier call")
        self._left.pop(stored.address, None)
        try:
            await self._frames(dataset, stored)
            await self._call(stored, stored.finish)
            if dataset.dropped:
                dataset.partition(0).check()  # raises why
        except TimeoutError:
            raise self._refusal(dataset, stored, f"no answer for {self.deadline_seconds:g} s") from None
        except (OSError, pa.ArrowException) as error:
            await self._remove(stored)
            raise self._refusal(dataset, stored, shown(str(error))) from error
        except BaseException:
            await self._remove(stored)
            raise
        dataset.stored = stored
        self._written.add(dataset)
        _log.info(
            "dataset_offloaded",
            dataset=dataset.name,
            address=shown(stored.address),
            bytes=stored.size_bytes,
            seconds=round(time.monotonic() - began, 3),
        )

    async def _frames(self, dataset: Dataset, stored: StoredObject) -> None:
        if dataset.schema is None:  # no producer has come
            raise Conflict.about(dataset.name, "has no schema yet, and so no rows to offload")
        await self._call(stored, stored.begin, dataset.schema.header)
        for partition in sorted(dataset.partitions(), key=lambda each: each.index):
            if not partition.totals.frames:
                continue
            reader = Reader(dataset.name, partition.index, "offload")
            async with aclosing(
                self.reads.read(dataset, reader, FrameRange(), burst_bytes=BURST_BYTES)
            ) as bursts:
                async for burst in bursts:
                    await self._call(stored, stored.write, [outgoing.data for outgoing in burst])
            totals = partition.totals
            stored.end_partition(partition.index, totals.rows, totals.frames, totals.crc32c)

    async def forget(self, dataset: Dataset) -> None:
        """Delete the object of a dataset that has ended, if it has one. What the storage refuses is logged."""
        stored, dataset.stored = dataset.stored, None
        self._written.discard(dataset)
        if stored is not None:
            await self._remove(stored)

    async def forget_ended(self) -> None:
        """As :meth:`forget`, of each dataset that has left its name: its lease has ended, or another one has it. And
        try again what the storage has refused.
        """
        for dataset in [*self._written]:
            if dataset.dropped or dataset.ended:
                await self.forget(dataset)
        now = asyncio.get_running_loop().time()
        if not self._left or now < self._removes_again_at:
            return
        self._removes_again_at = now + REMOVE_AGAIN_SECONDS
        for address in [*self._left]:
            async with self.disk.turn(address):
                # Otherwise it was written again meanwhile.
                if (stored := self._left.get(address)) is not None:
                    await self._remove(stored)

    def close(self) -> None:
        """End the threads. Blocks. Twice is fine."""
        self._written.clear()
        self._threads.shutdown()

    async def _remove(self, stored: StoredObject) -> None:
        if stored.address in self._late:
            return  # see ``_removed``
        try:
            await self._call(stored, stored.remove)
        except (OSError, pa.ArrowException) as error:
            if stored.address not in self._left:
                _log.warning("object_not_deleted", address=shown(stored.address), trouble=shown(str(error)))
            self._left[stored.address] = stored
        else:
            self._left.pop(stored.address, None)

    async def _call(self, stored: StoredObject, work: Callable[..., T], *arguments: object) -> T:
        """The result of work in a thread. A cancellation comes after it. Raises TimeoutError: it goes on."""
        call = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        try:
            await to_its_end(asyncio.wait([call], timeout=self.deadline_seconds))
        finally:
            if not call.done():
                self._late[stored.address] = asyncio.create_task(self._removed(stored, call))
        if not call.done():
            raise TimeoutError
        return call.result()

    async def _removed(self, stored: StoredObject, late: asyncio.Future[T]) -> None:
        """Remove an object when the late call for it has ended: it would write into another one of its address."""
        await asyncio.wait([late])
        async with self.disk.turn(stored.address):
            del self._late[stored.address]
            await self._remove(stored)

    def _refusal(self, dataset: Dataset, stored: StoredObject, why: str) -> Unavailable:
        return Unavailable.about(dataset.name, f"could not be offloaded to {shown(stored.folder)}: {why}")
