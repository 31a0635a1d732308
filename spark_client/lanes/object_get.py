"""Reading an object in shared storage (``flight_server.protocol.stored_objects``), as a lane like the others.

Guarantee: see ``lane``; and each piece's checksum is compared before Arrow's decoder gets any of it. A damaged object
is an error that names it (PartitionFailed), and so is one that is not there (NotFound); what the storage refuses is
BrokenStream, after which the caller goes on at the next frame.

A read holds one piece: about 4 MiB, or one larger frame. Credentials are those of the process's environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pyarrow as pa

from flight_server.protocol import (
    GENERATION_HEADER,
    FlightShuffleError,
    NotFound,
    ObjectIndex,
    PartitionEnd,
    PartitionFailed,
    Piece,
    StoredPartition,
    Ticket,
    index_of,
    shown,
)
from flight_server.protocol.checksums import crc32c

from .batch_bursts import CheckedMessages
from .lane import BatchBurst, BrokenStream, Closed, ReadTotals


@lru_cache(64)
def store_of(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it. Raises OSError: it cannot be reached."""
    from pyarrow import fs  # noqa: PLC0415 - only what is in storage needs it

    try:
        store: tuple[Any, str] = fs.FileSystem.from_uri(address)
    except ValueError as error:
        raise OSError(str(error)) from error
    return store


@lru_cache(16)
def _index_of(address: str) -> ObjectIndex:
    """Raises OSError; ValueError: it is damaged."""
    files, path = store_of(index_of(address))
    with files.open_input_file(path) as file:
        return ObjectIndex.parse(file.read(), crc32c)


class _Pieces:
    """The messages of one partition behind that of the schema, for ``CheckedMessages``."""

    def __init__(self, schema: pa.Buffer, file: Any, stored: StoredPartition) -> None:
        self.announced: deque[tuple[int, int]] = deque()  # the pieces have checksums, not the messages
        self.left: pa.Buffer = schema  # of the present piece
        self.size_bytes = 0
        self._file = file
        self._start = stored.offset
        self._pieces = iter(stored.pieces)

    def next_chunk_bytes(self) -> int:
        return int(self.left.size)

    def read_buffer(self, size: int) -> pa.Buffer:
        if not self.left.size and (piece := next(self._pieces, None)) is not None:
            self.left, self.size_bytes = _read(self._file, self._start, piece), piece.end - self._start
            self._start = piece.end
        part, self.left = self.left.slice(0, size), self.left.slice(min(size, self.left.size))
        return part


def _read(file: Any, start: int, piece: Piece) -> pa.Buffer:
    """Raises ValueError: it is damaged."""
    file.seek(start)
    data = file.read_buffer(piece.end - start)
    if data.size != piece.end - start:
        raise ValueError(f"it ends at byte {start + data.size}, and had more when it was written")
    if crc32c(memoryview(data)) != piece.crc32c:
        raise ValueError(
            f"the bytes from {start} to {piece.end} have another checksum than when they were written"
        )
    return data


class ObjectReader:
    """A ``LaneReader`` of the ``partitions`` of a ticket, each of which is followed by its end as the server sends
    it.
    """

    totals: ReadTotals | None = None

    def __init__(self, address: str, ticket: Ticket) -> None:
        self._address = address
        self._ticket = ticket
        self._file: Any = None
        self._bursts: Iterator[BatchBurst] = iter(())
        self._cancelled = False
        self.headers: Mapping[str, str] = {}

    def open(self) -> pa.Schema:
        with self._errors():
            index = _index_of(self._address)
            self.headers = {GENERATION_HEADER: index.generation}
            if index.dataset != self._ticket.dataset:
                raise ValueError(f"it is one of dataset {index.dataset!r}")
            files, path = store_of(self._address)
            self._file = files.open_input_file(path)
            message = _read(self._file, 0, index.schema)
            schema = pa.ipc.read_schema(message)
            self._bursts = self._read_partitions(index, message, schema)
            return schema

    def read_burst(self) -> BatchBurst | None:
        if self._cancelled:
            raise Closed("the read was cancelled")
        with self._errors():
            return next(self._bursts, None)

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read_partitions(
        self, index: ObjectIndex, message: pa.Buffer, schema: pa.Schema
    ) -> Iterator[BatchBurst]:
        columns = [column.chunk(0) for column in schema.empty_table().columns]
        nothing = pa.RecordBatch.from_arrays(columns, schema=schema)
        skipped = self._ticket.from_
        for number in self._ticket.partitions or ():
            assert isinstance(number, int)
            end = PartitionEnd(number)
            if (stored := index.partitions.get(number)) is not None:
                end = PartitionEnd(*stored[:4])
                yield from _frames(_Pieces(message, self._file, stored), stored, skipped)
            yield BatchBurst([nothing], metadata=[pa.py_buffer(end.encode())])
            skipped = 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        where = f"the object {shown(self._address)} of dataset {self._ticket.dataset!r}"
        try:
            yield
        except FlightShuffleError:
            raise
        except FileNotFoundError as error:
            raise NotFound(f"{where} is not there", dataset=self._ticket.dataset) from error
        except (ValueError, ConnectionError) as error:
            # ``CheckedMessages`` has errors of connections; Arrow's are ValueErrors.
            why = f"{where} is damaged: {error}"
            raise PartitionFailed(why, dataset=self._ticket.dataset) from error
        except (OSError, pa.ArrowException) as error:
            raise BrokenStream(f"{where} cannot be read: {shown(str(error))}") from error


def _frames(pieces: _Pieces, stored: StoredPartition, skipped: int) -> Iterator[BatchBurst]:
    """The frames from number ``skipped`` on, those of a piece together."""
    messages = CheckedMessages(pieces)
    stream = pa.ipc.open_stream(pa.PythonFile(messages, mode="r"))
    batches: list[Any] = []
    sums: list[int] = []
    for number in range(stored.frames):
        batch = stream.read_next_batch()
        if number >= skipped:
            batches.append(batch)
            sums += messages.pop_checksums()
        else:
            messages.pop_checksums()
        if batches and not pieces.left.size:
            yield BatchBurst(batches, pieces.size_bytes, sums)
            batches, sums = [], []
