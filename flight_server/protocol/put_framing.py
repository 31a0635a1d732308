"""How a put travels on the bulk lane.

    POST /v1/put HTTP/1.1                     HTTP/1.1 101 Switching Protocols
    Connection: Upgrade                       Connection: Upgrade
    Upgrade: flight-put                       Upgrade: flight-put
    Content-Length: 0

The client sends nothing before it has seen the 101: earlier bytes are lost. Until then a refusal is an ordinary HTTP
answer with the error's JSON. Then the connection belongs to this put, both ways at once:

    client  length (u32, big-endian, > 0), then that many bytes: one FlightData message, as DoPut would carry it. The
            first has the descriptor and the schema; a commit is metadata only. In a put that makes
            versions more batches and commits may follow, each commit a version.
            length 0: the end. A connection that ends before it has broken the put off.
    server  kind (one byte), length (u32, big-endian), that many bytes:
            R   a PutResult's app_metadata: the answer to a commit, or an echo
            E   the error's JSON: nothing of the put was kept. The connection ends
            K   nothing: the whole put is accepted. The connection ends

Both sides can receive a message into memory of its exact size.

Checksums
    If the request and the 101 have the header ``x-flight-shuffle-checksums: crc32c``, each length is followed by a
    checksum (u32, big-endian): ``checksums.sent_crc32c`` of the message; after length 0 ``checksums.running_crc32c``
    over all messages'. A message with another one is refused. The server's answers have none: a client compares the
    rows that it wrote.
"""

from __future__ import annotations

import struct
from typing import Final

PUT_PATH: Final = "/v1/put"
UPGRADE: Final = "flight-put"

LENGTH: Final = struct.Struct(">I")
CHECKED_LENGTH: Final = struct.Struct(">II")
ANSWER_HEAD: Final = struct.Struct(">cI")

RESULT: Final = b"R"
REFUSED: Final = b"E"
ACCEPTED: Final = b"K"


def answer(kind: bytes, data: bytes = b"") -> bytes:
    """One answer of the server."""
    return ANSWER_HEAD.pack(kind, len(data)) + data
