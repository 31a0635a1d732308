"""Enveloped messages: FlightData with its checksums inside app_metadata, for reads over gRPC that check them.

pyarrow's reader gives decoded batches and not the bytes that came, so a client of it cannot check a frame. The
app_metadata of a message without a header it gives as it came. So a client that asks for checksums, by the header
``CHECKSUMS_HEADER``, gets them back in the answer's header and then

    message      a schema as any client gets it, at once, because pyarrow waits for one
    envelopes    one for each message, the schema again first. In its app_metadata are three checksums, each of four
                 bytes, big-endian, and the FlightData message as it is stored

The checksums are that of the message, that of its app_metadata (``checksums``), and a running one over both of this
envelope and all before, which begins with the checksum of the ticket that the server has read. So a message that is
lost on the way is noticed with the next one, and a damaged request with the first. The totals in the trailers are those
of the record batches in the envelopes.
"""

from __future__ import annotations

import struct

from . import wire
from .checksums import crc32c, message_crc32c, running_crc32c
from .errors import BadFrame

_SUMS = struct.Struct(">III")
_METADATA_FIELD = 3


class Envelopes:
    """One end of one read: the server's, which seals, or the client's, which opens. ``ticket``: as this end
    knows it.
    """

    def __init__(self, ticket: bytes) -> None:
        self._running = crc32c(ticket)

    def seal(self, message: bytes, checksum: int, metadata_checksum: int) -> bytes:
        """The next FlightData message, which carries this one. Copies it."""
        running = self._next(checksum, metadata_checksum)
        head = wire.field_head(_METADATA_FIELD, _SUMS.size + len(message))
        return b"".join((head, _SUMS.pack(checksum, metadata_checksum, running), message))

    def open(self, data: memoryview) -> tuple[wire.FlightData, int]:
        """The message in the next envelope's app_metadata, and its checksum. Raises BadFrame: it is not the server's
        next envelope.
        """
        if len(data) < _SUMS.size:
            raise BadFrame("an envelope has no checksums")
        checksum, metadata_checksum, running = _SUMS.unpack_from(data)
        parts = wire.locate(data[_SUMS.size :])
        _compare("", message_crc32c(parts.header, parts.body), checksum)
        _compare("app_metadata's ", crc32c(parts.metadata), metadata_checksum)
        _compare("running ", self._next(checksum, metadata_checksum), running)
        return parts, checksum

    def _next(self, *checksums: int) -> int:
        for checksum in checksums:
            self._running = running_crc32c(self._running, checksum)
        return self._running


def _compare(which: str, found: int, said: int) -> None:
    if found != said:
        raise BadFrame(f"its {which}checksum is {found:08x}, and was {said:08x} when it was sent")
