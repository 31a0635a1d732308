"""First rows: what ``/v1/rows`` shows of one dataset: its columns, and its first rows as texts.

Guarantee: an answer has at most ``MAX_ROWS`` rows, ``MAX_COLUMNS`` columns and about ``TEXT_CHARACTERS`` of their
values. They are those of the first frames of one partition, or of the first messages of the
newest version: of as many as are needed, and of no further one after ``READ_BYTES``. No partition is read whole.

Reading
    It is a read as any other, by the same code, which ends before a byte goes to the client. So a client that takes
    nothing holds no frame, and one that leaves cancels the read. It waits for nothing that is not there: it starts no
    pull, waits for no producer, and retention does not count it. For room and for the disk it waits ``READ_SECONDS``;
    the answer then says so in the place of rows.

Memory
    The answer's room in ``answers`` is as large as a decompressed frame may be, and is reserved before the read begins:
    so one that waits for it holds nothing, and few run at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

import pyarrow as pa

from flight_server.concurrency import in_slices
from flight_server.datasets import Dataset, Partition, PartitionState
from flight_server.frames import FrameDecoder, SchemaMessage
from flight_server.kinds import Kinds
from flight_server.memory import Reservation
from flight_server.protocol import FlightShuffleError, wire
from flight_server.tiering import Reader
from flight_server.transfer import FrameRange, MadeAnswer, Reads

from .reports import failure_of

MAX_ROWS = 20
MAX_COLUMNS = 50
MAX_NAMED_COLUMNS = 500
"""Of which name and type are shown."""
TEXT_CHARACTERS = 20_000
MOST_CHARACTERS, LEAST_CHARACTERS = 100, 12
"""Of a value, in rows of few and of many columns."""
READ_BYTES = 4 << 20
READ_SECONDS = 2.0

_Message = tuple[bytes, Reservation | None]
"""A FlightData message, and its room."""


def first_rows_answer(reads: Reads, kinds: Kinds, dataset: Dataset, peer: str) -> MadeAnswer:
    """The answer of ``/v1/rows``."""
    # An answer is counted twice.
    return MadeAnswer(reads.budget.max_message_bytes // 2, partial(first_rows, reads, kinds, dataset, peer))


async def first_rows(reads: Reads, kinds: Kinds, dataset: Dataset, peer: str) -> dict[str, Any]:
    """The dataset's columns and first rows, or in ``note`` why there are none. Cancelling is safe."""
    sample = _Sample(reads.budget.max_message_bytes)
    partition: int | None = None
    note: str | None = None
    try:
        async with asyncio.timeout(READ_SECONDS):
            if dataset.schema is not None:
                await asyncio.to_thread(sample.describe, dataset.schema)
                partition = await _read(reads, kinds, dataset, peer, sample)
    except TimeoutError:
        note = f"no further row came within {READ_SECONDS:g} s: the server is busy; ask again"
    except FlightShuffleError as error:
        note = error.message
    failure = failure_of(dataset)
    return {
        "dataset": dataset.name,
        "generation": dataset.generation,
        "kind": dataset.kind.value,
        "failure": failure,
        "columns": sample.columns,
        "column_count": sample.column_count,
        "partition": partition,
        "rows": sample.rows,
        "note": note or (None if sample.rows else _why_none(dataset, failure)),
    }


def _why_none(dataset: Dataset, failure: str | None) -> str:
    if failure is not None:
        return "of a partition that has failed no rows are kept"
    if dataset.schema is None:
        return "no producer has sent its schema yet"
    if dataset.attached.pulled:
        return "none of its rows are here: its next reader has the server pull them"
    if not dataset.sealed:
        return "no reader would get a row yet"
    released = ", or retention has released them" if dataset.retention.readers is not None else ""
    return f"it has no rows here{released}"


async def _read(reads: Reads, kinds: Kinds, dataset: Dataset, peer: str, sample: _Sample) -> int | None:
    """Read until the sample has enough; the number of the partition, if one has rows."""
    versions = kinds[dataset.kind].read(dataset, None, None)
    if versions is not None:
        versions.check()
        sample.begin(versions.schema_header())
        bursts = versions.bursts(Reader(dataset.name, 0, peer))
        messages = _of(bursts, lambda burst, each: (each.flight_data(), burst.room))
        index = 0
    else:
        partition = await _first_filled(dataset)
        if partition is None:
            return None
        assert dataset.schema is not None
        sample.begin(dataset.schema.header)
        index, start = partition.index, partition.first_left
        frames = FrameRange(start, start + min(MAX_ROWS, partition.frames_left))
        reading = reads.read(dataset, Reader(dataset.name, index, peer), frames)
        messages = _of(reading, lambda _, each: (each.data, each.room))
    async with aclosing(messages):
        async for message, room in messages:
            # The thread has the room, too: it may outlast a call that was cancelled.
            if await asyncio.to_thread(sample.has_enough, message, room):
                break
    return index


async def _of(
    bursts: AsyncGenerator[Any, None], message_of: Callable[[Any, Any], _Message]
) -> AsyncGenerator[_Message, None]:
    """``message_of``: a burst, and each that is in it."""
    async with aclosing(bursts):
        async for burst in bursts:
            for each in burst:
                yield message_of(burst, each)


async def _first_filled(dataset: Dataset) -> Partition | None:
    """The first partition of which a reader would get rows now."""
    first = None
    async for each in in_slices(dataset.partitions()):
        readable = each.state in (PartitionState.OPEN, PartitionState.SEALED)
        if readable and each.frames_left and (first is None or each.index < first.index):
            first = each
    return first


class _Sample:
    """The rows of the messages of one read. The methods but ``begin`` take long, and are called in threads."""

    def __init__(self, max_message_bytes: int) -> None:
        self.columns: list[dict[str, Any]] = []
        self.column_count = 0
        self.rows: list[list[str | None]] = []
        self._decoder = FrameDecoder(max_message_bytes=max_message_bytes)
        self._decoder.keeps_batches = True
        self._schema = b""
        self._read_bytes = 0

    def describe(self, message: SchemaMessage) -> None:
        """Take the columns of a schema."""
        schema = message.schema
        self.column_count = len(schema)
        self.columns = [
            {"name": _cut(field.name), "type": _cut(str(field.type)), "nullable": field.nullable}
            for field in (schema.field(number) for number in range(min(len(schema), MAX_NAMED_COLUMNS)))
        ]

    def begin(self, schema_header: bytes) -> None:
        self._schema = wire.flight_data(schema_header)

    def has_enough(self, message: bytes, room: Reservation | None) -> bool:
        """Take the rows of a message; whether no more are wanted. Raises BadFrame: it is damaged."""
        if not self._read_bytes:
            self._decoder.feed(self._schema)
        self._read_bytes += len(message)
        batch = self._decoder.feed(message).batch
        if batch is not None:
            count = min(batch.num_columns, MAX_COLUMNS)
            most = TEXT_CHARACTERS // (MAX_ROWS * max(1, count))
            most = max(LEAST_CHARACTERS, min(MOST_CHARACTERS, most))
            for row in range(min(batch.num_rows, MAX_ROWS - len(self.rows))):
                values = (batch.column(number)[row] for number in range(count))
                self.rows.append([text_of(value, most) for value in values])
        del room
        return len(self.rows) >= MAX_ROWS or (bool(self.rows) and self._read_bytes >= READ_BYTES)


def _cut(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_of(value: Any, most: int) -> str | None:
    """A value of Arrow's as text of at most so many characters, for which no longer text is made; None for null."""
    if not value.is_valid:
        return None
    text = ""
    for piece in _pieces(value, most, quotes=False):
        text += piece
        if len(text) > most:
            break
    return _cut(text, most)


def _pieces(value: Any, most: int, *, quotes: bool = True) -> Iterator[str]:
    """The text in parts, each not much longer than ``most``."""
    if not value.is_valid:
        yield "null"
    elif isinstance(value, _WRAPPERS):
        yield from _pieces(value.value, most, quotes=quotes)
    elif isinstance(value, pa.StructScalar):
        yield "{"
        for number in range(value.type.num_fields):
            yield f"{', ' if number else ''}{_cut(value.type.field(number).name)}: "
            yield from _pieces(value[number], most)
        yield "}"
    elif isinstance(value, pa.ListScalar):
        is_map = isinstance(value, pa.MapScalar)
        yield "{" if is_map else "["
        for number, each in enumerate(value.values):  # one by one: there may be millions
            yield ", " if number else ""
            yield from _pieces(each[0] if is_map else each, most)
            if is_map:
                yield ": "
                yield from _pieces(each[1], most)
        yield "}" if is_map else "]"
    elif isinstance(value, pa.StringScalar):
        # A character has at most four bytes.
        text = _first_bytes(value, 4 * most + 4).decode(errors="replace")
        yield json.dumps(text, ensure_ascii=False) if quotes else text
    elif isinstance(value, pa.BinaryScalar):
        yield f"{value.as_buffer().size:,} bytes: {_first_bytes(value, most).hex()}"
    else:
        try:
            yield str(value.cast(pa.string()))
        except (pa.ArrowException, NotImplementedError):
            # A time in a zone that this machine does not know, or an interval.
            yield str(value.cast(pa.int64())) if pa.types.is_timestamp(value.type) else str(value)


_WRAPPERS = (pa.DictionaryScalar, pa.ExtensionScalar, pa.UnionScalar, pa.RunEndEncodedScalar)


def _first_bytes(value: Any, most: int) -> bytes:
    data: pa.Buffer = value.as_buffer()
    first: bytes = data.slice(0, min(data.size, most)).to_pybytes()
    return first
