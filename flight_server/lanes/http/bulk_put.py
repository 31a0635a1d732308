"""The bulk lane for writing: a put over a connection that was HTTP until its 101 (see ``put_framing``).

Guarantee: a put becomes what it would become by DoPut, because ``receiving`` takes its messages. It is accepted (K)
only after the client's end marker; a complete last message is not enough.

Copies
    The kernel writes a message of ``LARGE_BYTES`` and more into the ``bytes`` object that is stored, sent and spilled;
    only the bytes of the read that brought its length are copied. The next length comes in the same read, and is cut
    off in place. Smaller messages are copied out of reads of ``READ_BYTES``, many at a time.

Back-pressure
    The server reads only while ``receiving`` waits for a message and after ``room_for_arrivals``, so TCP holds the
    producer back when gRPC's window would. Not counted, besides the bytes that ``accounts`` names, are the bytes that
    TLS has read ahead for each producing stream (256 KiB in both event loops), and small messages of one read. A large
    message's memory is allocated when its length is known, takes up RAM as its bytes come, and is counted so
    (``arriving``).

Broken off
    The loss of a connection cancels the handler. While the server does not read, the event loops do not watch the
    connection, so a poll every ``LOOK_SECONDS`` finds a reset. The next read finds a mere close, because the end marker
    may lie before it. TCP keepalive finds a peer that has vanished (see ``listener``); a silent one has the deadlines
    of ``receiving``.

Refused
    The server sends E and the end of the stream at once, and discards all that arrives for ``LINGER_SECONDS``, so that
    the client finds E and not a reset.
"""

from __future__ import annotations

import asyncio
import ctypes
import select
from collections.abc import AsyncGenerator
from contextlib import aclosing
from io import BytesIO

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from flight_server.datasets import Caller
from flight_server.memory import Reservation
from flight_server.protocol import (
    ACCEPTED,
    CHECKED_LENGTH,
    CHECKSUMS,
    CHECKSUMS_HEADER,
    LENGTH,
    REFUSED,
    RESULT,
    UPGRADE,
    BadFrame,
    FlightShuffleError,
    InvalidRequest,
    answer,
)
from flight_server.transfer import PutReceiver, too_much

READ_BYTES = 64 << 10
LARGE_BYTES = 32 << 10
MESSAGES_AT_ONCE = 64
LINGER_SECONDS = 5.0
LOOK_SECONDS = 1.0
MAX_UNREAD_ANSWER_BYTES = 64 << 10

_LINES = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n"
_HEAD = f"{_LINES}\r\n".encode()
_CHECKED_HEAD = f"{_LINES}{CHECKSUMS_HEADER}: {CHECKSUMS}\r\n\r\n".encode()

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)


class _Large:
    """A message that arrives in its own memory, and the head of ``head_bytes`` that follows it.

    Only BytesIO receives into ``bytes``: it writes to an object that only it refers to, and returns that object.
    ``bytes(n)`` would write zeros first.
    """

    def __init__(self, size_bytes: int, head_bytes: int, begun: memoryview) -> None:
        self.size_bytes = size_bytes
        self.filled_bytes = len(begun)
        self.memory = BytesIO(_new_bytes(None, size_bytes + head_bytes))
        with self.memory.getbuffer() as whole:
            whole[: len(begun)] = begun

    def take(self) -> tuple[bytes, bytes]:
        """The message, and the part of the next head that has come. No view of the room may be alive."""
        with self.memory.getbuffer() as whole:
            beyond = bytes(whole[self.size_bytes : self.filled_bytes])
        self.memory.truncate(self.size_bytes)
        return self.memory.getvalue(), beyond


class Incoming:
    """Cuts the bytes that arrive into messages. ``scratch``: where bytes of no large message arrive. All connections of
    a loop may share it: nothing stays there between two reads. ``checked``: each length is followed by a checksum.
    """

    def __init__(self, scratch: memoryview, max_message_bytes: int, *, checked: bool = False) -> None:
        self.checksum: int | None = None
        """The checksum of the message or end marker that was taken last."""
        self._head = CHECKED_LENGTH if checked else LENGTH
        self._scratch = scratch
        self._max_message_bytes = max_message_bytes
        self._rest = b""  # the bytes that belong to no large message; taken up to ``_at``
        self._at = 0
        self._large: _Large | None = None

    @property
    def large_bytes(self) -> int:
        """What has come of a message that arrives in its own memory."""
        return 0 if self._large is None else self._large.filled_bytes

    @property
    def begun(self) -> bool:
        return self._large is not None or len(self._rest) > self._at

    @property
    def ready(self) -> bool:
        """Whether ``take`` can be called: for a message, the end marker, or an error."""
        if self._large is not None:
            return self._large.filled_bytes >= self._large.size_bytes
        size_bytes = self._next_bytes()
        return size_bytes is not None and (
            not 0 < size_bytes <= self._max_message_bytes
            or len(self._rest) - self._at >= self._head.size + size_bytes
        )

    def room(self) -> memoryview:
        """The buffer for the next bytes; never empty. Only while not ``ready``."""
        if self._large is None:
            size_bytes = self._next_bytes()
            if size_bytes is None or size_bytes < LARGE_BYTES:
                self._rest, self._at = self._rest[self._at :], 0
                self._scratch[: len(self._rest)] = self._rest
                return self._scratch[len(self._rest) :]
            if self._head is CHECKED_LENGTH:
                self.checksum = CHECKED_LENGTH.unpack_from(self._rest, self._at)[1]
            begun = memoryview(self._rest)[self._at + self._head.size :]
            self._large = _Large(size_bytes, self._head.size, begun)
            self._rest, self._at = b"", 0
        return self._large.memory.getbuffer()[self._large.filled_bytes :]

    def received(self, count: int) -> bool:
        """``count`` bytes have been written to the room; whether it is now ``ready``."""
        large = self._large
        if large is not None:
            large.filled_bytes += count
            return large.filled_bytes >= large.size_bytes
        self._rest = bytes(self._scratch[: len(self._rest) + count])
        return self.ready

    def take(self) -> bytes | None:
        """The next message, or None at the end marker. Only when ``ready``. Raises BadFrame: it is too long."""
        if self._large is not None:
            message, self._rest = self._large.take()
            self._large = None
            return message
        size_bytes = self._next_bytes()
        assert size_bytes is not None
        if size_bytes > self._max_message_bytes:
            raise BadFrame(
                f"a message of {size_bytes} bytes is announced, more than this server's limit of "
                f"{self._max_message_bytes}: write smaller batches, or raise --max-message and --memory-limit",
                limit_bytes=self._max_message_bytes,
            )
        if self._head is CHECKED_LENGTH:
            self.checksum = CHECKED_LENGTH.unpack_from(self._rest, self._at)[1]
        if size_bytes == 0:
            return None
        begin = self._at + self._head.size
        self._at = begin + size_bytes
        return self._rest[begin : self._at]

    def _next_bytes(self) -> int | None:
        if len(self._rest) - self._at < self._head.size:
            return None
        size_bytes: int = LENGTH.unpack_from(self._rest, self._at)[0]
        return size_bytes


class _TakenOver(web.StreamResponse):
    """The answer for aiohttp: it sends nothing, and ends with the connection."""

    def __init__(self, intake: Intake) -> None:
        super().__init__(status=101)
        self.force_close()
        self._intake = intake

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Do nothing: the head was sent before."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Wait for the end of the connection."""
        await self._intake.ended()


class Intake(asyncio.BufferedProtocol):
    """One put's connection, taken over from aiohttp; also the put's ``PutAnswers``.

    Raises:
        InvalidRequest: the request does not ask for the upgrade.
        ConnectionError: the client has left.
    """

    def __init__(self, puts: PutReceiver, request: web.Request, scratch: memoryview, caller: Caller) -> None:
        _check(request)
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client has left")
        self._puts = puts
        self.producer = puts.producer(caller)
        self._http = request.protocol
        self._transport = request.transport
        self._scratch = scratch
        checked = request.headers.get(CHECKSUMS_HEADER) == CHECKSUMS
        self._incoming: Incoming | None = Incoming(scratch, puts.max_message_bytes, checked=checked)
        self._arrived: asyncio.Future[None] | None = None
        self._body = puts.arriving.body(self._end_body)
        self._rooms: list[tuple[float, Reservation]] = []  # of large echoes in the transport, since when
        self._wait = 0  # the number of the wait for the client
        self._heard = 0.0  # when the last byte came, or that wait began
        self._gone = asyncio.Event()
        self._poll = select.poll()
        self._poll.register(self._transport.get_extra_info("socket").fileno(), 0)  # errors and hang-ups only
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        # Paused before the change: uvloop chooses how to read when it starts to read.
        self._transport.pause_reading()
        self._transport.set_protocol(self)
        self._transport.write(_CHECKED_HEAD if checked else _HEAD)

    async def receive(self) -> web.StreamResponse:
        """Take the put, and accept it. Raises as :meth:`PutReceiver.receive`; answer with ``refuse``."""
        async with aclosing(self._messages()) as messages:
            await self._puts.receive(messages, self.producer, self)
        self._transport.write(answer(ACCEPTED))
        self._transport.close()
        return _TakenOver(self)

    def refuse(self, error: FlightShuffleError) -> web.StreamResponse:
        """Send the error and end the connection; see "Refused"."""
        self._incoming = None
        if not self._transport.is_closing():
            self._transport.write(answer(REFUSED, error.to_json().encode()))
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._transport.resume_reading()
        return _TakenOver(self)

    async def ended(self) -> None:
        """Return when the client has closed the connection, or cut it after ``LINGER_SECONDS`` or when cancelled."""
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._gone.wait()
        except TimeoutError:
            pass
        finally:
            self._transport.abort()

    async def _messages(self) -> AsyncGenerator[bytes, None]:
        incoming, loop = self._incoming, asyncio.get_running_loop()
        assert incoming is not None
        at_once = 0
        while True:
            if self.producer.admission.arrivals.used_bytes:
                await self.producer.room()
            if not incoming.ready:
                with self.producer.awaited() as self._wait:
                    self._arrived, self._heard = loop.create_future(), loop.time()
                    self._transport.resume_reading()
                    try:
                        await self._arrived
                    finally:
                        # A stall's traceback refers to this connection: a future that is kept would close a reference
                        # cycle around the part of a message that has come.
                        self._arrived = None
                        self._transport.pause_reading()
                at_once = 0
            elif at_once == MESSAGES_AT_ONCE:
                await asyncio.sleep(0)  # other streams have their turns between many small messages
                at_once = 0
            message = incoming.take()
            if message is None:
                return
            at_once += 1
            yielded = [message]
            del message
            yield yielded.pop()  # this generator keeps no reference to a yielded message

    def _look(self) -> None:
        if not self._transport.is_reading() and self._poll.poll(0):
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOK_SECONDS, self._look)
        self._release_taken()
        if self._rooms and loop.time() - self._rooms[0][0] >= self.producer.stall_seconds:
            self._transport.abort()
            return
        if self._arrived is not None and not self._arrived.done() and self._incoming is not None:
            inside, silent_seconds = self._incoming.begun, loop.time() - self._heard
            if inside:
                is_overdue = silent_seconds >= self.producer.stall_seconds
            else:
                is_overdue = self.producer.is_overdue(self._wait, silent_seconds)
            if is_overdue:
                self._arrived.set_exception(self.producer.stalled(inside=inside))

    # PutAnswers

    def put(self, metadata: bytes, room: Reservation | None = None) -> None:
        """Send a PutResult, or drop it while the client has not taken ``MAX_UNREAD_ANSWER_BYTES`` of them.

        A client that takes none of its large echoes for ``stall_seconds`` is cut off.
        """
        self._release_taken()
        if self._transport.get_write_buffer_size() < MAX_UNREAD_ANSWER_BYTES:
            self._transport.write(answer(RESULT, metadata))
            if room is not None and self._transport.get_write_buffer_size():
                self._rooms.append((asyncio.get_running_loop().time(), room))

    def _release_taken(self) -> None:
        if self._rooms and not self._transport.get_write_buffer_size():
            self._rooms.clear()

    @property
    def checksum(self) -> int | None:
        return None if self._incoming is None else self._incoming.checksum

    async def confirm_end(self) -> None:
        """Return at once: the client's end marker was read."""

    # asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch if self._incoming is None else self._incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._incoming is None:
            return
        self._heard = asyncio.get_running_loop().time()
        whole = self._incoming.received(nbytes)
        self._body.hold(0 if whole else self._incoming.large_bytes)
        if whole:
            self._transport.pause_reading()
            if self._arrived is not None and not self._arrived.done():
                self._arrived.set_result(None)

    def _end_body(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_exception(too_much())

    def connection_lost(self, exc: Exception | None) -> None:
        self._looking.cancel()
        self._body.close()
        self._rooms.clear()
        self._gone.set()
        self._http.connection_lost(exc)


def _check(request: web.Request) -> None:
    connection = {token.strip().lower() for token in request.headers.get("Connection", "").split(",")}
    protocol = request.headers.get("Upgrade", "").lower()
    if "upgrade" not in connection or protocol != UPGRADE or request.version < (1, 1):
        raise InvalidRequest(
            f"a put needs HTTP/1.1 with 'Connection: Upgrade' and 'Upgrade: {UPGRADE}'; or write with Arrow Flight"
        )
    if request.can_read_body:
        raise InvalidRequest("a put's request has no body: what is put follows the answer 101")
