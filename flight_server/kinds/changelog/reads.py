"""Reads: snapshots, deltas and streams of a changelog, as messages for either lane.

Guarantee: a read of a snapshot or of deltas ends after the message that is marked as the last of its version; each read
has at least that one. A follower gets step after step: the deltas between the version that it was sent last and the
newest, consolidated. So a slow follower gets fewer and larger steps, and no step is lost or repeated. It ends only with
an error.

Memory
    A reader reserves room in ``sends`` for a slice's rows and messages before it reads the slice, and holds it until
    its transport has taken them. While it waits for room, or for a new version, it holds nothing. For a key
    that is too large for a slice (``large_keys``) it waits for room in ``frames`` until a deadline, beside the room in
    ``sends``, and frees it before the slice is sent. Spilling makes that room, and needs no room in ``sends``.

Messages
    Each message's ``custom_metadata`` has ``version``, and ``last`` in the last message of a version, so that readers
    of both lanes know them; the gRPC lane says the same in app_metadata. A message has about ``MESSAGE_BYTES``, unless
    one row has more, or slices would share buffers (``protocol.cutting``).

Versions
    An open stream holds the versions after the one that it was sent, or the version that it reads (``holds``), and no
    runs: for each slice it takes the changelog's present contents, and goes on behind the last hash. So ranges are
    folded and runs leave memory, however slowly their readers read. The hold ends with the maximal lag, or when the
    transport has taken nothing for ``STALLED_SECONDS``; the reader then gets ``Compacted`` if it comes too late.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Waits, in_thread
from flight_server.kinds import VersionBurst, VersionedMessage
from flight_server.memory import Budget, MemoryPool, Reservation, reserve
from flight_server.protocol import (
    DataQuarantined,
    Draining,
    InvalidRequest,
    Unavailable,
    Versions,
    cut,
    dump_json,
    wire,
)
from flight_server.protocol.checksums import message_crc32c
from flight_server.tiering import Reader

from .changelog import Changelog
from .large_keys import TooLarge
from .runs import Damaged
from .views import View, ViewPart

MESSAGE_BYTES = 1 << 20
MAX_SLICE_BYTES = 8 << 20
MIN_SLICE_BYTES = 64 << 10
FOLLOWED_BYTES = 256 << 10
"""A follower reserves so much for a step that is expected to be small."""
IN_LOOP_ROWS = 1024
"""A small step that looks at no more rows is read in the event loop, in about a millisecond: a thread would take the
global interpreter lock from the loop for nearly as long, and the follower would wait for two changes of threads."""

STALLED_SECONDS = 600.0
"""A reader whose transport takes nothing for so long holds its version no more."""
KEY_DEADLINE_SECONDS = 30.0


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
        """Raise the errors that :meth:`read` would raise at once."""
        changelog.step("read")
        for version in (versions.after, versions.as_of):
            if version is not None:
                changelog.check_version(version)

    @staticmethod
    def schema(changelog: Changelog, versions: Versions) -> pa.Schema:
        """The schema of a read's rows."""
        return changelog.layout.schema if versions.after is None else changelog.layout.delta_schema

    async def read(
        self, changelog: Changelog, reader: Reader, versions: Versions
    ) -> AsyncGenerator[VersionBurst, None]:
        """The messages of one read. Close the generator to leave; cancelling it is safe.

        Raises:
            Compacted: a version is below ``since``, or the stream has fallen behind too far.
            InvalidRequest: a version is above ``upper``; or one key has more rows than there can be room for.
            Conflict: the changelog was dropped.
            DataQuarantined: the data is damaged on disk.
            Draining: a follower has all that there is, and the server goes down.
            Unavailable: the disk does not give it now.
            OutOfBudget: there was no room for the rows of a large key until the deadline.
        """
        self.check(changelog, versions)
        stream = _Stream(changelog, reader)
        changelog.readers += 1
        try:
            if versions.after is None:
                version = changelog.upper if versions.as_of is None else versions.as_of
                stream.hold(version)
                async for part in self._parts(stream, None, version):
                    yield part
                    del part  # and its room
                return
            position = versions.after
            stream.hold(position)
            while True:
                changelog.check_version(position)  # its hold may have ended while its transport took nothing
                upto = changelog.upper if versions.as_of is None else versions.as_of
                if upto > position or not versions.follow:
                    async for part in self._parts(stream, position, upto):
                        yield part
                        del part
                    position = upto
                    stream.hold(position)
                    if changelog.since < position:
                        changelog.wake(soon=True)
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
            changelog.readers -= 1
            changelog.holds.leave(stream)
            changelog.wake()

    async def _parts(
        self, stream: _Stream, after: int | None, upto: int
    ) -> AsyncGenerator[VersionBurst, None]:
        changelog, reader = stream.changelog, stream.reader
        few = after is not None and _new_bytes(changelog.view(), after) < FOLLOWED_BYTES // 4
        room_bytes = 2 * self._slice_bytes
        if few:
            room_bytes = min(FOLLOWED_BYTES, room_bytes)
        at = ViewPart()
        while at.left:
            room = await self._room(self._budget.sends_for(reader.pace), reader, room_bytes)
            key_room = self._budget.frames.empty()
            while True:
                try:
                    encoded, at = await self._read(changelog, after, upto, at, key_room.size_bytes, few=few)
                    break
                except TooLarge as more:
                    wanted_bytes = self._key_bytes(changelog, more.size_bytes, key_room.size_bytes)
                key_room.free()
                key_room = await self._room(self._budget.frames, reader, wanted_bytes, KEY_DEADLINE_SECONDS)
            del key_room
            size_bytes = sum(message.size_bytes for message in encoded)
            if size_bytes > room.size_bytes:
                room.grow(size_bytes - room.size_bytes)
            stream.given()
            yield VersionBurst(encoded, room)
            del encoded, room
            stream.took()
            reader.pace.took(size_bytes)

    async def _read(
        self,
        changelog: Changelog,
        after: int | None,
        upto: int,
        at: ViewPart,
        allowed_bytes: int,
        *,
        few: bool,
    ) -> tuple[list[VersionedMessage], ViewPart]:
        """The messages of the next slice with rows, or of the last one; and how far it goes. ``few`` new rows are read
        in the event loop, if they are in memory. Raises TooLarge, and as :meth:`read`.
        """
        changelog.check_version(upto if after is None else after)
        # The task holds the view, and through it runs, only while the slice is read.
        view = changelog.view()
        work = partial(self._messages, view, after, upto, at, allowed_bytes)
        try:
            # Only at the beginning: it gives all of the changes, also those of slices that were sent.
            begins = few and not at.low
            if begins and after is not None and changelog.layout.is_simple:
                part = view.few_deltas(after, upto, IN_LOOP_ROWS, FOLLOWED_BYTES)
                if part is not None:
                    return self._encoded(part, upto)
            del view
            return await in_thread(self._threads, work)
        except Damaged as damage:
            changelog.damaged(str(damage))
            raise DataQuarantined(
                f"data loss: changelog {changelog.name!r} is damaged on disk: {damage}. Its files are kept in "
                f"{changelog.folder.path}; other keys may be whole",
                dataset=changelog.name,
                path=str(changelog.folder.path),
            ) from None
        except InvalidRequest as failure:
            raise InvalidRequest(
                f"dataset {changelog.name!r}: {failure.message}", dataset=changelog.name
            ) from None
        except OSError as error:
            changelog.step("read")
            raise Unavailable(
                f"dataset {changelog.name!r}: the disk does not give what is read: {error}; read again later",
                dataset=changelog.name,
            ) from None

    def _messages(
        self, view: View, after: int | None, upto: int, at: ViewPart, allowed_bytes: int
    ) -> tuple[list[VersionedMessage], ViewPart]:
        while True:
            if after is None:
                at = view.snapshot_part(upto, at, self._slice_bytes, allowed_bytes)
            else:
                at = view.deltas_part(after, upto, at, self._slice_bytes, allowed_bytes)
            assert at.rows is not None
            if at.rows.num_rows or not at.left:
                return self._encoded(at, upto)

    def _key_bytes(self, changelog: Changelog, wanted_bytes: int, had_bytes: int) -> int:
        """The room for a key that is too large for a slice. Raises InvalidRequest if it has had the most there is."""
        limit_bytes = self._budget.frames.limit_bytes
        assert limit_bytes is not None
        most_bytes = limit_bytes * 3 // 4
        if had_bytes >= most_bytes:
            raise InvalidRequest(
                f"dataset {changelog.name!r}: to read the rows of one key takes more than {had_bytes} bytes at once: "
                "raise --memory-limit, or declare a key that has fewer rows",
                dataset=changelog.name,
                limit_bytes=most_bytes,
            )
        return min(wanted_bytes, most_bytes)

    def _encoded(self, part: ViewPart, version: int) -> tuple[list[VersionedMessage], ViewPart]:
        messages = encode(part.rows, version, last=not part.left, max_message_bytes=self._max_message_bytes)
        return list(messages), replace(part, rows=None)

    async def _room(
        self, pool: MemoryPool, reader: Reader, size_bytes: int, deadline_seconds: float | None = None
    ) -> Reservation:
        return await reserve(
            pool,
            size_bytes,
            self._waits,
            dataset=reader.dataset,
            partition=reader.partition,
            peer=reader.peer,
            deadline_seconds=deadline_seconds,
        )

    def _wait(self, reader: Reader, what: str) -> Any:
        return self._waits.enter(what, dataset=reader.dataset, partition=reader.partition, peer=reader.peer)


class _Stream:
    """An open stream. It holds a version of its changelog, and no runs."""

    def __init__(self, changelog: Changelog, reader: Reader) -> None:
        self.changelog = changelog
        self.reader = reader
        self._version = 0

    def hold(self, version: int) -> None:
        self._version = version
        self._follow()

    def given(self) -> None:
        """Its transport has a part; the hold ends if it does not take it in time."""
        self._follow(time.monotonic() + STALLED_SECONDS)

    def took(self) -> None:
        """Its transport has taken the part. A hold that has ended comes again if the version is still there."""
        if self._version >= self.changelog.since:
            self._follow()

    def _follow(self, until: float = math.inf) -> None:
        self.changelog.holds.follow(self, self._version, self.reader.peer, until=until)


def _new_bytes(view: View, after: int) -> int:
    return sum(run.size_bytes for run in view.runs if run.last_version > after)


def encode(
    batch: pa.RecordBatch, version: int, *, last: bool, max_message_bytes: int
) -> Iterator[VersionedMessage]:
    """The messages of a batch; one for a batch without rows.

    Args:
        last: no further batch of this version follows.

    Raises:
        InvalidRequest: a row, or a batch that is not cut, is larger than ``max_message_bytes``.
    """
    most_bytes = min(MESSAGE_BYTES, max_message_bytes)
    rows = batch.num_rows * most_bytes // max(most_bytes, _sent_bytes(batch))
    slices = cut(batch, rows, _sent_bytes, limit_bytes=max_message_bytes)
    for number, part in enumerate(slices, 1):
        size_bytes = _sent_bytes(part)
        ends = last and number == len(slices)
        if size_bytes <= max_message_bytes:
            yield _message(part, version, last=ends)
        elif len(slices) > 1:  # again, because rows differ in size
            yield from encode(part, version, last=ends, max_message_bytes=max_message_bytes)
        else:
            what = (
                "a row" if part.num_rows == 1 else f"a batch of {part.num_rows} rows that share their buffers"
            )
            raise InvalidRequest(
                f"{what} has {size_bytes} bytes, more than a message may have ({max_message_bytes}): raise "
                "--max-message"
            )


def _sent_bytes(batch: pa.RecordBatch) -> int:
    return int(pa.ipc.get_record_batch_size(batch))


def _message(batch: pa.RecordBatch, version: int, *, last: bool) -> VersionedMessage:
    said = {"version": str(version), **({"last": "true"} if last else {})}
    written = io.BytesIO()
    with pa.ipc.new_stream(written, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata=said)
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(written.getvalue()))
    reader.read_next_message()  # the schema
    message = reader.read_next_message()
    header, body = memoryview(message.metadata), memoryview(message.body)
    parts = wire.FlightData(header=header, body=body)
    metadata = dump_json({"version": version, **({"last": True} if last else {})})
    return VersionedMessage(parts, message_crc32c(header, body), batch.num_rows, metadata)
