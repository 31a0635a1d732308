"""Follows a changelog: each version's changes as they are committed.

Guarantee: the changes come in the order of versions, each version's in exactly one :class:`Change`, complete; folding
them over the snapshot from which they begin gives each later snapshot. Versions that were committed together may come
as one change, which has the last one's number. ``lanes.version_cursor`` says how a broken connection is resumed.

Where it begins
    ``after`` a version: with the next one. Without: with the newest snapshot as the first change, whose rows all have
    a positive ``_diff``. A hold keeps the server from compacting it meanwhile.

Resuming
    While its connection is open, the server keeps the versions that the follower still needs. While it is broken, also
    by a restart of the server, compaction may pass the follower's version: then ``next`` raises ``Compacted``. A
    consumer that must go on takes a ``VersionHold`` of the version where it begins, and moves it along by ``advance``
    from time to time.

Who holds the data
    No thread reads ahead: versions that the consumer has not asked for stay on the server, which is held back by the
    connection. The follower holds the step that is arriving, and the bytes received together with it, up to 4 MiB.

Ending
    ``close``, from any thread, ends a waiting ``next`` and the loop; so do garbage collection and the interpreter's
    exit. An error ends the follower, too. In a forked child ``next`` raises ``ForkedProcess``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from flight_server.protocol import Versions
from spark_client.connection import Closable, ForkedProcess
from spark_client.lanes import BatchBurst, Closed, ReadStream
from spark_client.merge import DatasetRef, in_thread

from .put_rows import counted
from .version_holds import VersionHold
from .version_reads import fetch, version_cursor, version_stream


@dataclass(frozen=True)
class Change:
    """The changes of ``version``. The last column of ``table``, ``_diff: int64``, says how often a row was asserted
    (above zero) or retracted (below zero); no rows if nothing changed for a reader.
    """

    version: int
    table: pa.Table


class Follower(Closable):
    """An iterator of changes without an end of its own, and an async one; also a context manager of either kind.

    One consumer at a time. ``next`` blocks until the next version is complete.
    """

    def __init__(self, ref: DatasetRef, after: int | None = None) -> None:
        self._ref = ref
        self._pid = os.getpid()
        self._stream: ReadStream | None = None
        self._ended = False
        # Held while reading: ``close`` cancels first, and then waits for the reader. Re-entrant for signal handlers.
        self._reading = threading.RLock()
        self._loading: asyncio.Future[Change | None] | None = None
        if after is not None:
            self._follow(after)

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        """Raises the error that ended the follower: ``Compacted`` if it is too late, ``StaleTicket`` if the changelog
        was dropped, or as ``ReadStream.read_burst``.
        """
        change = self._next()
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """End the follower, and wait until its connection is released. Calling it twice is fine."""
        if self._pid == os.getpid():
            self._cancel()
            with self._reading:
                if self._stream is not None:
                    self._stream.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """Safe to cancel: the next call gets the change."""
        if self._loading is None:
            stream = None if self._ended else self._stream
            if stream is not None and (step := stream.next_nowait()) is not None:
                return self._change(step)
            self._loading = asyncio.wrap_future(in_thread(self._next, f"follow: {self._ref.dataset}"))
        loading = self._loading
        try:
            change = await asyncio.shield(loading)
        finally:
            if loading.done():
                self._loading = None
        if change is None:
            raise StopAsyncIteration
        return change

    async def aclose(self) -> None:
        """As :meth:`close`, without blocking the loop."""
        self._cancel()
        loading, self._loading = self._loading, None
        if loading is not None:
            with contextlib.suppress(Exception):
                await loading
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # Inside.

    def _next(self) -> Change | None:
        if self._pid != os.getpid():
            raise ForkedProcess("a follower cannot be used in a forked child; make it after the fork")
        with self._reading:
            try:
                if self._ended:
                    return None
                if self._stream is None:
                    return self._begin()
                return self._change(self._stream.read_burst())
            except Closed:
                return None
            except BaseException:
                # Also Ctrl-C: a step may be lost between the stream and here, so no later one may be returned.
                self.close()
                raise

    def _begin(self) -> Change:
        with VersionHold(self._ref) as hold:
            version, table = fetch(self._ref, Versions(hold.version))
            # From here on the server holds the version that the follower has been sent.
            self._follow(hold.version).open()
        return Change(version, counted(table, 1))

    def _follow(self, after: int) -> ReadStream:
        cursor = version_cursor(self._ref, Versions(after=after, follow=True))
        self._stream = stream = version_stream(self._ref, cursor)
        weakref.finalize(self, _end, stream, self._pid)
        # ``close`` sets the flag, then reads ``_stream``; here the reverse, so that no close is lost.
        if self._ended:
            stream.cancel()
        return stream

    def _change(self, step: BatchBurst | None) -> Change:
        assert self._stream is not None
        assert step is not None  # what is followed has no end
        return Change(step.part, pa.Table.from_batches(step.batches, self._stream.open()))

    def _cancel(self) -> None:
        self._ended = True
        if self._stream is not None:
            self._stream.cancel()


def _end(stream: ReadStream, pid: int) -> None:
    # A forked child has the parent's connection, and must not shut it down.
    if pid == os.getpid():
        stream.cancel()
        stream.close()
