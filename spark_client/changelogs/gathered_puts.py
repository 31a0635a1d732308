"""Gathers many small puts into few: one commit, and one version, for all rows that were added meanwhile.

Guarantee: the rows of one ``add`` are committed whole and in one version, which its future gets, or the future gets
the error. Versions rise in the order of the adds of one thread. An error fails every add of its put, and no other.
So it is with the keys of a ``delete``; rows and keys are never of one version.

When rows are put
    One put is under way at a time; rows added meanwhile go into the next one. That begins when the last one has ended,
    and ``linger_seconds`` after its first add, less if ``PUT_BYTES`` wait. Each version costs the server and a follower
    some milliseconds of CPU, so while these are busy rows arrive sooner in fewer and larger ones.

Who holds the data
    The writer holds added rows until their put has ended. ``add`` blocks while they are more than ``limit_bytes``,
    unless nothing waits. So it holds at most ``limit_bytes`` and one add, and a copy of the rows being put: at most
    ``PUT_BYTES`` and one add.

Failure
    After an error it may be unknown whether the rows were committed (``Unavailable``), so the writer does not put them
    again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from flight_server.protocol import FlightShuffleError
from spark_client.connection import Closable
from spark_client.lanes import Batch, Closed, PutStream
from spark_client.merge import fresh

PUT_BYTES = 8 << 20
LIMIT_BYTES = 64 << 20
LINGER_SECONDS = 0.002
"""About what a small version takes from the put to its answer."""
REST_SECONDS = 1.0
_SMALL_BYTES = 16 << 10


class GatheredKind(NamedTuple):
    """How rows, or keys, are gathered.

    Args:
        prepared: checks rows or keys, and makes them batches that ``commit`` takes, with others.
        commit: commits batches and returns their version.
    """

    prepared: Callable[[Any], list[Batch]]
    commit: Callable[[list[Batch]], int]


class _Added(NamedTuple):
    batches: list[Batch]
    size_bytes: int
    version: Future[int]
    kind: GatheredKind
    added_seconds: float


MOST_SECONDS = 60.0


class KeptStream:
    """The open put of one writer, a version for each commit, so that a small version needs no connection. For one
    thread.

    Guarantee: a stream that has failed is not lent again. A stream is ended, and another one opened, for rows of
    another schema, and after ``MOST_SECONDS``, so that a drained server, and the deadline of a gRPC call, end no
    writer.

    Args:
        open_: opens a put of rows of a schema.
    """

    def __init__(self, open_: Callable[[pa.Schema], PutStream]) -> None:
        self._open = open_
        self._stream: PutStream | None = None
        self._schema: pa.Schema | None = None
        self._until_seconds = 0.0

    @contextmanager
    def lent(self, schema: pa.Schema) -> Iterator[PutStream]:
        """A stream for one version; it is abandoned after an error of the block. Raises as ``PutStream``."""
        if schema != self._schema or time.monotonic() >= self._until_seconds:
            self.end()
        stream, self._stream = self._stream, None
        if stream is None:
            stream = self._open(schema)
            self._schema, self._until_seconds = schema, time.monotonic() + MOST_SECONDS
        try:
            yield stream
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def end(self) -> None:
        """End the stream, if one is open. Its commits stand, also after an error."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(FlightShuffleError):
                stream.end()


class GatheringWriter(Closable):
    """Thread-safe; also a context manager that closes it.

    Args:
        puts, deletes: how the rows of ``add`` and the keys of ``delete`` are gathered.
        rest: called when nothing was added for ``REST_SECONDS``, and at the end.
    """

    def __init__(
        self,
        puts: GatheredKind,
        deletes: GatheredKind,
        rest: Callable[[], None] = lambda: None,
        *,
        linger_seconds: float = LINGER_SECONDS,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._puts = puts
        self._deletes = deletes
        self._rest = rest
        self._linger_seconds = linger_seconds
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._waiting: deque[_Added] = deque()
        self._waiting_bytes = 0
        self._held_bytes = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, data: Any) -> Future[int]:
        """The future of the version that gets these rows. They must not be changed before it is done.

        Cancelling the future before the put begins takes the rows out.

        Raises:
            InvalidRequest: the rows do not fit the changelog's schema; other adds are not affected.
            Closed: the writer is closed.
        """
        return self._add(data, self._puts)

    def delete(self, keys: Any) -> Future[int]:
        """The future of the version that deletes these keys, with their rows of earlier adds. As :meth:`add`."""
        return self._add(keys, self._deletes)

    def _add(self, data: Any, kind: GatheredKind) -> Future[int]:
        batches = kind.prepared(data)
        added = _Added(
            batches, sum([_size_bytes(batch) for batch in batches]), Future(), kind, time.monotonic()
        )
        with self._changed:
            most_bytes = self._limit_bytes - added.size_bytes
            while not self._closed and self._held_bytes and self._held_bytes > most_bytes:
                self._changed.wait()
            if self._closed:
                raise Closed("this writer is closed; make a new one")
            self._waiting.append(added)
            self._waiting_bytes += added.size_bytes
            self._held_bytes += added.size_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gathered-puts", daemon=True)
                self._thread.start()
            elif len(self._waiting) == 1 or self._waiting_bytes >= PUT_BYTES or self._is_mixed():
                self._changed.notify_all()
        return added.version

    def close(self) -> None:
        """Put the waiting rows, wait for it, and end the thread. Errors are in the futures. Calling twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # Inside.

    def _is_mixed(self) -> bool:
        """Whether the first adds that wait make a put that no later add can join."""
        return bool(self._waiting) and self._waiting[0].kind is not self._waiting[-1].kind

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._closed

    def _run(self) -> None:
        while group := self._next_group():
            _commit([added for added in group if added.version.set_running_or_notify_cancel()])
            with self._changed:
                self._held_bytes -= sum(added.size_bytes for added in group)
                self._changed.notify_all()
        self._rest()

    def _next_group(self) -> list[_Added]:
        """Wait for adds, and linger; those of the next put, none when the writer is closed."""
        with self._changed:
            woken = self._changed.wait_for(self._has_work, REST_SECONDS)
        if not woken:
            self._rest()
        with self._changed:
            self._changed.wait_for(self._has_work)
            begun_seconds = self._waiting[0].added_seconds if self._waiting else 0.0
            until = begun_seconds + self._linger_seconds
            while not self._closed and self._waiting_bytes < PUT_BYTES and not self._is_mixed():
                if (left_seconds := until - time.monotonic()) <= 0:
                    break
                self._changed.wait(left_seconds)
            group: list[_Added] = []
            size_bytes = 0
            while self._waiting and size_bytes < PUT_BYTES:
                if group and self._waiting[0].kind is not group[0].kind:
                    break
                group.append(self._waiting.popleft())
                size_bytes += group[-1].size_bytes
            self._waiting_bytes -= size_bytes
            return group


def _size_bytes(batch: Batch) -> int:
    held_bytes = int(batch.get_total_buffer_size())
    # A slice has only a part of its buffers. For a small batch ``nbytes`` would cost more than all else here.
    return held_bytes if held_bytes < _SMALL_BYTES else int(batch.nbytes)


def _commit(group: list[_Added]) -> None:
    if not group:
        return
    try:
        version = group[0].kind.commit([batch for added in group for batch in added.batches])
    except BaseException as error:  # noqa: BLE001 (each add raises it)
        for added in group:
            added.version.set_exception(fresh(error))
    else:
        for added in group:
            added.version.set_result(version)
