"""One put: sends batches, and returns the server's answer to the commit.

Guarantee: :meth:`PutStream.commit` returns only after the server has accepted everything; every error carries the
server's sentence if it sent one, and ends the stream. The rows that a ``shuffle`` producer sent on a stream that ends
without ``commit`` (an exception, a killed process) are never visible. The lane does not change the stored frames.

When batches travel
    No reader sees a shuffle's batch before the seal, nor a changelog's before the commit, so on the bulk lane small
    ones may wait for later ones: up to 64 KiB, until the commit at the latest. A put that waits so may be silent for
    long: a lease holds that to a shuffle, and a changelog's has all of its rows at hand. Any other batch has been sent
    when ``write`` returns. The stream keeps no reference to a batch: an iterable may overwrite its memory when it is
    asked for the next one.

The lane
    It is chosen before any of the put is sent; until then a server that is away for a moment is asked again
    (``connection.transport``). A put that breaks later is not tried on the other lane, because only its caller knows
    whether another attempt is allowed.

    ``auto`` takes the bulk lane at the first place that is reachable and speaks it, else gRPC. It skips other places
    (also those of a proxy that does not pass the upgrade) for ``DOWN_SECONDS``, and does not ask a server that named
    none for as long.

Places
    The locations where a server takes puts on the bulk lane, the same for all its datasets. A driver learns them when
    it looks whether a server answers, and gives them to its tasks, which then need no gRPC call. Any other process asks
    once (:func:`places_of`), and again after a place failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from flight_server.protocol import (
    Commit,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    PutCommand,
    Unavailable,
    Unsupported,
    cut,
    parse_json,
    partition_metadata,
)
from spark_client.arrow import own_dictionaries
from spark_client.connection import (
    Closable,
    Compression,
    RemoteServer,
    TimedOut,
    Unreachable,
    check_compression,
    misdirected,
)

from .bulk_put import BulkWriter
from .grpc_put import GrpcWriter
from .http import HttpPool, NoBulkLane
from .lane import LaneWriter, Tries
from .read_stream import DOWN_SECONDS

FRAME_BYTES = 2 << 20
"""A batch above ``MAX_FRAME_BYTES`` is cut into frames of about this size."""
MAX_FRAME_BYTES = (4 << 20) - (64 << 10)
"""Other languages' Flight clients take 4 MiB by default; the rest is for metadata and envelope."""
MOST_BYTES = (256 << 20) - (64 << 10)
"""The server takes 256 MiB by default."""


def open_writing(
    server: RemoteServer,
    command: PutCommand,
    schema: pa.Schema,
    places: Sequence[str] | None = None,
    compression: Compression = None,
    *,
    once: bool = False,
) -> LaneWriter:
    """Begin a put, on the lanes that ``server.writing`` allows; the arguments are as for :class:`PutStream`.

    Raises:
        InvalidRequest: an unknown codec; or only the bulk lane is allowed, and the server names no place for it.
        FlightShuffleError: the server's error, or the server cannot be reached.
    """
    check_compression(compression)
    lane = server.writing.lane
    if lane == "grpc":
        return GrpcWriter(server, command, schema, compression, once=once)

    tries = Tries()

    def bulk() -> LaneWriter | None:
        failure: Unavailable | None = None
        try:
            for place in places_of(server, once=once) if places is None else places:
                pool = _pool(server, place)
                if lane == "auto" and (why := pool.left_alone) is not None:
                    tries.passed_over(place, why)
                    continue
                try:
                    return BulkWriter(pool, place, server, command, schema, compression=compression)
                except (NoBulkLane, Unreachable, TimedOut) as error:
                    pool.leave_alone(DOWN_SECONDS, error)
                    tries.failed(place, error)
                    if places is None:
                        _known(server).forget()
                    failure = error
            if failure is not None and lane == "bulk":
                raise failure
        finally:
            del failure  # whose traceback refers to this frame
        return None

    if lane == "auto":
        return bulk() or GrpcWriter(server, command, schema, compression, once=once, before=tries)
    if (writer := server.riding_out(bulk, once=once)) is not None:
        return writer
    raise InvalidRequest(
        f"the server {server.location} names no place for puts on the bulk lane: use lane='auto'"
    )


def places_of(server: RemoteServer, *, once: bool = False) -> tuple[str, ...]:
    """The server's places, from its last answer; empty if it has none. Raises FlightShuffleError: the server could not
    be asked.
    """
    known = _known(server)
    if not known.places and time.monotonic() >= known.until_seconds:
        # Another Flight server than ours has no such action.
        with contextlib.suppress(NotFound, Unsupported):
            answer = server.action("locations", once=once)
            known.places, known.start = tuple(answer.get("put_locations", ())), answer.get("start")
        known.until_seconds = time.monotonic() + DOWN_SECONDS
    return known.places


class _Known:
    """A server's last answer; ``until_seconds`` is monotonic."""

    def __init__(self) -> None:
        self.places: tuple[str, ...] = ()
        self.start: str | None = None
        self.until_seconds = 0.0

    def forget(self) -> None:
        """Ask again at the next put: a place failed, and the server may have moved."""
        self.places, self.until_seconds = (), 0.0


def _known(server: RemoteServer) -> _Known:
    return server.attached("places of puts", _Known)


def _pool(server: RemoteServer, place: str) -> HttpPool:
    # Not the readers' pool: an address may answer GETs and not accept the upgrade, or the reverse.
    parts = urlsplit(place)
    return server.attached(("puts", parts.scheme, parts.netloc), lambda: HttpPool(place, server))


class PutStream(Closable):
    """An open put to one dataset, which ``close`` ends without a commit.

    Args:
        schema: of every batch.
        places: the server's places, if the caller knows them; None to ask the server.
        compression: see ``messages``.
        once: for a caller that begins again by itself: a server that is away for a moment is an error at once.

    Raises:
        FlightShuffleError: the server's refusal, or the connection broke; also of :meth:`write`.
        InvalidRequest: the server has sent the put to another one, ``connection.misdirected``; also of all methods.
    """

    def __init__(
        self,
        server: RemoteServer,
        command: PutCommand,
        schema: pa.Schema,
        places: Sequence[str] | None = None,
        compression: Compression = None,
        *,
        once: bool = False,
    ) -> None:
        self._server = server
        self._writing = open_writing(server, command, schema, places, compression, once=once)
        self.rows = 0
        self.frames = 0

    def write(self, batch: Any, partition: int | None = None, *, hold: bool = False) -> None:
        """Send a batch; to ``partition`` of a shuffle. ``hold``: it may wait, as that one may."""
        metadata = b"" if partition is None else partition_metadata(partition)
        with self._at_its_place():
            for frame in frames(batch):
                self._writing.write(frame, metadata, hold=hold or partition is not None)
                self.rows += frame.num_rows
                self.frames += 1

    def commit(self, *, last: bool = True) -> dict[str, Any]:
        """Commit the written rows, with their totals; the server's answer. Rows written after a commit that is not the
        ``last`` one are a changelog's next version. Raises FlightShuffleError: the server did not confirm the commit;
        the message says why.
        """
        totals = Commit(self.rows, self.frames)
        with self._at_its_place():
            answers = self._writing.finish(totals) if last else [self._writing.commit(totals)]
        answer = parse_json(answers[-1], "the answer to a commit") if answers else {}
        if answer.get("committed") is not True or answer.get("rows") != self.rows:
            raise FlightShuffleError(
                f"the server did not confirm the commit of {self.rows} rows; it answered {answer}",
                rows=self.rows,
            )
        self._check_start(answer.get("start"))
        if not last:
            self.rows = self.frames = 0
        return answer

    def end(self) -> None:
        """End the stream after a commit that was not the last one. Raises FlightShuffleError."""
        with self._at_its_place():
            self._writing.finish(None)

    @contextlib.contextmanager
    def _at_its_place(self) -> Iterator[None]:
        """Another server than the one that is meant has no such dataset."""
        try:
            yield
        except NotFound as error:
            wrong = misdirected(self._server, self._writing.place, error.detail.get("server_start"))
            if wrong is None:
                raise
            raise wrong from error

    def _check_start(self, start: str | None) -> None:
        """The server that has taken the put is the one that has named the place, or was started again since."""
        known = _known(self._server)
        if start is None or known.start in (None, start):
            return
        if (wrong := misdirected(self._server, self._writing.place, start)) is not None:
            raise wrong
        known.start = start

    def cancel(self) -> None:
        """End the stream, from any thread; on the bulk lane also a waiting ``write`` or ``commit``, at once."""
        self._writing.cancel()

    def close(self) -> None:
        """End the stream without a commit. Twice is fine, also after ``commit``."""
        self._writing.abandon()


def frames(batch: Any) -> Iterator[Any]:
    """The batch, or slices of it of about ``FRAME_BYTES`` if it exceeds ``MAX_FRAME_BYTES``.

    A larger row is one frame. So is a batch of list views or dense unions, see ``protocol.cutting``.
    """
    size_bytes = int(pa.ipc.get_record_batch_size(batch))
    slices = [batch]
    if size_bytes > MAX_FRAME_BYTES:
        rows = batch.num_rows * FRAME_BYTES // size_bytes
        slices = cut(batch, rows, pa.ipc.get_record_batch_size, limit_bytes=MOST_BYTES)
    if len(slices) == 1:
        yield batch
        return
    for each in slices:
        yield from frames(each)  # again, because rows differ in size


def as_reader(data: Any) -> pa.RecordBatchReader:
    """A reader over a Table, RecordBatch, RecordBatchReader, iterable of RecordBatches, or object with
    ``__arrow_c_stream__`` (Polars, DuckDB, pandas). Raises InvalidRequest: ``data`` is none of these, or an empty
    iterable, which has no schema.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    is_empty = False
    try:
        batches = iter(data)
    except TypeError:
        first, batches = data, iter(())
    else:
        first = next(batches, None)
        is_empty = first is None
    if not isinstance(first, pa.RecordBatch):
        what = "an empty iterable, which has no schema" if is_empty else type(first).__name__
        raise InvalidRequest(
            f"cannot put {what}: give a pyarrow Table, RecordBatchReader or RecordBatch, an iterable of "
            "RecordBatches, or an object with __arrow_c_stream__"
        )

    def all_batches() -> Iterator[Any]:
        yield own_dictionaries(first)
        yield from map(own_dictionaries, batches)

    return pa.RecordBatchReader.from_batches(first.schema, all_batches())


async def put_async(
    server: RemoteServer, command: PutCommand, data: Any, compression: Compression = None
) -> int:
    """Put ``data``, as :func:`as_reader` takes it or an async iterable of RecordBatches; the number of rows.

    Blocking calls run in threads, one at a time. Cancelling this cancels the running call where the lane can, waits
    for it, and ends the stream without its commit.

    Raises:
        InvalidRequest: an async iterable gave no RecordBatch; otherwise as :func:`as_reader` and :class:`PutStream`.
    """
    if isinstance(data, AsyncIterable):
        batches = aiter(data)
        first = await anext(batches, None)
        if not isinstance(first, pa.RecordBatch):
            raise InvalidRequest(
                f"cannot put {type(first).__name__}: the async iterable must give RecordBatches"
            )
        schema = first.schema
    else:
        reader = await asyncio.to_thread(as_reader, data)
        first, batches, schema = None, _in_threads(reader), reader.schema
    stream = await _open(server, command, schema, compression)
    try:
        if first is not None:
            await _run_to_end(stream.write, own_dictionaries(first), cancel=stream.cancel)
        async for batch in batches:
            await _run_to_end(stream.write, own_dictionaries(batch), cancel=stream.cancel)
        await _run_to_end(stream.commit, cancel=stream.cancel)
    finally:
        await _run_to_end(stream.close)
    return int(stream.rows)


async def _open(
    server: RemoteServer, command: PutCommand, schema: pa.Schema, compression: Compression
) -> PutStream:
    """An open stream, closed if this is cancelled meanwhile."""
    made: list[PutStream] = []
    try:
        await _run_to_end(lambda: made.append(PutStream(server, command, schema, compression=compression)))
    except asyncio.CancelledError:
        for stream in made:
            await _run_to_end(stream.close)
        raise
    return made[0]


async def _in_threads(reader: Any) -> AsyncIterator[Any]:
    while (batch := await asyncio.to_thread(next, reader, None)) is not None:
        yield batch


async def _run_to_end(
    call: Callable[..., Any], *arguments: Any, cancel: Callable[[], None] = lambda: None
) -> Any:
    """The result of ``call``, run in a thread. A cancel of this calls ``cancel`` and waits for ``call``."""
    running = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancel()
        while not running.done():
            # Also when cancelled again: the call's connection cannot be released while the call runs.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        running.exception()  # which the cancel has caused: asyncio would log one that is not asked for
        raise
