"""One DoPut stream: batches out, the server's answer in, and its own words when it refuses.

Guarantee: :meth:`PutStream.finish` returns only after the server has accepted everything; every error carries
the server's sentence if it sent one. A stream that is left without ``finish`` (an exception, a killed
process) is not committed, and what a ``shuffle`` producer sent on it is never visible.

pyarrow's writer reports a refusal as a lost connection at some later write and knows the reason only when it
is closed; so each failure closes the stream first and asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from flight_server.errors import FlightShuffleError, InvalidRequest
from flight_server.protocol import Commit, PutCommand, partition_metadata
from flight_server.strict_json import parse_json
from spark_client.transport import Server

FRAME_BYTES = 4 * 1024 * 1024
"""Larger batches are cut into frames of about this size."""


class PutStream:
    """A stream to one dataset, of a command with producer and attempt.

    Also a context manager that ends it without a commit when left early.
    """

    def __init__(self, server: Server, command: PutCommand, schema: pa.Schema) -> None:
        descriptor = flight.FlightDescriptor.for_command(command.encode())
        self._writer, self._reader, self._call = server.open_put(descriptor, schema)
        self._closed = False
        self.rows = 0
        self.frames = 0

    def write(self, batch: Any, partition: int | None = None) -> None:
        """Send a batch; to ``partition`` when the dataset is a shuffle.

        Raises:
            FlightShuffleError: what the server refused, or why it cannot be reached.
        """
        for frame in frames(batch):
            with self._errors():
                if partition is None:
                    self._writer.write_batch(frame)
                else:
                    self._writer.write_with_metadata(frame, pa.py_buffer(partition_metadata(partition)))
            self.rows += frame.num_rows
            self.frames += 1

    def commit(self) -> dict[str, Any]:
        """End the stream with its totals; the server's answer.

        Raises:
            FlightShuffleError: nothing was committed, and why.
        """
        with self._errors():
            self._writer.write_metadata(pa.py_buffer(Commit(self.rows, self.frames).encode()))
            self._writer.done_writing()
            answers = []
            while (metadata := self._reader.read()) is not None:
                answers.append(parse_json(metadata.to_pybytes(), "the answer to a commit"))
        self._closed = True
        with self._call.errors():
            self._writer.close()
        answer = answers[-1] if answers else {}
        if answer.get("committed") is not True or answer.get("rows") != self.rows:
            raise FlightShuffleError(
                f"the server did not confirm the commit of {self.rows} rows; it answered {answer}",
                rows=self.rows,
            )
        return answer

    def abandon(self) -> None:
        """End the stream without a commit. Twice is fine, also after ``commit``."""
        if not self._closed:
            self._closed = True
            try:
                with self._call.errors():
                    self._writer.close()
            except FlightShuffleError:
                pass  # why it is abandoned is known already

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._call.errors():
                yield
        except FlightShuffleError as error:
            raise self._reason(error) from error

    def _reason(self, error: FlightShuffleError) -> FlightShuffleError:
        if not self._closed:
            self._closed = True
            try:
                with self._call.errors():
                    self._writer.close()
            except FlightShuffleError as reason:
                return reason
        return error


def frames(batch: Any) -> Iterator[Any]:
    """The batch, or slices of it of about ``FRAME_BYTES`` when it is more than twice as large."""
    size_bytes = batch.nbytes
    if size_bytes <= 2 * FRAME_BYTES or batch.num_rows <= 1:
        yield batch
        return
    rows = max(1, batch.num_rows * FRAME_BYTES // size_bytes)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def as_reader(data: Any) -> pa.RecordBatchReader:
    """A reader over what can be put: a Table, a RecordBatch, a reader, anything with ``__arrow_c_stream__``
    (Polars, DuckDB, pandas), or an iterable of RecordBatches.

    Raises:
        InvalidRequest: none of these, or an empty iterable, which has no schema.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    try:
        batches = iter(data)
        first = next(batches, None)
    except TypeError:
        first, batches = data, iter(())
    if not isinstance(first, pa.RecordBatch):
        what = "an empty iterable, which has no schema" if first is None else type(first).__name__
        raise InvalidRequest(
            f"cannot put {what}: give a pyarrow Table, RecordBatchReader or RecordBatch, an iterable of "
            "RecordBatches, or an object with __arrow_c_stream__"
        )

    def all_batches() -> Iterator[Any]:
        yield first
        yield from batches

    return pa.RecordBatchReader.from_batches(first.schema, all_batches())


async def put_async(server: Server, command: PutCommand, data: Any) -> int:
    """Put ``data``, which may also be an async iterable of RecordBatches; the number of rows.

    pyarrow's calls run in threads, one at a time. Cancelling waits for the one under way, then ends the
    stream without its commit.

    Raises:
        InvalidRequest: an async iterable that gave no RecordBatch; otherwise as :class:`PutStream`.
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
    stream = await _finished(PutStream, server, command, schema)
    try:
        if first is not None:
            await _finished(stream.write, first)
        async for batch in batches:
            await _finished(stream.write, batch)
        await _finished(stream.commit)
    finally:
        await _finished(stream.abandon)
    return int(stream.rows)


async def _in_threads(reader: Any) -> AsyncIterator[Any]:
    while (batch := await asyncio.to_thread(next, reader, None)) is not None:
        yield batch


async def _finished(call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's result; when cancelled meanwhile, only after it has returned."""
    running = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
