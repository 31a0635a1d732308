"""Names of the headers and trailers that both lanes send."""

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
