"""A stream whose every message the test sends by hand.

Limits: one reader; the schema is known from the start unless ``opens`` is False; a cancelled stream
raises in the reader at once, as a real one does after its schema.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_client.connection import Timeouts
from spark_client.lanes.lane import BatchBurst, Closed
from spark_client.merge.merge_queue import Held
from spark_client.merge.merged import AsyncMergedStream, MergedStream

SCHEMA = pa.schema([("stream", pa.int64()), ("n", pa.int64())])
QUICK = Timeouts()
ROWS = 1000
BATCH_BYTES = ROWS * 16
Message = Any
"""A record batch, a burst of them, an error, or None for the end."""


class FakeStream:
    """See the module. ``read_count`` counts what the thread has asked for, ``closed`` tells its end."""

    def __init__(self, number: int = 0, schema: pa.Schema = SCHEMA, *, opens: bool = True) -> None:
        self.number = number
        self.name = f"fake {number}"
        self.schema = schema
        self.late = False
        self.opened = threading.Event()
        self.closed = threading.Event()
        self.cancelled = False
        self._may_open = threading.Event()
        if opens:
            self._may_open.set()
        # Its put may be called from a finalizer, which threading's own locks do not allow.
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    # The test's side.

    def allow_opening(self) -> None:
        self._may_open.set()

    def send(self, first: int, rows: int = 1) -> None:
        self._messages.put(self._batch(first, rows))

    def _batch(self, first: int, rows: int) -> pa.RecordBatch:
        numbers = pa.array(range(first, first + rows), pa.int64())
        return pa.record_batch([pa.array([self.number] * rows, pa.int64()), numbers], schema=SCHEMA)

    def send_batch(self, batch: pa.RecordBatch) -> None:
        self._messages.put(batch)

    def send_run(self, first: int, rows: int, batches: int, part: int = 0) -> None:
        """``batches`` batches of ``rows`` rows of one part that come together."""
        starts = range(first, first + rows * batches, rows)
        self._messages.put(BatchBurst([self._batch(start, rows) for start in starts], part=part))

    def finish(self) -> None:
        self._messages.put(None)

    def break_off(self, error: BaseException) -> None:
        self._messages.put(error)

    @property
    def unread(self) -> int:
        return self._messages.qsize()

    # The merge's side.

    def open(self) -> pa.Schema:
        while not self._may_open.wait(0.01):
            if self.cancelled:
                raise Closed("cancelled")
        self.opened.set()
        return self.schema

    def read(self) -> Message:
        message = self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return message

    def read_burst(self) -> BatchBurst | None:
        """As many as were sent by ``send_run`` together; else one."""
        message = self.read()
        if message is None:
            return None
        return message if isinstance(message, BatchBurst) else BatchBurst([message])

    def overdue(self, now_seconds: float) -> bool:
        return self.late

    def stalled(self) -> BaseException:
        return TimeoutError(f"{self.name} is late")

    def cancel(self) -> None:
        self.cancelled = True
        self._messages.put(Closed("cancelled"))

    def close(self) -> None:
        self.closed.set()


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    """(stream, n) of each row, in order."""
    return [(row["stream"], row["n"]) for batch in batches for row in batch.to_pylist()]


def fakes(count: int) -> list[FakeStream]:
    return [FakeStream(number) for number in range(count)]


def all_closed(streams: Sequence[FakeStream]) -> bool:
    return all(stream.closed.is_set() for stream in streams)


def waits(merged: MergedStream | AsyncMergedStream) -> bool:
    return merged._threads.queue._consumer_waits


def waiting(merged: MergedStream) -> list[bool]:
    """Of each item that the merge's consumer has not taken, whether it is in RAM, and not on disk."""
    with merged._threads.changed:
        return [isinstance(item, Held) for line in merged._threads.queue._lines for item in line]
