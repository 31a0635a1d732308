"""Durability: writes a durable dataset to disk when it is sealed.

Guarantee: when :meth:`Durability.persist` has returned for the last partition, the dataset survives the death of this
process and, as far as fsync tells the truth, of the machine, unless it was replaced meanwhile. When it has raised, also
because it was cancelled, the dataset is sealed and has its name, or it does not come back after a restart. A dataset
not sealed before a crash is deleted at the next start. ``manifest`` has the format, ``durable_files`` the order of
writes, ``recovery`` the way back.

Order of writes
    The seal of a partition appends its dictionaries and the frames that are not in segments yet, and syncs its
    segments; frames in RAM leave it later without further writes. The last seal writes the manifest. So a sealed
    partition survives only once all are sealed.

Disk trouble
    The seal is listed as waiting for ``disk`` and tries again every ``RETRY_SECONDS`` until its deadline. Then it fails
    with a retryable error: a put fails, a shuffle can be sealed again. After a failed fsync it writes the frames to
    another segment, from RAM or read back with their checksums verified.

Retention
    Frames that enough readers pass before the manifest is written are not in it and never come back. Those passed
    later leave RAM but not the disk: after a restart they are there again, for as many readers as declared. A
    retention in seconds continues by the wall clock. The lease starts anew.

Order
    The task draws the sequence number, writes the manifest and sets the name while it holds :meth:`Disk.turn`. So the
    next start finds the overwrite acknowledged last, and an overwrite that may no longer take the name writes no
    manifest. A dataset that is not durable takes a name without the turn, so the task looks at the name again when the
    manifest is written. If the dataset may not take it then, the manifest is withdrawn, before the turn ends unless the
    disk refuses; then ``disposal`` tries again. A crash before that loses the dataset that has the name, which is not
    durable.

Cancelling
    A cancellation is raised once the manifest is written. A stream whose producer leaves during the seal fails, and its
    manifest is deleted. A shuffle whose manifest is written has its name. One that was cancelled before keeps its
    accepted attempts and its written frames; the next seal continues from there.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Generator, Iterable
from operator import attrgetter
from typing import TypeVar

from flight_server.concurrency import Slice, Waits, in_steps, in_thread
from flight_server.datasets import Catalogue, Dataset, Partition, Totals
from flight_server.frames import DictionaryState, Frame, Message, Records, messages_of
from flight_server.memory import reserve
from flight_server.protocol import CorruptFrame, DatasetDropped, OutOfBudget, Unavailable
from flight_server.records import DiskTrouble
from flight_server.storage import (
    DictionaryRecord,
    DurableFiles,
    Forgotten,
    FrameRecord,
    Manifest,
    PackedFrames,
    PartitionRecord,
    Segment,
    SegmentSlice,
    SegmentWriter,
)

from .readback import frame_lost
from .spiller import Spiller

BATCH_BYTES = 16 << 20
BATCH_FRAMES = 4096
RETRY_SECONDS = 0.25

T = TypeVar("T")


class Durability:
    """Seals durable datasets. ``deadline_seconds``: of a seal."""

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
        """Write the partitions to disk, and with the last one the manifest; call ``finish``.

        Args:
            finish: seals the partitions in RAM and sets the dataset's name.
            check: raises if ``finish`` would raise now.

        Raises:
            OutOfBudget: the disk stayed full until the deadline.
            Unavailable: the disk refused writes until the deadline.
            CorruptFrame: a spilled frame or dictionary came back with another checksum.
            DatasetDropped, PartitionFailed: the dataset was dropped, or a partition failed, meanwhile.
            Conflict, AlreadyExists: from ``finish`` or ``check``; no manifest is left on disk.
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
                    while not dataset.sealed:  # otherwise an earlier call has sealed it
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
                            f"dataset {dataset.name!r} {dataset.why_gone} while it was being sealed",
                            dataset=dataset.name,
                        ) from None
                    finish()  # it was replaced: only its present readers see it
                except BaseException:
                    if not dataset.attached.by_name:
                        # The put fails, so no manifest may list these partitions.
                        files.synced -= wanted
                    if not dataset.sealed:
                        self.take_back(dataset, files)
                    raise
                finally:
                    dataset.touch()

    def take_back(self, dataset: Dataset, files: DurableFiles) -> None:
        """Let the next start not find the dataset, whose seal has failed; a shuffle may be sealed again."""
        if files.committed:
            if not dataset.attached.by_name:
                self.catalogue.forget(dataset)
            else:
                self.catalogue.disk.disposal.withdraw(files)


def _refusal(dataset: Dataset, trouble: DiskTrouble, seconds: float) -> Unavailable:
    kind = OutOfBudget if trouble.full else Unavailable
    return kind(
        f"dataset {dataset.name!r} could not be put on disk within {seconds} s: {trouble}; try again when the "
        "disk takes it",
        dataset=dataset.name,
    )


class _Seal:
    """One try to write partitions to disk."""

    def __init__(
        self, durability: Durability, dataset: Dataset, files: DurableFiles, writer: SegmentWriter
    ) -> None:
        self._durability = durability
        self._catalogue = durability.catalogue
        self._waits = durability.waits
        self._dataset = dataset
        self._files = files
        self._writer = writer

    async def run(self, wanted: set[int]) -> bool:
        """Write the partitions' frames; whether all partitions are on disk, so that the manifest is due."""
        files, dataset = self._files, self._dataset
        partitions = [partition for partition in dataset.partitions() if partition.index in wanted]
        segments: set[Segment] = set()
        present = Slice()
        for partition in partitions:
            await self._write_frames(partition)
            await self._write_dictionaries(partition)
            segments.update(partition.table.segments())
            await present.end()
        segments.update(slice_.segment for slice_ in files.dictionaries.values())
        await self._in_thread(files.sync, segments)
        self._check(wanted)
        files.synced |= wanted
        return len(files.synced) == dataset.partition_count

    async def commit(self, finish: Callable[[], None], check: Callable[[], None]) -> None:
        """Write the manifest and call ``finish``, in the name's turn."""
        dataset, catalogue = self._dataset, self._catalogue

        def take_name() -> None:
            check()
            finish()

        async with catalogue.disk.turn(dataset.name):
            copies = await in_steps(_copies(dataset))
            self._check(self._files.synced)
            check()
            description = _Description(dataset, self._files, catalogue, copies)
            try:
                threads = catalogue.disk.io_threads
                if not dataset.attached.by_name:
                    await in_thread(
                        threads, description.commit
                    )  # cancelled: its producer has left, so it fails
                    take_name()
                else:
                    await in_thread(threads, description.commit, then=take_name)
            except (DiskTrouble, Forgotten):
                raise
            except BaseException:
                if not dataset.sealed:
                    self._durability.take_back(dataset, self._files)
                    await catalogue.disk.disposal.settled()
                raise

    def _check(self, indices: set[int]) -> None:
        """Raise the cause if a partition has failed: then it holds no frames."""
        for partition in self._dataset.partitions():
            if partition.index in indices:
                partition.check()

    async def _write_frames(self, partition: Partition) -> None:
        """Give each frame a place in a segment whose fsync can be trusted."""
        place = 0
        # Again after each write, because the spiller moves frames meanwhile.
        while batch := _batch(partition.unwritten(place)):
            place = batch[-1].index + 1
            payloads = [payload for frame in batch if (payload := frame.payload) is not None]
            slices = await self._in_thread(self._writer.append, [payload.data for payload in payloads])
            for frame, slice_ in zip(batch, slices, strict=True):
                if frame.slice is None:  # otherwise the spiller has moved it meanwhile
                    frame.place(slice_)
        for index in partition.suspects():
            if index >= partition.table.first:  # otherwise it was released meanwhile
                frame = partition.frame(index)
                frame.place(await self._copy(partition, frame))

    async def _copy(self, partition: Partition, message: Message) -> SegmentSlice:
        """Write a message from RAM or from disk; its new place."""
        payload = message.payload
        if payload is not None:
            (slice_,) = await self._in_thread(self._writer.append, [payload.data])
            return slice_
        # The other holders of ``sends`` release it independently of this task.
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
        """The same for the dictionaries that the frames need."""
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
    """The first frames, up to ``BATCH_BYTES`` and ``BATCH_FRAMES``, at least one."""
    batch: list[Frame] = []
    size_bytes = 0
    for frame in frames:
        if len(batch) == BATCH_FRAMES or (batch and size_bytes + frame.size_bytes > BATCH_BYTES):
            break
        batch.append(frame)
        size_bytes += frame.size_bytes
    return batch


def _is_safe(slice_: SegmentSlice | None) -> bool:
    """Whether the bytes are in a segment whose fsync can be trusted."""
    return slice_ is not None and not slice_.segment.suspect


_Copies = list[tuple[int, Totals, Records]]


def _copies(dataset: Dataset) -> Generator[None, None, _Copies]:
    """The records of all partitions, in steps. None gets frames any more, and each frame has its place on disk."""
    copies: _Copies = []
    for partition in sorted(dataset.partitions(), key=attrgetter("index")):
        copies.append((partition.index, partition.totals, partition.table.copied()))
        yield
    return copies


class _Description:
    """The manifest's contents: copied on the event loop, written in a thread, because a million frames take long."""

    def __init__(self, dataset: Dataset, files: DurableFiles, catalogue: Catalogue, copies: _Copies) -> None:
        self._dataset = dataset
        self._files = files
        self._sequence = catalogue.disk.next_sequence()
        self._lease_seconds = catalogue.staged.lease_seconds_of(dataset)
        transactions = catalogue.transactions_of(dataset)
        self._transactions, self._forgotten = transactions.entries(), transactions.forgotten
        self._accepted = dataset.attempts.accepted
        self._dictionaries = dict(files.dictionaries)
        self._partitions = copies
        self._segments: dict[Segment, int] = {}
        self._needed_bytes: list[int] = []

    def commit(self) -> None:
        """Write the manifest. Blocks; see :meth:`DurableFiles.commit`."""
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
            lease_seconds=self._lease_seconds,
            schema=None if dataset.schema is None else base64.b64encode(dataset.schema.header).decode(),
            accepted=None if self._accepted is None else {str(key): of for key, of in self._accepted.items()},
            transactions=self._transactions,
            forgotten=self._forgotten,
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
