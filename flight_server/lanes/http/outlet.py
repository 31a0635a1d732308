"""Outlet: sends a burst of messages into one socket, and holds nothing of it while the socket takes nothing.

Guarantee: :meth:`Outlet.send` returns when the kernel has taken the whole burst. A burst that it has not taken within
``PARK_SECONDS`` is parked: the reader holds neither bytes nor room. When the kernel takes something again, the rest is
fetched message by message, from RAM or disk. A reader that has not taken ``PROOF_BYTES`` yet is parked after
``FIRST_PARK_SECONDS``, and the kernel keeps little for it. So in a crowd that takes nothing each reader costs one short
write, and soon gives its room to a reader that comes with it.

How
    Stored messages are written to the socket past the transport, which would keep the bytes that the kernel does not
    take. When the kernel's buffer is full, a copy of the next ``PIECE_BYTES``, which no account counts, goes to the
    transport, which tells when they have gone. Its buffer is empty at every write to the socket, so the order stays.

TLS
    There is no outlet, because the transport has to encrypt all bytes. ``accounts`` describes the cost for other
    readers.

Cancelling
    Safe at each moment; the connection must then be cut, because a part of a chunk may have been sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio import Transport
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from flight_server.protocol import wire
from flight_server.transfer import FrameBurst, Outgoing

from .chunks import FramedMessage, Part, chunks_of, framed, joined, size_of

PARK_SECONDS = 0.1
FIRST_PARK_SECONDS = 0.005
PROOF_BYTES = 1 << 20
"""More than ``FIRST_UNSENT_BYTES`` and the default buffer of a peer that reads nothing."""
FIRST_UNSENT_BYTES = 128 << 10
UNSENT_BYTES = 1 << 20
"""The kernel keeps so many unsent bytes; by default it takes several MiB for each reader that reads nothing. A thousand
of them put all of TCP under memory pressure, and slow a good reader to a tenth.
"""
PIECE_BYTES = 4 << 10
_MAX_BUFFERS = 1024  # IOV_MAX


def messages_of(burst: Iterable[Outgoing]) -> list[FramedMessage]:
    """The messages of a burst, each with its parts."""
    return [FramedMessage(wire.locate(outgoing.data), outgoing.message.crc32c) for outgoing in burst]


class Outlet:
    """Writes to one connection's socket.

    Args:
        transport: without TLS; its write buffer is empty, and only this object writes to it.
        drain: returns when the transport's buffer is empty.
        parked: awaits its argument, as the listed wait of a reader that takes nothing.
    """

    def __init__(
        self,
        transport: Transport,
        drain: Callable[[], Coroutine[None, None, None]],
        parked: Callable[[Awaitable[None]], Awaitable[None]],
    ) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._fd: int = self._socket.fileno()
        self._to_prove_bytes = PROOF_BYTES
        self._drain = drain
        # Ends when the transport's piece has gone; a task, as it outlives the first wait for it.
        self._draining: asyncio.Task[None] | None = None
        self._parked = parked

    async def send(self, burst: FrameBurst, *, checked: bool) -> None:
        """Send the burst. Raises ConnectionError: the client has left; FlightShuffleError: see
        :meth:`FrameBurst.fetch`.
        """
        parts = chunks_of(messages_of(burst), checked=checked)
        left_bytes = await self._push(parts)
        if not left_bytes and self._draining is None:
            return
        parts.clear()
        # Of a message only its size, because it is fetched when it is sent.
        outgoing = iter(burst)
        layout = [
            (piece, len(piece)) if isinstance(piece, bytes) else (next(outgoing), piece.size_bytes)
            for piece in framed(messages_of(burst), checked=checked)
        ]
        await self._park(burst)
        behind_bytes = sum(size_bytes for _, size_bytes in layout)
        for piece, size_bytes in layout:
            behind_bytes -= size_bytes
            while left_bytes > behind_bytes:
                if isinstance(piece, bytes):
                    parts.append(piece)
                else:
                    await burst.fetch(piece)
                    parts += joined(messages_of([piece]))
                _cut(parts, size_of(parts) - (left_bytes - behind_bytes), copy=False)
                left_bytes = behind_bytes + await self._push(parts)
                parts.clear()
                await self._park(burst)

    async def _park(self, burst: FrameBurst) -> None:
        """Hold nothing until the transport has sent its piece."""
        burst.park()
        if self._draining is not None:
            await self._parked(self._draining)
            self._draining = None

    async def _push(self, parts: list[Part]) -> int:
        """Write for up to ``PARK_SECONDS``, or ``FIRST_PARK_SECONDS``; returns how many bytes of ``parts`` are left.
        ``_park`` waits for the piece that the transport may still have.
        """
        loop = asyncio.get_running_loop()
        until_seconds = loop.time() + (FIRST_PARK_SECONDS if self._to_prove_bytes > 0 else PARK_SECONDS)
        while parts:
            self._write(parts)
            if not parts:
                break
            self._transport.write(_cut(parts, PIECE_BYTES))
            if self._transport.get_write_buffer_size():
                self._draining = loop.create_task(self._drain())
                await asyncio.wait([self._draining], timeout=until_seconds - loop.time())
                if not self._draining.done():
                    break
                self._draining.result()
                self._draining = None
        return size_of(parts)

    def close(self) -> None:
        """Stop waiting for the transport. Twice is fine."""
        draining, self._draining = self._draining, None
        if draining is not None and not draining.cancel() and not draining.cancelled():
            draining.exception()  # the client has left, which was raised before

    def _write(self, parts: list[Part]) -> None:
        """Move from the front of ``parts`` to the socket as many bytes as it takes now."""
        assert not self._transport.get_write_buffer_size()
        while parts:
            # Once the transport is closed its descriptor may be another connection's.
            if self._transport.is_closing():
                raise ConnectionResetError("the client has left")
            try:
                taken_bytes = os.writev(self._fd, parts[:_MAX_BUFFERS])
            except BlockingIOError:
                return
            _cut(parts, taken_bytes, copy=False)
            if self._to_prove_bytes > 0:
                self._to_prove_bytes -= taken_bytes
                if self._to_prove_bytes <= 0:
                    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _cut(parts: list[Part], size_bytes: int, *, copy: bool = True) -> bytes:
    """Remove up to ``size_bytes`` from the front; return a copy of them if ``copy``."""
    whole = 0
    while whole < len(parts) and size_bytes >= len(parts[whole]):
        size_bytes -= len(parts[whole])
        whole += 1
    copied: list[Part] = parts[:whole] if copy else []
    del parts[:whole]
    if parts and size_bytes:
        view = memoryview(parts[0])
        copied.append(view[:size_bytes])
        parts[0] = view[size_bytes:]
    return b"".join(copied) if copy else b""
