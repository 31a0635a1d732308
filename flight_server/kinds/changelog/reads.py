"""Reads: snapshots, deltas and streams of a changelog, as messages for either lane.

Guarantee: a read of a snapshot or of deltas ends after the message that is marked as the last of its version; each read
has at least that one. A follower gets step after step: the deltas between the version that it was sent last and the
newest, consolidated. So a slow follower gets fewer and larger steps, and no step is lost or repeated. It ends only with
an error.

Memory
    A reader reserves room in ``sends`` for a slice's rows and messages before it reads the slice, and holds it until
    its transport has taken them. While it waits for room, or for a new version, it holds nothing, unless it is within a
    key that is too large for a slice (``views``).

Messages
    Each message's ``custom_metadata`` has ``version``, and ``last`` in the last message of a version; the gRPC lane
    says the same in app_metadata. A message has about ``MESSAGE_BYTES``, unless one row has more, or slices would share
    buffers (``protocol.cutting``).

Small steps
    Changes that are few (``views``) are read and encoded once for all followers that ask for them at a time. If all
    runs are in memory the event loop does it, in about a millisecond: a thread would take the global interpreter lock
    from the loop for nearly as long, also while it waits for a page of a file, and the followers would wait for two
    changes of threads.

Versions
    An open stream holds the versions after the one that it was sent, or the version that it reads (``holds``), and no
    runs: for each slice it takes the changelog's present contents, and goes on behind the last hash. So ranges are
    folded and runs leave memory, however slowly their readers read. The hold ends with the maximal lag, or when the
    transport has taken nothing for ``STALLED_SECONDS``; the reader then gets ``Compacted`` if it comes too late.
"""

from __future__ import annotations

import asyncio
import io
import math
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Waits, in_thread, to_its_end
from flight_server.frames import cut_to_messages
from flight_server.kinds import VersionBurst, VersionedMessage
from flight_server.memory import Budget, reserve
from flight_server.protocol import (
    DataQuarantined,
    Draining,
    InvalidRequest,
    Unavailable,
    Versions,
    dump_json,
    ipc_framing,
    wire,
)
from flight_server.protocol.checksums import message_crc32c
from flight_server.tiering import Reader

from .changelog import Changelog, ChangelogState
from .contents import Contents
from .runs import Damaged
from .views import FEW_BYTES, FEW_ROWS, View, ViewPart

MESSAGE_BYTES = 1 << 20
MAX_SLICE_BYTES = 8 << 20
MIN_SLICE_BYTES = 64 << 10
FOLLOWED_BYTES = 256 << 10
"""A follower reserves so much for a step that is expected to be small."""
STALLED_SECONDS = 600.0
"""A reader whose transport takes nothing for so long holds its version no more."""


Slice = tuple[list[VersionedMessage], ViewPart]


class ChangelogReads:
    """What the reads of all changelogs share. ``steps``: those that are being made, see "Small steps"."""

    def __init__(self, budget: Budget, waits: Waits, threads: Executor, *, max_message_bytes: int) -> None:
        self.budget = budget
        self.waits = waits
        self.threads = threads
        self.max_message_bytes = max_message_bytes
        self.draining = False  # followers end
        self.steps: dict[tuple[Changelog, int, int], asyncio.Future[Slice | None]] = {}
        unproven_bytes = budget.unproven.limit_bytes or MAX_SLICE_BYTES
        self.slice_bytes = max(MIN_SLICE_BYTES, min(MAX_SLICE_BYTES, unproven_bytes // 16))


class ChangelogRead:
    """One read; see :class:`~flight_server.kinds.VersionRead`. It holds a version of its changelog, and no runs."""

    def __init__(self, reads: ChangelogReads, changelog: Changelog, versions: Versions) -> None:
        self._reads = reads
        self._changelog = changelog
        self._versions = versions
        self._held = 0

    def check(self) -> None:
        self._changelog.step("read")
        for version in (self._versions.after, self._versions.as_of):
            if version is not None:
                self._changelog.check_version(version)

    @property
    def schema(self) -> pa.Schema:
        layout = self._changelog.layout
        return layout.schema if self._versions.after is None else layout.delta_schema

    def schema_header(self) -> bytes:
        return ipc_framing.schema_header(self.schema.serialize().to_pybytes())

    async def bursts(self, reader: Reader) -> AsyncGenerator[VersionBurst, None]:
        """The messages. Close the generator to leave; cancelling it is safe.

        Raises:
            Compacted: a version is below ``since``, or the stream has fallen behind too far.
            InvalidRequest: a version is above ``upper``.
            Conflict: the changelog was dropped.
            DataQuarantined: the data is damaged on disk.
            Draining: a follower has all that there is, and the server goes down.
            Unavailable: the disk does not give it now.
        """
        self.check()
        changelog, versions, position = self._changelog, self._versions, self._versions.after
        changelog.readers += 1
        try:
            self._held = self._newest() if position is None else position
            self._hold(reader)
            while True:
                newest = self._newest()
                if position is None or position < newest or not versions.follow:
                    async for part in self._parts(reader, position, newest):
                        yield part
                        del part  # and its room
                if position is None or not versions.follow:
                    return
                self._held = position = newest
                self._hold(reader)
                if changelog.since < position:
                    changelog.wake(soon=True)
                if self._reads.draining:
                    raise Draining(
                        f"the server is draining: follow {changelog.name!r} after version {position} when it is back",
                        dataset=changelog.name,
                    )
                if changelog.upper == position:
                    changelog.step("read")  # it may have been closed while its reader took the last message
                    with self._reads.waits.enter("producer", **_place(reader)):
                        await changelog.changes.next()
                changelog.check_version(position)  # its hold may have ended while its transport took nothing
        finally:
            changelog.readers -= 1
            if changelog.state is ChangelogState.CLOSED and not changelog.readers:
                changelog.empty()
            changelog.holds.leave(self)
            changelog.wake()

    def _newest(self) -> int:
        return self._changelog.upper if self._versions.as_of is None else self._versions.as_of

    def _hold(self, reader: Reader, until: float = math.inf) -> None:
        self._changelog.holds.follow(self, self._held, reader.peer, until=until)

    async def _parts(
        self, reader: Reader, after: int | None, upto: int
    ) -> AsyncGenerator[VersionBurst, None]:
        changelog, budget = self._changelog, self._reads.budget
        room_bytes = 2 * self._reads.slice_bytes
        few = after is not None and _new_bytes(changelog.contents, after) < FOLLOWED_BYTES // 4
        if few:
            room_bytes = min(FOLLOWED_BYTES, room_bytes)
        at = ViewPart()
        while at.left:
            pool = budget.sends_for(reader.pace)
            room = await reserve(pool, room_bytes, self._reads.waits, **_place(reader))
            messages, at = await self._messages(after, upto, at, few=few)
            size_bytes = sum(message.size_bytes for message in messages)
            room.grow(max(0, size_bytes - room.size_bytes))
            self._hold(reader, time.monotonic() + STALLED_SECONDS)
            yield VersionBurst(messages, room)
            del messages, room
            if at.left and self._held >= changelog.since:  # a hold that has ended comes again
                self._hold(reader)
            reader.pace.took(size_bytes)

    async def _messages(self, after: int | None, upto: int, at: ViewPart, *, few: bool) -> Slice:
        """The messages of the next slice with rows, or of the last one; and how far it goes. ``few``: it may be a small
        step. Raises as :meth:`bursts`.
        """
        changelog = self._changelog
        changelog.check_version(upto if after is None else after)
        try:
            # Only at the beginning: it gives all of the changes, also those of slices that were sent.
            if few and after is not None and at == ViewPart():
                step = await to_its_end(self._step(after, upto))
                if step is not None:
                    return step
            # The task holds the view, and through it runs, only while the slice is read.
            view = replace(changelog.view(), slice_bytes=self._reads.slice_bytes)
            work = partial(self._next_slice, view, after, upto, at)
            del view
            return await in_thread(self._reads.threads, work)
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

    def _step(self, after: int, upto: int) -> asyncio.Future[Slice | None]:
        """The messages of all changes; None if they are not few."""
        reads, loop = self._reads, asyncio.get_running_loop()
        steps, place = reads.steps, (self._changelog, after, upto)
        step = steps.get(place)
        if step is None:
            view = self._changelog.view()
            if view.in_memory and self._changelog.layout.is_simple:
                step = loop.create_future()
                step.set_result(self._small_step(view, after, upto))
            else:
                step = loop.run_in_executor(reads.threads, self._small_step, view, after, upto)
            steps[place] = step
            step.add_done_callback(lambda _: steps.pop(place, None))
        return step

    def _small_step(self, view: View, after: int, upto: int) -> Slice | None:
        part = view.few_deltas(after, upto, FEW_ROWS, FEW_BYTES)
        return None if part is None else self._encoded(part, upto)

    def _next_slice(self, view: View, after: int | None, upto: int, at: ViewPart) -> Slice:
        while True:
            at = view.part(after, upto, at)
            assert at.rows is not None
            if at.rows.num_rows or not at.left:
                return self._encoded(at, upto)

    def _encoded(self, part: ViewPart, version: int) -> Slice:
        limit_bytes = self._reads.max_message_bytes
        messages = encode(part.rows, version, last=not part.left, max_message_bytes=limit_bytes)
        return list(messages), replace(part, rows=None)


def _place(reader: Reader) -> dict[str, Any]:
    return {"dataset": reader.dataset, "partition": reader.partition, "peer": reader.peer}


def _new_bytes(contents: Contents, after: int) -> int:
    return sum(run.size_bytes for run in contents.recent if run.last_version > after)


def encode(
    batch: pa.RecordBatch, version: int, *, last: bool, max_message_bytes: int
) -> Iterator[VersionedMessage]:
    """The messages of a batch; one for a batch without rows. ``last``: no further batch of this version follows.

    Raises InvalidRequest: see :func:`cut_to_messages`.
    """
    *parts, end = cut_to_messages(batch, min(MESSAGE_BYTES, max_message_bytes), max_message_bytes)
    for part in parts:
        yield _message(part, version, last=False)
    yield _message(end, version, last=last)


def _message(batch: pa.RecordBatch, version: int, *, last: bool) -> VersionedMessage:
    metadata = {"version": str(version), **({"last": "true"} if last else {})}
    # Arrow's own stream would keep the room to which it has grown, up to twice what it has.
    written = io.BytesIO()
    with pa.ipc.new_stream(written, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    _schema, messages = ipc_framing.split(written.getvalue())
    header, body = ipc_framing.split(messages[: -len(ipc_framing.END_OF_STREAM)])
    parts = wire.FlightData(header=header, body=body)
    app_metadata = dump_json({"version": version, **({"last": True} if last else {})})
    return VersionedMessage(parts, message_crc32c(header, body), batch.num_rows, app_metadata)
