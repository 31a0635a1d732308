"""Outlet: a run of messages into one socket, holding nothing of it while the socket takes nothing.

Guarantee: :meth:`Outlet.send` returns when the kernel has taken the whole run, in chunks of HTTP. While
the kernel takes nothing for ``PARK_SECONDS`` the run is parked: the reader holds neither bytes nor room, and
so delays no other reader. When the kernel has taken something again the rest is fetched message by message,
from RAM or from disk.

How
    The bytes go from the stored messages into the kernel, past the transport: what the kernel does not take,
    a transport keeps, and a caller cannot take it back. When the kernel's buffer is full, the next
    ``PIECE_BYTES`` are copied and handed to the transport, which tells when they have gone. Its buffer is empty
    at every write to the socket, so the order stays. ``PIECE_BYTES`` for each reader are not counted.

TLS
    A transport with TLS has to encrypt all bytes. There a run is held until they have gone, and its room with
    it; ``budget`` says what that costs the others.

Cancelling
    Safe at each moment; what was sent is then a part of a chunk, so the connection must be cut.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import Transport
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator

from flight_server.protocol import wire
from flight_server.transfer import Outgoing, Run

from .chunks import Message, Part, chunks_of, framed, joined, size_of

PARK_SECONDS = 0.1
PIECE_BYTES = 4 << 10
_MAX_BUFFERS = 1024  # IOV_MAX


def messages_of(run: Iterable[Outgoing]) -> Iterator[Message]:
    """What a run holds, located."""
    for outgoing in run:
        yield Message(wire.locate(outgoing.data), outgoing.message.crc32c)


class Outlet:
    """The way into one connection's socket.

    Args:
        transport: without TLS; its write buffer is empty, and stays so but for what this object hands to it.
        drain: returns when the transport's buffer is empty.
        parked: awaits what it is given; the wait of a reader that takes nothing.
    """

    def __init__(
        self,
        transport: Transport,
        drain: Callable[[], Coroutine[None, None, None]],
        parked: Callable[[Awaitable[None]], Awaitable[None]],
    ) -> None:
        self._transport = transport
        self._fd: int = transport.get_extra_info("socket").fileno()
        self._drain = drain
        # Waits until the piece that the transport has is gone; a task, as it outlives the first wait for it.
        self._draining: asyncio.Task[None] | None = None
        self._parked = parked

    async def send(self, run: Run, *, checked: bool) -> None:
        """See the module's text.

        Args:
            checked: with checksums.

        Raises:
            ConnectionError: the client has left.
            CorruptFrame: a message did not come back from disk.
            FlightShuffleError: the partition was dropped meanwhile.
        """
        parts = chunks_of(messages_of(run), checked=checked)
        left_bytes = await self._push(parts)
        if not left_bytes and self._draining is None:
            return
        parts.clear()
        # What the bytes are: of a message only how many, as it is fetched when they are sent.
        outgoing = iter(run)
        layout = [
            (piece, len(piece)) if isinstance(piece, bytes) else (next(outgoing), piece.size_bytes)
            for piece in framed(messages_of(run), checked=checked)
        ]
        await self._park(run)
        behind_bytes = sum(size_bytes for _, size_bytes in layout)
        for piece, size_bytes in layout:
            behind_bytes -= size_bytes
            while left_bytes > behind_bytes:
                if isinstance(piece, bytes):
                    parts.append(piece)
                else:
                    await run.fetch(piece)
                    parts += joined(messages_of([piece]))
                _cut(parts, size_of(parts) - (left_bytes - behind_bytes), copy=False)
                left_bytes = behind_bytes + await self._push(parts)
                parts.clear()
                await self._park(run)

    async def _park(self, run: Run) -> None:
        """Hold nothing, until the transport has nothing either."""
        run.park()
        if self._draining is not None:
            await self._parked(self._draining)
            self._draining = None

    async def _push(self, parts: list[Part]) -> int:
        """Write until all is taken, or for ``PARK_SECONDS``; how many bytes of ``parts`` are left over.

        The transport then may have a piece that the kernel has not taken, which ``_park`` waits for.
        """
        loop = asyncio.get_running_loop()
        until_seconds = loop.time() + PARK_SECONDS
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
        """Wait for nothing any more. Twice is fine."""
        draining, self._draining = self._draining, None
        if draining is not None and not draining.cancel() and not draining.cancelled():
            draining.exception()  # the client has left: told already

    def _write(self, parts: list[Part]) -> None:
        """Give the socket what it takes now, off the front of ``parts``."""
        assert not self._transport.get_write_buffer_size()
        while parts:
            # Its descriptor may be another connection's once the transport is closed.
            if self._transport.is_closing():
                raise ConnectionResetError("the client has left")
            try:
                taken_bytes = os.writev(self._fd, parts[:_MAX_BUFFERS])
            except BlockingIOError:
                return
            _cut(parts, taken_bytes, copy=False)


def _cut(parts: list[Part], size_bytes: int, *, copy: bool = True) -> bytes:
    """Take so many bytes, or all there are, off the front; they are returned if ``copy``."""
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
