"""Bytes that no client sends: noise, changed requests, and HTTP/2 frames that fit nowhere."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import suppress

from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.target import WORDS
from tests.support.raw_flight import RawFlight, field

RPCS = (
    "DoGet",
    "GetFlightInfo",
    "GetSchema",
    "PollFlightInfo",
    "ListFlights",
    "DoAction",
    "DoPut",
    "Handshake",
)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_ROUTES = (
    "datasets",
    "statistics",
    "why",
    "put",
    "hold",
    "datasets/",
    "datasets?prefix=",
    "datasets/d?from=",
)
_MORE = (
    b"",
    b"Connection: Upgrade\r\nUpgrade: flight-put\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
)
_PATIENCE_SECONDS = 0.05


class Garbage:
    """One sender. ``connect`` makes a connection to a lane, ``raw`` calls with the token."""

    def __init__(
        self, connect: Callable[[str], socket.socket], raw: RawFlight, token: str, chance: random.Random
    ) -> None:
        self._connect = connect
        self._raw = raw
        self._token = token
        self._chance = chance
        self._samples = {name: target.samples() for name, target in TARGETS.items()}

    def send(self) -> None:
        """Send one thing. Raises whatever its refusal becomes."""
        match self._chance.randrange(5):
            case 0 | 1:
                self._call()
            case 2:
                self._bytes("http", self._request())
            case 3:
                self._bytes("grpc", self._frames())
            case _:
                self._bytes(self._chance.choice(["grpc", "http"]), self._chance.randbytes(200))

    def _changed(self, name: str) -> bytes:
        chance, data = self._chance, bytearray(self._chance.choice(self._samples[name]))
        for _ in range(chance.randrange(4)):
            at = chance.randint(0, len(data))
            put = chance.choice([chance.choice(WORDS), chance.randbytes(chance.randint(1, 8))])
            data[at : at + chance.choice([0, len(put), 8])] = put
        return bytes(data)

    def _bytes(self, lane: str, data: bytes) -> None:
        with self._connect(lane) as connection, suppress(TimeoutError):
            connection.settimeout(_PATIENCE_SECONDS)
            connection.sendall(data)
            connection.recv(4096)

    def _request(self) -> bytes:
        target = f"/v1/{self._chance.choice(_ROUTES)}".encode() + self._changed("tickets")
        method = self._chance.choice([b"GET", b"HEAD", b"POST", b"PUT", b"\0"])
        bearer = b"Authorization: Bearer " + self._token.encode()
        more = self._chance.choice([*_MORE, self._changed("json")])
        return b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n%b\r\n" % (method, target, bearer, more)

    def _frames(self) -> bytes:
        chance, found = self._chance, [_PREFACE, _SETTINGS]
        for _ in range(chance.randint(1, 20)):
            content = chance.randbytes(chance.randrange(40))
            head = bytes((chance.randrange(12), chance.randrange(256))) + chance.randrange(8).to_bytes(
                4, "big"
            )
            found.append(len(content).to_bytes(3, "big") + head + content)
        return b"".join(found)

    def _call(self) -> None:
        rpc = self._chance.choice(RPCS)
        request: object
        match rpc:
            case "DoAction":
                name, _, body = self._changed("bodies").partition(b"\n")
                request = field(1, name) + field(2, body)
            case "DoPut":
                request = iter([self._changed("flight_data") for _ in range(self._chance.randint(1, 3))])
            case "Handshake":
                request = iter([self._changed("flight_data")])
            case "DoGet":
                request = field(1, self._changed("tickets"))
            case _:
                request = self._changed("descriptors")
        self._raw.ask(rpc, request, deadline_seconds=0.5)
