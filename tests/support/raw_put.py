"""A put on the bulk lane, byte by byte over a socket; the framing is written out here a second time.

So the server's code is not checked against itself, and a test can cut, garble, stall and look anywhere.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from spark_client.connection import Closable

DEADLINE_SECONDS = 30.0
END = struct.pack(">I", 0)


class Refused(Exception):
    """The server answered E, or another status than 101."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status}: {body.get('message')}")
        self.status = status
        self.body = body


class BrokenOff(Exception):
    """The connection ended before the server had said K or E."""


def framed(message: bytes) -> bytes:
    """A message behind its length."""
    return struct.pack(">I", len(message)) + message


class RawPut(Closable):
    """One connection to a put location; also a context manager that closes it.

    Args:
        headers: as they stand in the request, beside Host and Authorization.
        eager: what is sent in one piece with the request, without waiting for its answer.
        wait: for the 101; without it ``status`` stays 0 until :meth:`upgraded`.
        trust: the certificate to trust, where the location is https.
        receive_buffer_bytes, send_buffer_bytes: of the socket; small ones fill up early.
    """

    def __init__(
        self,
        location: str,
        *,
        token: str | None = None,
        headers: Iterable[str] = ("Connection: Upgrade", "Upgrade: flight-put", "Content-Length: 0"),
        method: str = "POST",
        eager: bytes = b"",
        wait: bool = True,
        trust: str | None = None,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> None:
        parts = urlsplit(location)
        plain = socket.socket()
        plain.settimeout(DEADLINE_SECONDS)
        if receive_buffer_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if send_buffer_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        try:
            plain.connect((parts.hostname or "", parts.port or 80))
            self.socket = plain
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=trust)
                self.socket = context.wrap_socket(plain, server_hostname=parts.hostname)
        except BaseException:
            plain.close()
            raise
        self.status = 0
        lines = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}", *headers]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + eager)
        if wait:
            try:
                self.upgraded()
            except BaseException:
                self.close()
                raise

    def upgraded(self) -> None:
        """Read the head of the answer; raises Refused with its JSON unless it is a 101."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._exactly(1)
        status_line, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status_line.split()[1])
        fields = dict(line.lower().split(": ", 1) for line in lines if line)
        if self.status != 101:
            raise Refused(self.status, json.loads(self._exactly(int(fields["content-length"]))))
        assert (fields["connection"], fields["upgrade"]) == ("upgrade", "flight-put")

    @property
    def peer(self) -> str:
        """The connection as the server's ``why`` names it."""
        host, port = self.socket.getsockname()[:2]
        return f"ipv4:{host}:{port}"

    def send(self, *messages: bytes) -> None:
        """Send messages, each behind its length."""
        self.socket.sendall(b"".join(map(framed, messages)))

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def answer(self) -> tuple[str, bytes]:
        """The next answer of the server; raises BrokenOff when there is none."""
        kind, size_bytes = struct.unpack(">cI", self._exactly(5))
        return kind.decode("latin-1"), self._exactly(size_bytes)

    def answers(self) -> list[bytes]:
        """The results up to K; raises Refused at E, BrokenOff where the connection ends."""
        results: list[bytes] = []
        while True:
            kind, data = self.answer()
            if kind == "K":
                assert data == b""
                assert self.socket.recv(1) == b"", "something came behind K"
                return results
            if kind == "E":
                raise Refused(0, json.loads(data))
            assert kind == "R"
            results.append(data)

    def finish(self) -> list[bytes]:
        """End the put; its results, or raise."""
        self.raw(END)
        return self.answers()

    def reset(self) -> None:
        """Cut the connection so that the other side gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the socket. Twice is fine."""
        self.socket.close()

    def _exactly(self, size_bytes: int) -> bytes:
        got = bytearray()
        while len(got) < size_bytes:
            try:
                part = self.socket.recv(size_bytes - len(got))
            except ConnectionError:
                part = b""
            if not part:
                raise BrokenOff(f"{len(got)} of {size_bytes} bytes came")
            got += part
        return bytes(got)


def put(location: str, messages: Iterable[bytes], **options: Any) -> list[bytes]:
    """A whole put; its results, or raise. The server's word comes before a connection that takes no more."""
    with RawPut(location, **options) as each:
        with suppress(ConnectionError):
            for message in messages:
                each.send(message)
            each.raw(END)
        return each.answers()
