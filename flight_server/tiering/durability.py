"""Durability: a durable dataset's way to disk when it is sealed.

Guarantee: when :func:`persist` has returned for the last partition of a dataset, the dataset survives
the death of this process, and as far as fsync tells the truth that of the machine. What was not sealed
by then is gone after a crash, and its files with it. The format is in ``manifest``, the order of
writes in ``durable_files``, the way back in ``recovery``.

What is written when
    Frames that were spilled are in segments already. At its seal a partition's other frames and its
    dictionaries are appended and all its segments synced; what was in RAM stays there, and leaves it later
    without further I/O. The manifest is written once, with the last partition: so a dataset of several
    partitions survives whole or not at all, and a producer that was told that its partition is sealed
    can rely on it from the moment at which all of them are.

Disk trouble
    The seal waits, listed as waiting for the disk, and tries again until ``budget_deadline_seconds``
    are over; then it is refused with a retryable error and the put fails (a shuffle can be sealed
    again). After a failed fsync the frames are written to another segment: from RAM, or read back
    with their checksum tested.

Retention
    Frames that as many readers as declared have passed are let go of in RAM, but stay on disk until
    the dataset goes; after a restart they are there again, for as many readers. A retention in seconds
    goes on where it was, by the wall clock. The lease starts anew.

Order
    The manifest is written and the dataset gets its name while ``Store.turn`` is held, with a sequence
    number drawn there. So of several overwrites the one that was acknowledged last is the one that the
    next start finds, and one that may not take the name any more writes no manifest.

Cancelling
    A stream whose producer goes away during the seal fails, so its manifest is taken back. A shuffle
    keeps what was written: its attempts are accepted, and sealing again goes on from there.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TypeVar

from flight_server.concurrency import Waits
from flight_server.datasets import Catalogue, Dataset, Partition
from flight_server.frames import DictionaryState, Frame, Message, messages_of
from flight_server.memory import reserve
from flight_server.protocol import CorruptFrame, DatasetDropped, Kind, OutOfBudget, Unavailable
from flight_server.storage import (
    DictionaryRecord,
    DiskTrouble,
    DurableFiles,
    Forgotten,
    FrameRecord,
    Manifest,
    PackedFrames,
    PartitionRecord,
    Segment,
    SegmentSlice,
    SegmentWriter,
    to_its_end,
)

from .lost_frames import frame_lost
from .spiller import Spiller

BATCH_BYTES = 16 << 20
RETRY_SECONDS = 0.25

T = TypeVar("T")


class Durability:
    """Seals durable datasets; see the module's text.

    Args:
        deadline_seconds: how long a seal waits for the disk.
    """

    def __init__(
        self, catalogue: Catalogue, waits: Waits, spiller: Spiller, *, deadline_seconds: float
    ) -> None:
        self.catalogue = catalogue
        self.waits = waits
        self._spiller = spiller
        self._deadline_seconds = deadline_seconds

    async def persist(
        self,
        dataset: Dataset,
        partitions: Iterable[int],
        finish: Callable[[], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Put the partitions on disk, and with the last one the dataset. See the module's text.

        Args:
            finish: says in RAM what is on disk then: the partitions are sealed, the dataset has its name.
            check: raises if ``finish`` would raise now.

        Raises:
            OutOfBudget: the disk stayed full until the deadline.
            Unavailable: the disk did not work until the deadline.
            CorruptFrame: a frame that was spilled did not come back as it was.
            DatasetDropped: the dataset was dropped meanwhile.
            PartitionFailed: a partition has failed meanwhile.
            Conflict: see ``finish`` and ``check``; nothing is left on disk of a stream.
        """
        files, writer = dataset.files, dataset.writer
        assert files is not None
        assert writer is not None
        wanted = set(partitions)
        seconds = self._deadline_seconds
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self.waits.enter("disk", dataset=dataset.name, deadline_seconds=seconds):
            async with files.turn:
                try:
                    while True:
                        try:
                            seal = _Seal(self, dataset, files, writer)
                            if await seal.run(wanted):
                                await seal.commit(finish, check)
                            else:
                                finish()
                        except DiskTrouble as trouble:
                            self._spiller.failed(trouble)
                            if loop.time() + RETRY_SECONDS >= deadline:
                                raise _refusal(dataset, trouble, seconds) from trouble
                            await asyncio.sleep(RETRY_SECONDS)
                        else:
                            self._spiller.succeeded()
                            return
                except Forgotten:
                    if dataset.dropped or files.leaving in ("dropped", "expired"):
                        raise DatasetDropped(
                            f"dataset {dataset.name!r} was dropped while it was being sealed",
                            dataset=dataset.name,
                        ) from None
                    finish()  # it was replaced: only readers that have it already will ever see it
                except BaseException:
                    if dataset.kind is Kind.STREAM:
                        # Its producer fails, so no manifest may say that these partitions are whole.
                        files.synced -= wanted
                        if files.committed:
                            self.catalogue.forget(dataset)
                    raise


def _refusal(dataset: Dataset, trouble: DiskTrouble, seconds: float) -> Unavailable:
    kind = OutOfBudget if trouble.full else Unavailable
    return kind(
        f"dataset {dataset.name!r} could not be put on disk within {seconds} s: {trouble}; try again when the "
        "disk takes it",
        dataset=dataset.name,
    )


class _Seal:
    """One try to put partitions of one dataset on disk."""

    def __init__(
        self, durability: Durability, dataset: Dataset, files: DurableFiles, writer: SegmentWriter
    ) -> None:
        self._catalogue = durability.catalogue
        self._waits = durability.waits
        self._dataset = dataset
        self._files = files
        self._writer = writer

    async def run(self, wanted: set[int]) -> bool:
        """Put the partitions' frames on disk. True if all partitions are there, and the manifest is due."""
        files, dataset = self._files, self._dataset
        partitions = [partition for partition in dataset.partitions() if partition.index in wanted]
        for partition in partitions:
            await self._write_frames(partition)
            await self._write_dictionaries(partition)
        segments = {segment for partition in partitions for segment in partition.table.segments()}
        segments.update(slice_.segment for slice_ in files.dictionaries.values())
        await self._in_thread(files.sync, segments)
        self._check(wanted)
        files.synced |= wanted
        return len(files.synced) == dataset.partition_count

    async def commit(self, finish: Callable[[], None], check: Callable[[], None]) -> None:
        """Write the manifest and finish, before or after every other change of the name."""
        dataset, catalogue = self._dataset, self._catalogue
        async with catalogue.disk.turn(dataset.name):
            self._check(self._files.synced)
            check()
            description = _Description(dataset, self._files, catalogue.disk.next_sequence())
            try:
                loop = asyncio.get_running_loop()
                await to_its_end(loop.run_in_executor(catalogue.disk.io_threads, description.commit))
                finish()
            except (DiskTrouble, Forgotten):
                raise
            except BaseException:
                if dataset.kind is Kind.STREAM:
                    catalogue.forget(dataset)
                    await catalogue.disk.disposal.settled()
                raise

    def _check(self, indices: set[int]) -> None:
        """Raise the cause if one of the partitions has failed meanwhile: it holds none of its frames then."""
        for partition in self._dataset.partitions():
            if partition.index in indices:
                partition.check()

    async def _write_frames(self, partition: Partition) -> None:
        """Give each of the partition's frames a place in a segment that can still be synced."""
        place = 0
        # Asked anew after each write, because the spiller moves frames meanwhile.
        while batch := _batch(partition.unwritten(place)):
            place = batch[-1].index + 1
            payloads = [payload for frame in batch if (payload := frame.payload) is not None]
            slices = await self._in_thread(self._writer.append, [payload.data for payload in payloads])
            for frame, slice_ in zip(batch, slices, strict=True):
                if frame.slice is None:  # otherwise the spiller has moved it meanwhile
                    frame.place(slice_)
        for index in partition.suspects():
            if (
                index >= partition.table.first
            ):  # otherwise as many readers as declared have passed it meanwhile
                frame = partition.frame(index)
                frame.place(await self._copy(partition, frame))

    async def _copy(self, partition: Partition, message: Message) -> SegmentSlice:
        """Write a frame or dictionary of the partition, wherever its bytes are; where they are on disk then."""
        payload = message.payload
        if payload is not None:
            (slice_,) = await self._in_thread(self._writer.append, [payload.data])
            return slice_
        # The account of reads from disk. Its other holders give it back without any help of ours.
        room = await reserve(
            self._catalogue.budget.sends, message.size_bytes, self._waits, dataset=self._dataset.name
        )
        try:
            (slice_,) = await self._in_thread(lambda: self._writer.append([message.read_back()]))
        except CorruptFrame as corrupt:
            disposal = self._catalogue.disk.disposal
            raise frame_lost(
                disposal, self._dataset, partition, partition.epoch, corrupt
            ).fresh() from corrupt
        finally:
            room.free()
        return slice_

    async def _write_dictionaries(self, partition: Partition) -> None:
        """Give each dictionary that the partition's frames need a place in a segment that can still be synced."""
        for message in messages_of(partition.table.states()):
            if not _is_safe(message.slice):
                slice_ = await self._copy(partition, message)
                if not _is_safe(message.slice):  # otherwise the spiller has moved it meanwhile
                    message.place(slice_)
            assert message.slice is not None
            self._files.dictionaries[message] = message.slice

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._catalogue.disk.io_threads, work, *arguments
        )


def _batch(frames: Iterable[Frame]) -> list[Frame]:
    """As many of the frames as are written in one go."""
    batch: list[Frame] = []
    size_bytes = 0
    for frame in frames:
        if batch and size_bytes + frame.size_bytes > BATCH_BYTES:
            break
        batch.append(frame)
        size_bytes += frame.size_bytes
    return batch


def _is_safe(slice_: SegmentSlice | None) -> bool:
    """The bytes are on disk where the next fsync can tell the truth about them."""
    return slice_ is not None and not slice_.segment.suspect


class _Description:
    """What the manifest will say. Made on the event loop, where nothing changes meanwhile; put
    together and written in a thread, because that takes a while for a million frames.
    """

    def __init__(self, dataset: Dataset, files: DurableFiles, sequence: int) -> None:
        self._dataset = dataset
        self._files = files
        self._sequence = sequence
        self._accepted = dataset.attempts.accepted
        self._dictionaries = dict(files.dictionaries)
        self._partitions = sorted(
            (
                (partition.index, partition.totals, partition.table.copied())
                for partition in dataset.partitions()
            ),
            key=itemgetter(0),
        )
        self._segments: dict[Segment, int] = {}
        self._needed_bytes: list[int] = []

    def commit(self) -> None:
        """Write it. Blocks; see :meth:`DurableFiles.commit`."""
        manifest = self._manifest()
        self._files.commit(manifest.encode(), list(self._segments))

    def _place(self, segment: Segment, offset: int, size_bytes: int) -> tuple[int, int, int]:
        number = self._segments.setdefault(segment, len(self._segments))
        if number == len(self._needed_bytes):
            self._needed_bytes.append(0)
        self._needed_bytes[number] = max(self._needed_bytes[number], offset + size_bytes)
        return number, offset, size_bytes

    def _manifest(self) -> Manifest:
        numbers = {message: number for number, message in enumerate(self._dictionaries)}
        dictionaries = [
            DictionaryRecord(
                *self._place(slice_.segment, slice_.offset, slice_.size_bytes),
                message.crc32c,
                message.sequence,
            )
            for message, slice_ in self._dictionaries.items()
        ]
        states: dict[DictionaryState, int] = {}
        partitions: list[PartitionRecord] = []
        frames = PackedFrames()
        for index, totals, table in self._partitions:
            listed = len(table) - table.first
            partitions.append(
                PartitionRecord(
                    index, table.first, listed, totals.frames, totals.rows, totals.bytes, totals.crc32c
                )
            )
            for record in table.records():
                assert record.segment is not None, "a frame that was not written"
                place = self._place(record.segment, record.offset, record.size_bytes)
                state = states.setdefault(record.dictionaries, len(states))
                frames.append(FrameRecord(*place, record.rows, record.crc32c, record.metadata_crc32c, state))
        dataset = self._dataset
        return Manifest(
            dataset=dataset.name,
            kind=dataset.kind.value,
            generation=dataset.generation,
            sequence=self._sequence,
            partition_count=dataset.partition_count,
            producers=dataset.producers,
            retention=dataset.retention.to_json(),
            lease_seconds=dataset.lease_seconds,
            schema=None if dataset.schema is None else base64.b64encode(dataset.schema.header).decode(),
            accepted=None if self._accepted is None else {str(key): of for key, of in self._accepted.items()},
            sealed_at=time.time(),
            segments=[
                (segment.path.name, size_bytes)
                for segment, size_bytes in zip(self._segments, self._needed_bytes, strict=True)
            ],
            dictionaries=dictionaries,
            states=[
                [(number, [numbers[each] for each in messages]) for number, messages in state.by_id.items()]
                for state in states
            ],
            partitions=partitions,
            frames=frames,
        )
