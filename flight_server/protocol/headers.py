"""Names of the headers and trailers that both lanes send, and what a read of several partitions says at the end of each
(``flight_server.transfer.listed_reads``).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from .errors import InvalidRequest
from .strict_json import parse_json

ROWS_TRAILER = "x-flight-shuffle-rows"
FRAMES_TRAILER = "x-flight-shuffle-frames"
CRC_TRAILER = "x-flight-shuffle-crc32c"
FROM_TRAILER = "x-flight-shuffle-from"
UNTIL_TRAILER = "x-flight-shuffle-until"
GENERATION_HEADER = "x-flight-shuffle-generation"
PARTITION_HEADER = "x-flight-shuffle-partition"
CHECKSUMS_HEADER = "x-flight-shuffle-checksums"
"""In a read's request: send checksums with messages; in the answer: they are sent. See ``lanes.http.bulk_get`` for the
bulk lane, ``enveloped`` for gRPC."""
CHECKSUMS = "crc32c"
BATCHES_HEADER = "x-flight-shuffle-batches"
AS_STORED = "stored"
"""Of a read over gRPC: each message is one frame, because its reader counts them."""
PARTITION_ENDED: Final = "ended"


class PartitionEnd(NamedTuple):
    """The totals of a whole partition. All texts have one length."""

    partition: int
    rows: int = 0
    frames: int = 0
    crc32c: int = 0

    def encode(self) -> bytes:
        counts = b'"partition":%6d,"rows":%16d,"frames":%16d' % (self.partition, self.rows, self.frames)
        return b'{%s,"crc32c":"%08x"}' % (counts, self.crc32c)

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """None for other texts."""
        if not text.startswith(b'{"partition":'):
            return None
        try:
            totals = parse_json(text, "the end of a partition", small=True)
            return cls(
                int(totals["partition"]),
                int(totals["rows"]),
                int(totals["frames"]),
                int(totals["crc32c"], 16),
            )
        except (InvalidRequest, KeyError, TypeError, ValueError):
            return None
