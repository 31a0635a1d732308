"""The batches of a read over gRPC whose messages come in envelopes (``flight_server.protocol.enveloped``).

Guarantee: a message is decoded only if its checksums agree with the server's. The decoder gets one message at a time,
so a batch is returned with the envelope that completes it. Batches that came in one message are one burst.

Copies
    None: the values of a batch are in the received message, and aligned as they lie there.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from flight_server.protocol import BadFrame, MessageKind, ipc_framing
from flight_server.protocol.enveloped import Envelopes

from .lane import BatchBurst


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


class _Messages:
    """The file that Arrow's decoder reads: the messages added, and its end where there is none."""

    closed = False

    def __init__(self) -> None:
        self._pieces: deque[pa.Buffer] = deque()

    def add(self, header: memoryview, body: memoryview) -> None:
        self._pieces.append(pa.py_buffer(ipc_framing.encapsulate(header)))
        if body:
            self._pieces.append(pa.py_buffer(body))

    def read_buffer(self, size: int) -> pa.Buffer:
        if not self._pieces:
            return pa.py_buffer(b"")
        piece = self._pieces.popleft()
        if size < piece.size:
            self._pieces.appendleft(piece.slice(size))
            piece = piece.slice(0, size)
        return piece

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(size).to_pybytes())

    def close(self) -> None:
        """Arrow's decoder calls this."""
