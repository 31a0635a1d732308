"""Writes: the rows of one put, or of a staged write, until they are a version.

Guarantee: nothing of a write is readable before ``commit`` has returned, and nothing is left of one that was aborted
or never committed (``runs.run_files``; the next start deletes the files of a killed server).

Rows are kept as they came, counted by their messages' reservations and those of their dictionaries, until there are
``CHUNK_ROWS`` or ``CHUNK_BYTES`` of them, or a quarter of the runs' share of memory. Then a thread sorts them into a
run file. So a put of any size takes a bounded part of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.concurrency import Background, in_thread
from flight_server.datasets import Attempt, Catalogue, Dataset, Sealed, check_mode
from flight_server.frames import (
    NO_DICTIONARIES,
    DictionaryRooms,
    FrameDecoder,
    Inspected,
    Message,
    missing_messages,
)
from flight_server.kinds import BatchSink, check_totals, committed
from flight_server.memory import Reservation
from flight_server.protocol import (
    DIFF_COLUMN,
    BadFrame,
    Commit,
    FlightShuffleError,
    InvalidRequest,
    OutOfBudget,
    PutCommand,
    ReadTrouble,
    SealRequest,
    Transaction,
    Unavailable,
    WriteMode,
    wire,
)
from flight_server.records import DiskTrouble
from flight_server.tiering import Admission

from .changelog import OF_KEPT_FOR_DELETES, Changelog
from .commits import Commits, PendingCommit
from .folding import tombstones
from .runs import RunFile, Updates, is_encoded

CHUNK_ROWS = 256 << 10
CHUNK_BYTES = 16 << 20
MAX_DIFF = (1 << 31) - 1
"""So the sum of the diffs of 2**32 rows fits into 64 bits."""


class ChangelogWrite(PendingCommit):
    """One put, until it is a version. ``add`` and ``commit`` are called one at a time.

    Args:
        threads: sort, and write files.
        deletes: the rows are keys, whose rows are deleted.
    """

    def __init__(
        self, changelog: Changelog, commits: Commits, threads: Executor, *, deletes: bool = False
    ) -> None:
        changelog.check_step("write")
        super().__init__(changelog)
        self.rows = 0
        self.frames = 0
        self.size_bytes = 0  # of the messages
        self._deletes = deletes
        self._commits = commits
        self._threads = threads
        self._max_chunk_bytes = min(CHUNK_BYTES, (commits.memory.limit_bytes or CHUNK_BYTES) // 4)
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rooms: list[Reservation] = []
        self._dictionaries: set[Reservation] = set()
        self._chunk_rows = self._chunk_bytes = 0

    async def add(
        self, batch: pa.RecordBatch, room: Reservation, dictionaries: Sequence[Reservation] = ()
    ) -> None:
        """Take a batch whose schema has passed ``Layout.check_producer``, or of a delete ``check_deleter``.

        Args:
            room: counts the batch's bytes; the write owns it from now on.
            dictionaries: count those in force; the write holds them as long as the batch.

        Raises:
            BadFrame: ``_diff`` has a null, or a number beyond ``MAX_DIFF``; or, of a large write, as of ``commit``.
            OutOfBudget, Unavailable: the disk does not take a large write now.
        """
        self._check(batch)
        await self.take(batch, room, dictionaries)

    async def take(
        self, batch: pa.RecordBatch, room: Reservation, dictionaries: Sequence[Reservation] = ()
    ) -> None:
        """As :meth:`add`, of the server's own rows."""
        self.rows += batch.num_rows
        self.frames += 1
        self.size_bytes += room.size_bytes
        self._batches.append(batch)
        self._rooms.append(room)
        self._chunk_rows += batch.num_rows
        self._chunk_bytes += room.size_bytes
        new = set(dictionaries) - self._dictionaries
        self._dictionaries |= new
        self._chunk_bytes += sum(each.size_bytes for each in new)
        # Those in force count anyway, until their producer replaces them.
        chunk_bytes = self._chunk_bytes - sum(each.size_bytes for each in dictionaries)
        if self._chunk_rows >= CHUNK_ROWS or chunk_bytes >= self._max_chunk_bytes:
            await self._to_file()

    def _check(self, batch: pa.RecordBatch) -> None:
        number = batch.schema.get_field_index(DIFF_COLUMN)
        if number < 0 or not batch.num_rows:
            return
        column = batch.column(number)
        if column.null_count:
            raise BadFrame(
                f"dataset {self.changelog.name!r}: column {DIFF_COLUMN!r} has nulls; say how often each row is "
                "asserted, or leave the column out"
            )
        diffs = column.to_numpy()
        least, greatest = int(diffs.min()), int(diffs.max())
        if max(greatest, -least) > MAX_DIFF:
            raise BadFrame(
                f"dataset {self.changelog.name!r}: column {DIFF_COLUMN!r} has numbers from {least} to {greatest}, and "
                f"a row of a put is asserted or retracted at most {MAX_DIFF} times"
            )

    async def commit(self, transaction: Transaction | None = None) -> int:
        """Make it a version, and return that. Cancelling is safe: it may become one all the same.

        Raises as :meth:`Commits.commit`, and:
            BadFrame: a column that is declared without nulls has some.
        """
        if self.files and self._batches:
            await self._to_file()
        if self._batches and self._is_small():
            self.updates = self._updates(self._batches)
        elif self._batches:
            self.updates = await in_thread(self._threads, self._updates, self._batches)
        self.transaction = transaction
        version = await self._commits.commit(self)
        self._begin_chunk()
        return version

    def _is_small(self) -> bool:
        kinds = (kind for batch in self._batches for kind in batch.schema.types)
        few = self.changelog.layout.are_few(self._chunk_rows, self.size_bytes)
        return few and not any(map(is_encoded, kinds))

    def abort(self) -> None:
        """Leave nothing behind, unless its commit goes on. Twice is fine."""
        self._begin_chunk()
        if self.version is None:
            self.files = []

    async def _to_file(self) -> None:
        self.changelog.check_step("write")
        try:
            self.files.append(await in_thread(self._threads, self._written, self._batches))
        except DiskTrouble as trouble:
            raise (OutOfBudget if trouble.full else Unavailable)(
                f"dataset {self.changelog.name!r}: the disk did not take the put: {trouble}; write it again later",
                dataset=self.changelog.name,
            ) from None
        self._begin_chunk()

    def _written(self, batches: list[pa.RecordBatch]) -> RunFile:
        updates = self._updates(batches)
        of_kept = OF_KEPT_FOR_DELETES if updates.only_removes else 0.0
        file = RunFile.make(self.changelog.folder, updates.layout, of_kept=of_kept)
        file.add(updates)
        return file.finish()

    def _updates(self, batches: list[pa.RecordBatch]) -> Updates:
        """Sorted updates, with version 0. Blocks. Raises BadFrame: see :meth:`Layout.check_nulls`."""
        layout = self.changelog.layout
        if self._deletes:
            return tombstones(layout, batches, self.changelog.name)
        rows = pa.concat_batches([layout.rows(batch) for batch in batches])
        layout.check_nulls(rows, self.changelog.name)
        diffs = np.concatenate([_diffs(batch) for batch in batches])
        updates = Updates.of(layout, rows, np.zeros(len(diffs), np.int64), diffs)
        return updates.where(updates.diffs != 0)


class ChangelogSink(BatchSink):
    """One put: the rows, or the keys of a delete, become one version when it commits or, without an attempt, when it
    ends cleanly. Another version can follow.
    """

    def __init__(
        self, write: Callable[..., ChangelogWrite], command: PutCommand, dataset: Dataset, schema: pa.Schema
    ) -> None:
        if command.partition:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a changelog: it has no partition {command.partition}",
                dataset=dataset.name,
            )
        self.dataset = dataset
        self._command = command
        self._new_write = write
        dataset.attached.check_append(schema, deletes=command.delete)
        self.begin()

    def begin(self) -> None:
        self._write = self._new_write(self.dataset, deletes=self._command.delete)
        self._committed: dict[str, Any] | None = None

    async def add(
        self, batch: pa.RecordBatch, room: Reservation, dictionaries: Sequence[Reservation]
    ) -> None:
        await self._write.add(batch, room, dictionaries)

    async def commit(self, totals: Commit) -> dict[str, Any]:
        check_totals(totals, self._write.rows, self._write.frames, self.dataset)
        return await self._commit()

    async def _commit(self) -> dict[str, Any]:
        write = self._write
        version = await write.commit(self._command.transaction)
        self._committed = committed(self.dataset, write.rows, write.size_bytes, version=version)
        return self._committed

    async def end(self) -> dict[str, Any] | None:
        if self._committed is not None:
            return None
        if self._command.attempt is not None:
            raise InvalidRequest(
                f"dataset {self.dataset.name!r}: the producer ended without its commit message; nothing of it was kept",
                dataset=self.dataset.name,
                producer=self._command.producer,
            )
        return await self._commit()

    def abort(self, cause: FlightShuffleError) -> None:
        if self._committed is None:
            self._write.abort()


class VersionAppends:
    """Appends of staged writes: the accepted rows of all tasks, or the keys that they delete, become one version.

    The version has exactly the rows of the accepted attempts, or there is none. A seal that is repeated gets the
    version that the first one made, also while that one still works; after a restart only a transaction can tell. The
    attempts keep their frames until the version is there; frames on disk are read back one at a time. Each batch is
    admitted like one of a put.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        write: Callable[..., ChangelogWrite],
        admission: Admission,
        background: Background,
        *,
        max_message_bytes: int,
    ) -> None:
        self._catalogue = catalogue
        self._new_write = write
        self._admission = admission
        self._background = background
        self._max_message_bytes = max_message_bytes

    async def append(self, staged: Dataset, target: Dataset, request: SealRequest, mode: WriteMode) -> Sealed:
        """Make the version, once. Cancelling is safe: the append goes on, and a repeated seal finds it.

        Raises:
            Conflict: an accepted attempt has not committed, or the transaction follows one that is not there.
            NotFound: the staged dataset was dropped meanwhile.
            InvalidRequest: the schema is not the changelog's.
            CorruptFrame: a frame came back damaged from disk.
            Unavailable: there was no room in time, or the disk refuses; nothing was kept, seal it again.
        """
        done: asyncio.Future[Sealed] = asyncio.get_running_loop().create_future()
        run = self._run(staged, target, request, mode, done)
        self._background.start(run, f"append to {target.name}")  # type: ignore[unused-awaitable]  # the background keeps the task
        return await asyncio.shield(done)

    async def _run(
        self,
        staged: Dataset,
        target: Dataset,
        request: SealRequest,
        mode: WriteMode,
        done: asyncio.Future[Sealed],
    ) -> None:
        try:
            # No lease ends meanwhile, also when the call is cancelled.
            with staged.held_back():
                async with self._catalogue.disk.turn(staged.generation):
                    sealed = self._catalogue.staged.appended(staged.name, staged.generation)
                    if sealed is None:
                        sealed = await self._append(staged, target, request, mode)
            done.set_result(sealed)
        except FlightShuffleError as refusal:
            done.set_exception(refusal)
        except BaseException:
            done.set_exception(
                Unavailable(f"dataset {target.name!r}: the server is going down, or has a bug; seal it again")
            )
            raise

    async def _append(
        self, staged: Dataset, target: Dataset, request: SealRequest, mode: WriteMode
    ) -> Sealed:
        check_mode(mode, target, staged.schema, durable=staged.durable)
        write = self._new_write(target, deletes=mode is WriteMode.DELETE)
        try:
            for attempt in staged.attempts.chosen(request.attempts) or []:
                await self._add(write, staged, attempt)
            # In the turn, so that a drop of the staged dataset comes before the version, or finds it sealed.
            async with self._catalogue.disk.turn(staged.name):
                self._check(staged)
                version = await write.commit(request.transaction)
                target.touch()
                sealed = Sealed(target.generation, write.rows, write.frames, write.size_bytes, {}, version)
                self._catalogue.unstage(staged, sealed)
        except BaseException:
            write.abort()
            raise
        return sealed

    def _check(self, staged: Dataset) -> None:
        """Raise NotFound if the staged dataset is gone, with its frames; else it stays."""
        self._catalogue.find(staged.name, staged.generation)
        staged.touch()

    async def _add(self, write: ChangelogWrite, staged: Dataset, attempt: Attempt) -> None:
        assert staged.schema is not None
        decoder = FrameDecoder(max_message_bytes=self._max_message_bytes, full_validation=False)
        decoder.keeps_batches = True
        decoder.feed(wire.flight_data(staged.schema.header))
        sent = NO_DICTIONARIES
        dictionaries = DictionaryRooms[Reservation]()
        for index in range(attempt.frame_count):
            self._check(staged)
            frame = attempt.frames.item(index)
            for message in missing_messages(sent, frame.dictionaries):
                inspected, room = await self._inspected(decoder, staged, message)
                dictionaries.add(decoder.decode(inspected), room)
            sent = frame.dictionaries
            inspected, room = await self._inspected(decoder, staged, frame)
            accepted = (
                await in_thread(self._catalogue.disk.io_threads, decoder.decode, inspected)
                if inspected.costly
                else decoder.decode(inspected)
            )
            assert accepted.batch is not None
            await write.add(accepted.batch, room, dictionaries.decoded())

    async def _inspected(
        self, decoder: FrameDecoder, staged: Dataset, message: Message
    ) -> tuple[Inspected, Reservation]:
        """A message's bytes, from RAM or disk, and room for its decoded rows."""
        room = await self._room(staged, message.size_bytes)
        payload = message.at_hand()
        try:
            data = (
                await in_thread(self._catalogue.disk.io_threads, message.read_back)
                if payload is None
                else payload.data
            )
        except DiskTrouble as trouble:
            raise ReadTrouble(
                f"dataset {staged.name!r}: the disk does not give back what was staged: {trouble}; seal it again later",
                dataset=staged.name,
            ) from None
        inspected = decoder.inspect(data)
        if inspected.decoded_bytes > room.size_bytes:  # compressed
            room.free()
            room = await self._room(staged, inspected.decoded_bytes)
        return inspected, room

    async def _room(self, staged: Dataset, size_bytes: int) -> Reservation:
        return await self._admission.admit(size_bytes, dataset=staged.name, partition=None, peer="seal")


def _diffs(batch: pa.RecordBatch) -> NDArray[np.int64]:
    number = batch.schema.get_field_index(DIFF_COLUMN)
    if number < 0:
        return np.ones(batch.num_rows, np.int64)
    diffs: NDArray[np.int64] = batch.column(number).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return diffs
