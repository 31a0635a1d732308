"""Enveloped messages: FlightData with its checksums inside app_metadata, for reads over gRPC that check them.

pyarrow's reader gives decoded batches and not the bytes that came, so a client of it cannot check a frame. The
app_metadata of a message without a header it gives as it came. So a client that asks for checksums, by the header
``CHECKSUMS_HEADER``, gets them back in the answer's header and then

    message      a schema as any client gets it, at once, because pyarrow waits for one
    envelopes    one for each message, the schema again first; of small messages several in one app_metadata. Each has
                 its length without these four bytes, three checksums, each of four bytes, big-endian, and the
                 FlightData message as it is stored

The checksums are that of the message, that of its app_metadata (``checksums``), and a running one over both of this
envelope and all before, which begins with the checksum of the ticket that the server has read. So a message that is
lost on the way is noticed with the next one, and a damaged request with the first. The totals in the trailers are those
of the record batches in the envelopes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from . import wire
from .checksums import crc32c, message_crc32c, running_crc32c
from .errors import BadFrame

_HEAD = struct.Struct(">IIII")
_LENGTH_BYTES = 4
ENVELOPE_BYTES = _HEAD.size
"""What an envelope adds to its message."""
_METADATA_FIELD = 3


class Envelopes:
    """One end of one read: the server's, which seals, or the client's, which opens. ``ticket``: as it knows it."""

    def __init__(self, ticket: bytes) -> None:
        self._running = crc32c(ticket)

    def seal(self, *messages: tuple[bytes, int, int]) -> bytes:
        """The next FlightData message, with copies of these: each with its checksum and its app_metadata's."""
        parts: list[bytes] = []
        for message, checksum, metadata_checksum in messages:
            running = self._next(checksum, metadata_checksum)
            size_bytes = ENVELOPE_BYTES - _LENGTH_BYTES + len(message)
            parts += (_HEAD.pack(size_bytes, checksum, metadata_checksum, running), message)
        return b"".join((wire.field_head(_METADATA_FIELD, sum(map(len, parts))), *parts))

    def open(self, data: memoryview) -> Iterator[tuple[wire.FlightData, int]]:
        """The messages in the next app_metadata, each with its checksum. Raises BadFrame: it is not the next one."""
        while True:
            if len(data) < ENVELOPE_BYTES:
                raise BadFrame("an envelope has no checksums")
            size_bytes, checksum, metadata_checksum, running = _HEAD.unpack_from(data)
            end = _LENGTH_BYTES + size_bytes
            if not ENVELOPE_BYTES <= end <= len(data):
                raise BadFrame("an envelope is shorter than it says")
            parts = wire.locate(data[ENVELOPE_BYTES:end])
            _compare("", message_crc32c(parts.header, parts.body), checksum)
            _compare("app_metadata's ", crc32c(parts.metadata), metadata_checksum)
            _compare("running ", self._next(checksum, metadata_checksum), running)
            yield parts, checksum
            data = data[end:]
            if not data:
                return

    def _next(self, *checksums: int) -> int:
        for checksum in checksums:
            self._running = running_crc32c(self._running, checksum)
        return self._running


def _compare(which: str, computed: int, sent: int) -> None:
    if computed != sent:
        raise BadFrame(f"its {which}checksum is {computed:08x}, and was {sent:08x} when it was sent")
