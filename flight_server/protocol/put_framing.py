"""How a put travels on the bulk lane: the words that the server and its clients share.

    POST /v1/put HTTP/1.1                     HTTP/1.1 101 Switching Protocols
    Connection: Upgrade                       Connection: Upgrade
    Upgrade: flight-put                       Upgrade: flight-put
    Content-Length: 0

The client sends nothing before it has seen the 101: what it sends earlier is lost, and with it the message
that every put begins with. Every refusal until then is an ordinary HTTP answer with the error's JSON. From
there on the connection belongs to this one put, both ways at once:

    client  length (u32, big-endian, > 0), then that many bytes: one FlightData message, exactly as DoPut
            would carry it. The first has the descriptor and the schema; a commit is metadata only.
            length 0: the end. Whatever ends the connection before it has broken the put off.
    server  kind (one byte), length (u32, big-endian), that many bytes:
            R   a PutResult's app_metadata: the answer to a commit, or an echo
            E   the error's JSON. Nothing of the put was kept, and the connection ends
            K   nothing: the put is accepted as a whole, and the connection ends

Length first, so that both sides can put a message of any size into memory of exactly that size; no
padding, because frames are kept as they come.

Checksums
    If the request has the header ``x-flight-shuffle-checksums: crc32c`` and the 101 has it, too, each length, also
    the last, is followed by a checksum (u32, big-endian): ``checksums.sent_crc32c`` of the message; after length 0
    ``checksums.running_crc32c`` over those of all messages before. A message that has another one is refused.
    The server's answers have none: a client compares the rows that it wrote.
"""

from __future__ import annotations

import struct
from typing import Final

PUT_PATH: Final = "/v1/put"
UPGRADE: Final = "flight-put"

LENGTH: Final = struct.Struct(">I")
CHECKED_LENGTH: Final = struct.Struct(">II")
ANSWER_HEAD: Final = struct.Struct(">cI")
END_OF_PUT: Final = LENGTH.pack(0)

RESULT: Final = b"R"
REFUSED: Final = b"E"
ACCEPTED: Final = b"K"


def answer(kind: bytes, data: bytes = b"") -> bytes:
    """One answer of the server, as it travels."""
    return ANSWER_HEAD.pack(kind, len(data)) + data


def end_of_put(checksum: int | None) -> bytes:
    """The end marker; with the checksum of all messages where they have one."""
    return END_OF_PUT if checksum is None else CHECKED_LENGTH.pack(0, checksum)
