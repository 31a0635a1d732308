"""Durability: writes a durable dataset to disk when it is sealed.

Guarantee: when :meth:`Durability.persist` has returned for the last partition, the dataset survives the death of this
process and, as far as fsync tells the truth, of the machine, unless it was replaced meanwhile. When it has raised, also
because it was cancelled, the dataset is sealed and has its name, or it does not come back after a restart. The files of
a dataset not sealed before a crash are deleted at the next start. ``records.dataset_records`` has the rows,
``recovery`` the way back.

Order of writes
    The seal of a partition appends its dictionaries and the frames that are not in segments yet, and syncs its
    segments; frames in RAM leave it later without further writes. The last seal commits the dataset's rows, after the
    names of its files are synced. So a sealed partition survives only once all are sealed.

Disk trouble
    The seal is listed as waiting for ``disk`` and tries again every ``RETRY_SECONDS`` until its deadline. Then it fails
    with a retryable error: a put fails, a shuffle can be sealed again. After a failed fsync it writes the frames to
    another segment, from RAM or read back with their checksums verified. A commit that fails changes nothing.

Retention
    Frames that enough readers pass before the commit are not in it and never come back. Those passed later leave RAM
    but not the disk: after a restart they are there again, for as many readers as declared. A retention in seconds
    continues by the wall clock. The lease starts anew.

Order
    The task commits and sets the name while it holds :meth:`Disk.turn`; an overwrite deletes the rows of what it
    replaces in the same transaction. So once that is made, nothing refuses the overwrite: a partition that fails
    during the commit is damage of a served dataset, which has the name and an entry in the quarantine.

    A dataset that is not durable takes a name without the turn, and a lease ends without it, so the task looks at the
    name again after the commit if it leads elsewhere. If the dataset may not take it then, its rows are deleted before
    anything that is committed later; a crash before that loses the dataset that has the name, which is not durable.

Cancelling
    A cancellation is raised once the commit is made or refused. A dataset that is committed has its name then: an
    overwrite has deleted the rows of what it replaces. A stream whose producer leaves before fails. A shuffle that was
    cancelled before keeps its attempts; it may be sealed again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from flight_server.concurrency import Slice, Waits, in_steps
from flight_server.datasets import Catalogue, Dataset, OnDisk, Partition, Totals
from flight_server.frames import Frame, Message, Packed, Records, messages_of, pack
from flight_server.memory import reserve
from flight_server.protocol import CorruptFrame, DatasetDropped, OutOfBudget, Unavailable
from flight_server.records import (
    DatasetRecord,
    DictionaryRecord,
    DiskTrouble,
    Facts,
    FileRecord,
    PartitionRecord,
    insert,
)
from flight_server.storage import Segment, SegmentSlice, SegmentWriter

from .readback import frame_lost, note_damage
from .spiller import Spiller

BATCH_BYTES = 16 << 20
BATCH_FRAMES = 4096
RETRY_SECONDS = 0.25

T = TypeVar("T")


@dataclass(eq=False)
class Durability:
    """Seals durable datasets. ``deadline_seconds``: of a seal."""

    catalogue: Catalogue
    waits: Waits
    spiller: Spiller
    deadline_seconds: float

    async def persist(
        self,
        dataset: Dataset,
        partitions: Iterable[int],
        finish: Callable[[], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the partitions to disk, commit the dataset with the last one, and call ``finish``.

        Args:
            finish: seals the partitions in RAM and sets the dataset's name. It raises only if the dataset was dropped.
            check: raises if the dataset may not take its name now.

        Raises:
            OutOfBudget: the disk stayed full until the deadline.
            Unavailable: the disk refused writes until the deadline.
            CorruptFrame: a spilled frame or dictionary came back with another checksum.
            DatasetDropped, PartitionFailed: the dataset was dropped, or a partition failed, meanwhile.
            Conflict, AlreadyExists: from ``check``; the next start does not find the dataset.
        """
        on_disk, writer = dataset.on_disk, dataset.writer
        assert on_disk is not None
        assert writer is not None
        indexes = set(partitions)
        seconds = self.deadline_seconds
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self.waits.enter("disk", dataset=dataset.name, deadline_seconds=seconds):
            async with on_disk.turn:
                try:
                    while not dataset.sealed:  # otherwise an earlier call has sealed it
                        try:
                            seal = _Seal(self.catalogue, self.waits, dataset, on_disk, writer)
                            if await seal.run(indexes):
                                await seal.commit(finish, check)
                            else:
                                finish()
                        except DiskTrouble as trouble:
                            self.spiller.failed(trouble)
                            if loop.time() + RETRY_SECONDS >= deadline:
                                raise _refusal(dataset, trouble, seconds) from trouble
                            await asyncio.sleep(RETRY_SECONDS)
                        else:
                            self.spiller.succeeded()
                            return
                except BaseException:
                    if not dataset.sealed:
                        self.catalogue.forget(dataset)
                    raise
                finally:
                    dataset.touch()


def _refusal(dataset: Dataset, trouble: DiskTrouble, seconds: float) -> Unavailable:
    kind = OutOfBudget if trouble.full else Unavailable
    return kind.about(
        dataset.name,
        f"could not be put on disk within {seconds} s: {trouble}; try again when the disk takes it",
    )


@dataclass(eq=False)
class _Seal:
    """One try to write partitions to disk."""

    catalogue: Catalogue
    waits: Waits
    dataset: Dataset
    on_disk: OnDisk
    writer: SegmentWriter

    async def run(self, indexes: set[int]) -> bool:
        """Write the partitions' frames; whether all partitions are on disk, so that the commit is due."""
        on_disk, dataset = self.on_disk, self.dataset
        partitions = [partition for partition in dataset.partitions() if partition.index in indexes]
        segments: set[Segment] = set()
        present = Slice()
        for partition in partitions:
            await self._write_frames(partition)
            await self._write_dictionaries(partition)
            segments.update(partition.table.segments())
            await present.end()
        segments.update(slice_.segment for slice_ in on_disk.dictionaries.values())
        await self._in_thread(_sync, segments)
        self._check(indexes)
        on_disk.synced = on_disk.synced or set()
        on_disk.synced |= indexes
        return len(on_disk.synced) == dataset.partition_count

    async def commit(self, finish: Callable[[], None], check: Callable[[], None]) -> None:
        """Commit the dataset and call ``finish``, in the name's turn."""
        dataset, catalogue, on_disk = self.dataset, self.catalogue, self.on_disk
        synced = on_disk.synced or set()
        async with catalogue.disk.turn(dataset.name):
            copies = await in_steps(_copies(dataset))
            self._check(synced)
            check()
            if dataset.ended:  # it was replaced: only its present readers see it
                finish()
                return
            description = _Description(dataset, on_disk, catalogue)
            packed, record = await self._in_thread(description.packed, copies)
            self._check(synced)
            check()
            before = catalogue.get(dataset.name)
            replaced = None
            if (
                before not in (None, dataset)
                and before.on_disk is not None
                and before.on_disk.row is not None
            ):
                replaced = before.on_disk.deletion(finishing=True)
            row = 0

            def change(connection: sqlite3.Connection) -> None:
                nonlocal row
                if replaced is not None:
                    replaced.change(connection)
                row = insert(connection, record, packed.tables)

            def take_name() -> None:
                if replaced is not None:
                    replaced.committed()
                on_disk.files = list(packed.files.items())
                on_disk.commit(row, list(packed.files))
                on_disk.synced = None
                for partition in dataset.partitions():
                    if partition.failure is not None:
                        note_damage(catalogue.disk.quarantine, dataset, str(partition.failure))
                if replaced is None or catalogue.get(dataset.name) is not before:
                    check()
                finish()

            await catalogue.records.commit(change, take_name)

    def _check(self, indices: set[int]) -> None:
        """Raise the cause if a partition has failed: then it holds no frames; or if the dataset was dropped."""
        if self.dataset.dropped:
            raise DatasetDropped.about(
                self.dataset.name, f"{self.dataset.why_gone} while it was being sealed"
            )
        for partition in self.dataset.partitions():
            if partition.index in indices:
                partition.check()

    async def _write_frames(self, partition: Partition) -> None:
        """Give each frame a place in a segment whose fsync can be trusted."""
        place = 0
        # Again after each write, because the spiller moves frames meanwhile.
        while batch := _batch(partition.unwritten(place)):
            place = batch[-1].index + 1
            payloads = [payload for frame in batch if (payload := frame.payload) is not None]
            slices = await self._in_thread(self.writer.append, [payload.data for payload in payloads])
            for frame, slice_ in zip(batch, slices, strict=True):
                if frame.slice is None:  # otherwise the spiller has moved it meanwhile
                    frame.place(slice_)
        for index in partition.suspects():
            if index >= partition.table.first:  # otherwise it was released meanwhile
                frame = partition.table.item(index)
                frame.place(await self._copy(partition, frame))

    async def _copy(self, partition: Partition, message: Message) -> SegmentSlice:
        """Write a message from RAM or from disk; its new place."""
        payload = message.payload
        if payload is not None:
            (slice_,) = await self._in_thread(self.writer.append, [payload.data])
            return slice_
        # The other holders of ``sends`` release it independently of this task.
        room = await reserve(
            self.catalogue.budget.sends, message.size_bytes, self.waits, dataset=self.dataset.name
        )
        try:
            (slice_,) = await self._in_thread(lambda: self.writer.append([message.read_back()]))
        except CorruptFrame as corrupt:
            quarantine = self.catalogue.disk.quarantine
            raise frame_lost(
                quarantine, self.dataset, partition, partition.epoch, corrupt
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
            self.on_disk.dictionaries[message] = message.slice

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self.catalogue.disk.io_threads, work, *arguments
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


def _sync(segments: Iterable[Segment]) -> None:
    """Write the segments' bytes to the medium. Blocks. Raises DiskTrouble; segments that failed are ``suspect``."""
    for segment in segments:
        segment.sync()
        if not segment.in_place():
            segment.suspect = True
            raise DiskTrouble(f"{segment.path} has vanished", full=False)


_Copies = list[tuple[int, Totals, Records]]


def _copies(dataset: Dataset) -> Generator[None, None, _Copies]:
    """The records of all partitions, in steps. None gets frames any more, and each frame has its place on disk."""
    copies: _Copies = []
    for partition in sorted(dataset.partitions(), key=attrgetter("index")):
        copies.append((partition.index, partition.totals, partition.table.copied()))
        yield
    return copies


class _Description:
    """The dataset's rows: copied on the event loop, made in a thread, because a million frames take long."""

    def __init__(self, dataset: Dataset, on_disk: OnDisk, catalogue: Catalogue) -> None:
        self._dataset = dataset
        self._lease_seconds = catalogue.staged.lease_seconds_of(dataset)
        transactions = catalogue.transactions_of(dataset)
        self._transactions, self._forgotten = transactions.entries(), transactions.forgotten
        self._accepted = dataset.attempts.accepted
        self._dictionaries = dict(on_disk.dictionaries)

    def packed(self, copies: _Copies) -> tuple[Packed, DatasetRecord]:
        packed = pack([table for _, _, table in copies])
        dictionaries = self._placed(packed.files)
        numbers = {message: number for number, message in enumerate(self._dictionaries)}
        dataset = self._dataset
        facts = Facts(
            partition_count=dataset.partition_count,
            producers=dataset.producers,
            retention=dataset.retention.to_json(),
            lease_seconds=self._lease_seconds,
            accepted=None if self._accepted is None else {str(key): of for key, of in self._accepted.items()},
            sealed_at=time.time(),
            dictionaries=dictionaries,
            states=[
                [(number, [numbers[each] for each in messages]) for number, messages in state.by_id.items()]
                for state in packed.states
            ],
            files=len(packed.files),
            partitions=len(copies),
            transactions=len(self._transactions) + len(self._forgotten),
        )
        record = DatasetRecord(
            dataset.name,
            dataset.generation,
            dataset.kind.value,
            facts,
            None if dataset.schema is None else bytes(dataset.schema.header),
            [FileRecord(segment.path.name, size_bytes) for segment, size_bytes in packed.files.items()],
            [
                PartitionRecord(
                    index,
                    table.first,
                    totals.bytes - frame_bytes,
                    totals.frames,
                    totals.rows,
                    totals.bytes,
                    totals.crc32c,
                )
                for (index, totals, table), frame_bytes in zip(copies, packed.frame_bytes, strict=True)
            ],
            self._transactions,
            self._forgotten,
        )
        return packed, record

    def _placed(self, files: dict[Segment, int]) -> list[DictionaryRecord]:
        """The dictionaries' places; their files are added to ``files``."""
        numbers = {segment: number for number, segment in enumerate(files)}
        placed = []
        for message, slice_ in self._dictionaries.items():
            number = numbers.setdefault(slice_.segment, len(numbers))
            end = slice_.offset + slice_.size_bytes
            files[slice_.segment] = max(files.get(slice_.segment, 0), end)
            placed.append(
                DictionaryRecord(number, slice_.offset, slice_.size_bytes, message.crc32c, message.sequence)
            )
        return placed
