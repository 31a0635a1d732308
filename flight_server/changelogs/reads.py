"""Reads: what one reader of a changelog gets, as messages for either lane.

Guarantee: a read of a snapshot or of deltas ends after the message that is marked as the last of its version; each read
has at least that one. A follower gets step after step: the deltas between the version that it was sent last and the
newest, consolidated. So a slow follower gets fewer and larger steps, and no step is lost or repeated. It ends only with
an error.

Memory
    A reader reserves room in ``sends`` for a slice's rows and messages before it reads the slice, and holds it until
    its transport has taken them. While it waits for room, or for a new version, it holds nothing. An open stream
    holds the versions after the one that it was sent (``holds``), within the maximal lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Waits
from flight_server.memory import Budget, Reservation, reserve
from flight_server.protocol import DataQuarantined, Draining, Unavailable, Versions
from flight_server.runs import Damaged, no_rows
from flight_server.storage import to_its_end
from flight_server.tiering import Reader

from .changelog import Changelog
from .encoding import VersionedMessage, encode
from .views import View

MAX_SLICE_BYTES = 8 << 20
MIN_SLICE_BYTES = 64 << 10
FOLLOWED_BYTES = 256 << 10
"""What a follower reserves for a step that is expected to be small."""


class Part(list[VersionedMessage]):
    """The messages of a slice, and the room that they have."""

    def __init__(self, messages: list[VersionedMessage], room: Reservation) -> None:
        super().__init__(messages)
        self.room = room


class ChangelogReads:
    """Reads of all changelogs.

    Args:
        threads: put the rows together.
        max_message_bytes: of one message.
    """

    def __init__(
        self,
        budget: Budget,
        waits: Waits,
        threads: Executor,
        *,
        max_message_bytes: int,
    ) -> None:
        self._budget = budget
        self._waits = waits
        self._threads = threads
        self._max_message_bytes = max_message_bytes
        self.draining = False  # followers end
        unproven_bytes = budget.unproven.limit_bytes or MAX_SLICE_BYTES
        self._slice_bytes = max(MIN_SLICE_BYTES, min(MAX_SLICE_BYTES, unproven_bytes // 16))

    @staticmethod
    def check(changelog: Changelog, versions: Versions) -> None:
        """Raise what :meth:`read` would raise at once."""
        changelog.step("read")
        for version in (versions.after, versions.as_of):
            if version is not None:
                changelog.check_version(version)

    @staticmethod
    def schema(changelog: Changelog, versions: Versions) -> pa.Schema:
        """The schema of what a read gives."""
        return changelog.layout.schema if versions.after is None else changelog.layout.delta_schema

    async def read(
        self, changelog: Changelog, reader: Reader, versions: Versions
    ) -> AsyncGenerator[Part, None]:
        """See the module's text. Close the generator to leave; cancelling it is safe.

        Raises:
            Compacted: a version is below ``since``, or the stream has fallen behind too far.
            InvalidRequest: a version is above ``upper``.
            Conflict: the changelog was dropped.
            DataQuarantined: what is read is damaged on disk.
        Draining: a follower has all that there is, and the server goes down.
            Unavailable: the disk does not give it now.
        """
        self.check(changelog, versions)
        if versions.after is None:
            view = changelog.view()
            version = view.upper if versions.as_of is None else versions.as_of
            async for part in self._parts(changelog, reader, view, None, version):
                yield part
                del part  # and its room
            return
        position = versions.after
        follower = object()
        changelog.holds.follow(follower, position)
        try:
            while True:
                changelog.check_version(position)  # its hold may have ended while its transport took nothing
                view = changelog.view()
                upto = view.upper if versions.as_of is None else versions.as_of
                if upto > position or not versions.follow:
                    async for part in self._parts(changelog, reader, view, position, upto):
                        yield part
                        del part
                    position = upto
                    changelog.holds.follow(follower, position)
                    if changelog.since < position:
                        changelog.wake()
                if not versions.follow:
                    return
                if self.draining:
                    raise Draining(
                        f"the server is draining: follow {changelog.name!r} after version {position} when it is back",
                        dataset=changelog.name,
                    )
                if changelog.upper == position:
                    changelog.step("read")  # it may have been closed while its reader took the last message
                    with self._wait(reader, "producer"):
                        await changelog.changes.next()
        finally:
            changelog.holds.leave(follower)
            changelog.wake()

    async def _parts(
        self, changelog: Changelog, reader: Reader, view: View, after: int | None, upto: int
    ) -> AsyncGenerator[Part, None]:
        few = after is not None and _new_bytes(view, after) < FOLLOWED_BYTES // 4
        slice_bytes = self._slice_bytes
        batches: Iterator[pa.RecordBatch] = (
            view.snapshot(upto, slice_bytes) if after is None else view.deltas(after, upto, slice_bytes)
        )
        held: pa.RecordBatch | None = None
        while True:
            room = await self._room(reader, min(FOLLOWED_BYTES, 2 * slice_bytes) if few else 2 * slice_bytes)
            try:
                encoded, held, ended = await to_its_end(
                    asyncio.get_running_loop().run_in_executor(
                        self._threads, self._encoded, batches, held, upto
                    )
                )
            except Damaged as damage:
                changelog.damaged(str(damage))
                raise DataQuarantined(
                    f"data loss: changelog {changelog.name!r} is damaged on disk: {damage}. Its files are kept in "
                    f"{changelog.directory}; other keys may be whole",
                    dataset=changelog.name,
                    path=str(changelog.directory),
                ) from None
            except OSError as error:
                changelog.step("read")
                raise Unavailable(
                    f"dataset {changelog.name!r}: the disk does not give what is read: {error}; read again later",
                    dataset=changelog.name,
                ) from None
            if ended and not encoded:
                schema = view.layout.schema if after is None else view.layout.delta_schema
                encoded = list(self._encode(no_rows(schema), upto, last=True))
            size_bytes = sum(message.size_bytes for message in encoded)
            if size_bytes > room.size_bytes:
                room.grow(size_bytes - room.size_bytes)
            if encoded:
                yield Part(encoded, room)
                reader.pace.took(size_bytes)
            del encoded, room
            if ended:
                return

    def _encoded(
        self, batches: Iterator[pa.RecordBatch], held: pa.RecordBatch | None, version: int
    ) -> tuple[list[VersionedMessage], pa.RecordBatch | None, bool]:
        """The messages of the next slice with rows; a batch that is held back until it is known whether it is the
        last; whether nothing follows.
        """
        while True:
            batch = next(batches, None)
            if batch is None:
                return ([] if held is None else list(self._encode(held, version, last=True))), None, True
            if batch.num_rows == 0:
                continue
            if held is None:
                held = batch
                continue
            return list(self._encode(held, version, last=False)), batch, False

    def _encode(self, batch: pa.RecordBatch, version: int, *, last: bool) -> Iterator[VersionedMessage]:
        return encode(batch, version, last=last, max_message_bytes=self._max_message_bytes)

    async def _room(self, reader: Reader, size_bytes: int) -> Reservation:
        return await reserve(
            self._budget.sends_for(reader.pace),
            size_bytes,
            self._waits,
            dataset=reader.dataset,
            partition=reader.partition,
            peer=reader.peer,
        )

    def _wait(self, reader: Reader, what: str) -> Any:
        return self._waits.enter(what, dataset=reader.dataset, partition=reader.partition, peer=reader.peer)


def _new_bytes(view: View, after: int) -> int:
    return sum(run.size_bytes for run in view.runs if run.last_version > after)
