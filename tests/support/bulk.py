"""The bulk lane read byte by byte over a socket, so that a test sees every chunk, the terminator and its absence."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from spark_client.connection import Closable

DEADLINE_SECONDS = 30.0


class Cut(Exception):
    """The connection ended before the terminator."""


@dataclass(frozen=True)
class Answer:
    """A whole answer; ``body`` is what the chunks held."""

    status: int
    headers: dict[str, str]
    body: bytes
    trailers: dict[str, str]

    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.body).read_all()

    def json(self) -> Any:
        return json.loads(self.body)


class RawGet(Closable):
    """One connection that asks for one URL after the other; also a context manager.

    Args:
        receive_buffer_bytes: of the socket; a small one makes a reader that does not read hold the server
            up early.
    """

    def __init__(
        self,
        url: str,
        *,
        method: str = "GET",
        version: str = "1.1",
        headers: dict[str, str] | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._socket = socket.socket()
        self._socket.settimeout(DEADLINE_SECONDS)
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.connect((parts.hostname or "", parts.port or 80))
        self._file = self._socket.makefile("rb")
        self.chunk_count = 0
        self.trailers: dict[str, str] = {}
        self.ask(url, method=method, version=version, headers=headers)

    @property
    def peer(self) -> str:
        """The address of this side, as the server's statistics show it."""
        host, port = self._socket.getsockname()
        return f"ipv4:{host}:{port}"

    def ask(
        self, url: str, *, method: str = "GET", version: str = "1.1", headers: dict[str, str] | None = None
    ) -> None:
        """Send a request."""
        target = url.partition("://")[2].partition("/")[2]
        fields = {"Host": urlsplit(url).netloc, **(headers or {})}
        lines = [f"{method} /{target} HTTP/{version}", *(f"{key}: {value}" for key, value in fields.items())]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())

    def raw_rest(self) -> bytes:
        """All bytes that still come, until the server closes the connection."""
        return self._file.read()

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, in small letters."""
        status_line = self._line()
        return int(status_line.split(" ")[1]), self._fields()

    def chunks(self) -> Iterator[bytes]:
        """What each chunk holds; after the terminator the trailers are there.

        Raises:
            Cut: the connection ended before.
        """
        while size := int(self._line(), 16):
            data = self._file.read(size)
            if len(data) < size or self._line():
                raise Cut
            self.chunk_count += 1
            yield data
        self.trailers = self._fields()

    def answer(self) -> Answer:
        """All of it, whether in chunks or of a length.

        Raises:
            Cut: the connection ended before.
        """
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            return self.rest(status, headers)
        body = self._file.read(int(headers.get("content-length", "0")))
        return Answer(status, headers, body, {})

    def rest(self, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
        """All the chunks that are left.

        Raises:
            Cut: the connection ended before the last one.
        """
        body = b"".join(self.chunks())
        return Answer(status, headers or {}, body, self.trailers)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _line(self) -> str:
        try:
            line = self._file.readline()
        except ConnectionError as error:
            raise Cut from error
        if not line.endswith(b"\r\n"):
            raise Cut
        return str(line[:-2], "latin-1")

    def _fields(self) -> dict[str, str]:
        found = {}
        while line := self._line():
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip()
        return found


def get(url: str, **headers: str) -> Answer:
    """One whole answer."""
    with RawGet(url, headers=headers) as raw:
        return raw.answer()


def head_of(url: str) -> Answer:
    """The answer to a HEAD."""
    with RawGet(url, method="HEAD") as raw:
        status, headers = raw.head()
        return Answer(status, headers, b"", {})
