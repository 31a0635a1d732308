"""KeptStream: the open put of one writer, a version for each commit, so that a small version needs no connection.

Guarantee: a stream that has failed is not lent again. A stream is ended, and another one opened, for rows of another
schema, and after ``MOST_SECONDS``, so that a drained server, and the deadline of a gRPC call, end no writer.

For one thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from flight_server.protocol import FlightShuffleError
from spark_client.lanes import PutStream

MOST_SECONDS = 60.0


class KeptStream:
    """Args: open_: opens a put of rows of a schema."""

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
            stream.abandon()
            raise
        self._stream = stream

    def end(self) -> None:
        """End the stream, if one is open. Its commits stay, also after an error."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(FlightShuffleError):
                stream.end()
