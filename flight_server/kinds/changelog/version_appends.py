"""Appends of staged writes to changelogs: the accepted rows of all tasks, or the keys that they delete, become one
version.

Guarantee: the version has exactly the rows of the accepted attempts, or there is none. A seal that is repeated gets the
version that the first one made, also while that one still works. After a restart of the server only a transaction can
tell that a write was there before.

Who holds what
    The attempts keep their frames until the version is there; frames on disk are read back one at a time. Each batch
    is admitted like one of a put into the changelog, which holds it until it is in a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
from flight_server.memory import Reservation
from flight_server.protocol import (
    FlightShuffleError,
    ReadTrouble,
    SealRequest,
    Unavailable,
    WriteMode,
    wire,
)
from flight_server.records import DiskTrouble
from flight_server.tiering import Admission

from .writes import ChangelogWrite


class VersionAppends:
    """The appends of one server. ``max_message_bytes``: of the messages that the server takes."""

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

        Args:
            mode: ``append`` or ``delete``.

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
        dictionaries = DictionaryRooms()
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
