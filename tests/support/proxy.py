"""A TCP proxy that the test can cut, hold and count: a network with faults.

    with Proxy("127.0.0.1", 8815) as proxy:
        proxy.cut_after(1000)        # the next connection that brings 1,000 bytes back is reset there
        proxy.flip_back(500, bit=3)  # one bit of what the server sends next comes as another one
        client = connect(proxy.location)

``cut_after`` and the flips count from now over all connections. A cut ends all connections at once, also inside a
message; a flip is made once. ``hold`` stops both directions until ``release``; the connections stay.

Limits: two threads for each connection, so it is for tests of a few connections.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Self

from spark_client.connection import Closable

_READ_BYTES = 64 << 10


class Proxy(Closable):
    """Listens on a free port of the loopback as soon as it is made; also a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._cut_at_bytes: int | None = None
        self._refusing = False
        self._closed = False
        self._flip: tuple[bool, int, int] | None = None
        self._flip_text: tuple[bool, bytes, bytes] | None = None
        self.bytes_back = 0
        self.bytes_forth = 0
        self.flips = 0
        self.connections = 0
        self.cuts = 0
        self._spawn(self._accept)

    @classmethod
    def to(cls, location: str) -> Self:
        """A proxy to ``grpc://host:port`` or ``http://host:port``."""
        return cls(*_host_and_port(location))

    def redirect(self, location: str) -> None:
        """Send new connections there from now on."""
        self._target = _host_and_port(location)

    @property
    def location(self) -> str:
        """Where clients reach the server through this proxy, with gRPC."""
        return f"grpc://127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        """The same over HTTP."""
        return f"http://127.0.0.1:{self.port}"

    def cut_after(self, size_bytes: int) -> None:
        """Reset every connection when this many more bytes have come back from the server."""
        with self._lock:
            self._cut_at_bytes = self.bytes_back + size_bytes

    def flip_back(self, at: int, bit: int) -> None:
        """Flip a bit of the byte at this place among those that come next from the server."""
        with self._lock:
            self._flip = True, self.bytes_back + at, bit

    def flip_forth(self, at: int, bit: int) -> None:
        """Flip a bit of the byte at this place among those that go next to the server."""
        with self._lock:
            self._flip = False, self.bytes_forth + at, bit

    def flip_in(self, text: bytes, bit: int, *, back: bool) -> None:
        """From now on flip a bit of the first byte of this text wherever it comes in one piece."""
        self._flip_text = back, text, bytes([text[0] ^ 1 << bit]) + text[1:]

    def refuse(self, *, refusing: bool = True) -> None:
        """Reset new connections at once, or take them again."""
        self._refusing = refusing

    def cut(self) -> None:
        """Reset every connection now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cuts += 1
        for pair in pairs:
            for sock in pair:
                _reset(sock)

    def hold(self) -> None:
        """Let nothing through from now on."""
        self._flowing.clear()

    def release(self) -> None:
        """Go on after ``hold``."""
        self._flowing.set()

    def close(self) -> None:
        """End every connection and thread; twice is fine."""
        self._closed = True
        self._flowing.set()
        # Closing alone does not wake a thread that is inside accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self._refusing or self._closed:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target, 10)
                server.settimeout(None)
            except OSError:
                _reset(client)
                continue
            with self._lock:
                late = self._closed
                if not late:
                    self._pairs.append((client, server))
            if late:  # ``close`` has cut all pairs before this one was there
                _reset(client)
                _reset(server)
                return
            self._spawn(self._pump, client, server, False)
            self._spawn(self._pump, server, client, True)

    def _pump(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        try:
            # As both ends have it: a piece must not wait for the acknowledgement of the one before.
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := source.recv(_READ_BYTES):
                self._flowing.wait()
                cut_here = False
                with self._lock:
                    data = self._flipped(data, back)
                    if not back:
                        self.bytes_forth += len(data)
                    elif self._cut_at_bytes is not None and self.bytes_back + len(data) >= self._cut_at_bytes:
                        data = data[: self._cut_at_bytes - self.bytes_back]
                        self._cut_at_bytes, cut_here = None, True
                    self.bytes_back += len(data) if back else 0
                if data:
                    target.sendall(data)
                if cut_here:
                    self.cut()
                    return
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone; the other one must see it.
            for sock in (source, target):
                _reset(sock)

    def _flipped(self, data: bytes, back: bool) -> bytes:
        if self._flip_text is not None and back is self._flip_text[0]:
            data = data.replace(*self._flip_text[1:])
        if self._flip is None or self._flip[0] is not back:
            return data
        at = self._flip[1] - (self.bytes_back if back else self.bytes_forth)
        if not 0 <= at < len(data):
            return data
        changed = bytearray(data)
        changed[at] ^= 1 << self._flip[2]
        self._flip = None
        self.flips += 1
        return bytes(changed)


def _host_and_port(location: str) -> tuple[str, int]:
    host, _, port = location.partition("://")[2].partition("/")[0].rpartition(":")
    return host, int(port)


def _reset(sock: socket.socket) -> None:
    """Close so that the peer gets a reset, as when a machine goes away."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
