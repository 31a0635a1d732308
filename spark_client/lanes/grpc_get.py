"""The gRPC lane: DoGet, which every Flight server has.

pyarrow ends a read silently at a truncated frame if the call's status is OK. So an end counts only with the totals in
the trailers, which the caller compares.

Checksums
    The client asks for messages in envelopes (``protocol.enveloped``), compares their checksums and decodes them
    itself; a damaged one breaks the stream. Another Flight server than ours sends no checksums, and its reads are not
    checked.

The first message
    ``do_get`` blocks until the schema message has arrived or the call's deadline, ``stream_seconds``, has passed. So
    :func:`wait_until_known` comes first, a call with a short deadline. Keepalive finds a peer that vanishes after it.

Envelopes
    The decoder gets one message at a time, so a batch is returned with the envelope that completes it. Batches that
    came in one message are one burst. Nothing is copied: the values of a batch are in the received message, and aligned
    as they lie there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    AS_STORED,
    BATCHES_HEADER,
    CHECKSUMS,
    CHECKSUMS_HEADER,
    ERROR_TRAILER,
    BadFrame,
    InvalidRequest,
    MessageKind,
    NotFound,
    Ticket,
    ipc_framing,
)
from flight_server.protocol.enveloped import Envelopes
from spark_client.connection import Call, RemoteServer, TimedOut, immortal_in_children

from .batch_bursts import MessageFile
from .lane import BatchBurst, BrokenStream, Closed, ReadTotals

_FRESH_SECONDS = 5.0
_SLICE_SECONDS = 0.5


class EnvelopedBatches:
    """The decoder of one read.

    Args:
        first: the app_metadata of the first envelope.
        ticket: as it was sent.

    Raises:
        BadFrame: a message is damaged.
    """

    def __init__(self, first: pa.Buffer | None, ticket: bytes) -> None:
        self._file = _Messages()
        self._envelopes = Envelopes(ticket)
        ((parts, _),) = self._envelopes.open(_view(first))
        self._file.add(parts.header, parts.body)
        try:
            self._messages = pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))
        except (pa.ArrowException, OSError) as error:
            raise BadFrame(f"it begins with no schema: {error}") from None
        self.schema: pa.Schema = self._messages.schema

    def take(self, envelope: pa.Buffer | None) -> BatchBurst | None:
        """The batches of the next envelopes; None if they have dictionaries only. Raises BadFrame: a message is
        damaged; none of them is returned.
        """
        data = _view(envelope)
        batches: list[pa.RecordBatch] = []
        checksums: list[int] = []
        metadata: list[pa.Buffer | None] = []
        for parts, checksum in self._envelopes.open(data):
            self._file.add(parts.header, parts.body)
            if ipc_framing.IpcHeader(parts.header).kind is not MessageKind.RECORD_BATCH:
                continue
            try:
                batches.append(self._messages.read_next_batch())
            except (StopIteration, pa.ArrowException, OSError) as error:
                raise BadFrame(f"it cannot be decoded: {error}") from None
            checksums.append(checksum)
            metadata.append(pa.py_buffer(parts.metadata) if parts.metadata else None)
        if not batches:
            return None
        shared_bytes = len(data) if len(batches) > 1 else 0
        return BatchBurst(batches, shared_bytes, checksums=checksums, metadata=metadata)


def _view(envelope: pa.Buffer | None) -> memoryview:
    if envelope is None:
        raise BadFrame("it came without its envelope")
    return memoryview(envelope).cast("B")


class _Messages(MessageFile):
    """The messages added, and the end where there is none."""

    def add(self, header: memoryview, body: memoryview) -> None:
        self._pieces.append(pa.py_buffer(ipc_framing.encapsulate(header)))
        if body:
            self._pieces.append(pa.py_buffer(body))

    def _read_message(self) -> None:
        self._pieces.append(pa.py_buffer(b""))


class GrpcReader:
    """A ``LaneReader``. ``open`` can be cancelled only while it asks for the schema."""

    def __init__(self, server: RemoteServer, ticket: Ticket) -> None:
        immortal_in_children(self)
        self._server = server
        self._ticket = ticket
        self._call = Call(server.location, dataset=ticket.dataset)
        self._reader: flight.FlightStreamReader | None = None
        self._envelopes: EnvelopedBatches | None = None
        self.totals: ReadTotals | None = None
        self._cancelled = False

    def open(self) -> pa.Schema:
        try:
            wait_until_known(self._server, self._ticket.dataset, lambda: self._cancelled)
        except NotFound:
            if self._ticket.start is None:
                raise
            # The answer to the ticket says whether another start has answered.
        if self._cancelled:
            raise Closed("the read was cancelled")
        with self._server.calling(self._ticket.dataset) as (client, self._call):
            call_headers = {BATCHES_HEADER: AS_STORED, CHECKSUMS_HEADER: CHECKSUMS}
            headers = [(name.encode(), value.encode()) for name, value in call_headers.items()]
            options = flight.FlightCallOptions(timeout=self._server.timeouts.stream_seconds, headers=headers)
            ticket = self._ticket.encode()
            self._reader = client.do_get(flight.Ticket(ticket), options)
            # ``cancel`` sets the flag, then reads ``_reader``; here the reverse, so that no cancel is lost.
            if self._cancelled:
                self._reader.cancel()
            schema = self._reader.schema
            if self._call.headers.get(CHECKSUMS_HEADER) != CHECKSUMS:
                return schema
            with self._damage():
                self._envelopes = EnvelopedBatches(self._reader.read_chunk().app_metadata, ticket)
                return self._envelopes.schema

    @property
    def headers(self) -> Mapping[str, str]:
        return self._call.headers

    def read_burst(self) -> BatchBurst | None:
        assert self._reader is not None
        while True:
            try:
                with self._call.errors():
                    chunk = self._reader.read_chunk()
            except StopIteration:
                self.totals = ReadTotals.parse(self._call.headers)
                if self.totals is None:
                    raise BrokenStream(
                        f"the stream of {self._call.place} ended without its totals, so it may not be whole",
                        server=self._call.location,
                    ) from None
                return None
            except InvalidRequest as error:
                # Without the trailer the error is pyarrow's, which could not decode the frame.
                if ERROR_TRAILER in self._call.headers:
                    raise
                raise BrokenStream(
                    f"a frame could not be decoded: {error.message}", **error.detail
                ) from error
            if self._envelopes is not None:
                with self._damage():
                    burst = self._envelopes.take(chunk.app_metadata)
                if burst is not None:
                    return burst
            elif chunk.data is not None:
                return BatchBurst([chunk.data], metadata=(chunk.app_metadata,))

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (BadFrame, StopIteration) as bad:
            raise BrokenStream(
                f"a message of {self._call.place} was damaged on its way: {bad}",
                server=self._call.location,
            ) from None

    def cancel(self) -> None:
        self._cancelled = True
        if self._reader is not None:
            self._reader.cancel()

    def close(self) -> None:
        # A reader that was not read to its end keeps its call until it is cancelled.
        if self._reader is not None:
            self._reader.cancel()


def wait_until_known(
    server: RemoteServer, dataset: str, cancelled: Callable[[], bool] = lambda: False
) -> None:
    """Return when the server has given the dataset's schema, now or in the last ``_FRESH_SECONDS``, or when cancelled.

    The server answers once it knows the schema. A cancel is seen within ``_SLICE_SECONDS``.

    Raises:
        TimedOut: not within ``first_message_seconds``.
        FlightShuffleError: the server's error.
    """
    # When (monotonic) the server last gave the schema of each dataset.
    proofs: dict[str, float] = server.attached("proofs", dict)
    now_seconds = time.monotonic()
    if now_seconds - proofs.get(dataset, float("-inf")) < _FRESH_SECONDS:
        return
    deadline = now_seconds + server.timeouts.first_message_seconds
    while not cancelled():
        left_seconds = deadline - time.monotonic()
        try:
            server.schema(dataset, min(max(left_seconds, 0.001), _SLICE_SECONDS), once=True)
        except TimedOut:
            if left_seconds <= _SLICE_SECONDS:
                raise
        else:
            proofs[dataset] = time.monotonic()
            return
