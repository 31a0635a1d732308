"""The cutting of a put's bytes into messages, and a put over real connections in both event loops."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.lanes.http import bulk_put
from flight_server.lanes.http.bulk_put import LARGE_BYTES, READ_BYTES, Incoming, Intake
from flight_server.node import Node
from flight_server.protocol.errors import BadFrame
from flight_server.protocol.put_framing import ANSWER_HEAD, LENGTH, PUT_PATH, UPGRADE
from tests.support.certificates import self_signed
from tests.support.nodes import running_node
from tests.support.polling import DEADLINE_SECONDS
from tests.support.raw_flight import path, put_messages
from tests.support.raw_put import framed

SMALL = pa.record_batch({"n": [1, 2, 3]})
LARGE = pa.record_batch({"n": np.arange(50_000)})
LIMIT_BYTES = 1 << 20


def incoming(max_message_bytes: int = LIMIT_BYTES) -> Incoming:
    return Incoming(memoryview(bytearray(READ_BYTES)), max_message_bytes)


def fed(into: Incoming, data: bytes, most_bytes: int) -> int:
    """One read of a transport: as much as there is room for, at most ``most_bytes``; how much it was."""
    with into.room() as room:
        count = min(len(room), len(data), most_bytes)
        assert count
        room[:count] = data[:count]
    into.received(count)
    return count


SIZES = st.one_of(
    st.integers(1, 200),
    st.sampled_from(
        [LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, READ_BYTES - 4, READ_BYTES, READ_BYTES + 1]
    ),
    st.integers(READ_BYTES, 4 * READ_BYTES),
)


@given(
    sizes=st.lists(SIZES, max_size=30),
    reads=st.lists(st.sampled_from([1, 3, 4, 5, 4_000, 1 << 20]), min_size=1),
)
def test_messages_come_out_as_they_went_in_however_they_are_read(sizes: list[int], reads: list[int]) -> None:
    # One scratch for two connections in turn, as all connections of a server share theirs.
    scratch = memoryview(bytearray(READ_BYTES))
    sides = [Incoming(scratch, LIMIT_BYTES) for _ in range(2)]
    messages = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    whole = b"".join(map(framed, messages)) + LENGTH.pack(0)
    out: tuple[list[bytes], list[bytes]] = ([], [])
    at, ended = [0, 0], [False, False]
    turn = 0
    while not all(ended):
        turn += 1
        side = turn % 2
        if ended[side]:
            continue
        # Reads of one byte only near the start: elsewhere they would be many, and tell nothing more.
        size_bytes = reads[turn // 2 % len(reads)] if turn < 400 else 1 << 20
        if not sides[side].ready:
            at[side] += fed(sides[side], whole[at[side] :], size_bytes)
        while sides[side].ready and not ended[side]:
            message = sides[side].take()
            ended[side] = message is None
            if message is not None:
                out[side].append(message)
    assert out == (messages, messages)
    assert at == [len(whole)] * 2


def test_a_large_message_is_never_copied() -> None:
    into = incoming()
    message = bytes(range(256)) * 1024
    data = framed(message) + framed(message)
    data = data[fed(into, data, 4) :]
    for beyond in (4, 0):
        with into.room() as room:
            address = np.frombuffer(room, np.uint8).ctypes.data
            assert len(room) == len(message) + 4, "with room for the next length"
        data = data[fed(into, data, len(message) + beyond) :]
        assert into.ready
        taken = into.take()
        assert taken == message
        assert np.frombuffer(taken, np.uint8).ctypes.data == address


def test_a_length_above_the_limit_is_refused_before_anything_is_asked_for() -> None:
    into = incoming()
    fed(into, framed(b"x") + (LIMIT_BYTES + 1).to_bytes(4, "big"), 1 << 20)
    assert into.take() == b"x"
    assert into.ready
    with pytest.raises(
        BadFrame, match=f"{LIMIT_BYTES + 1} bytes is announced, more than .* {LIMIT_BYTES}"
    ) as bad:
        into.take()
    assert bad.value.detail == {"limit_bytes": LIMIT_BYTES}


async def until(holds: Callable[[], bool]) -> None:
    """Return as soon as it holds, which another task sees to; fail if it never does."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.001)


class Wire:
    """A client in the same loop. Reads and writes have a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[bytes, bytes]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            kind, size_bytes = ANSWER_HEAD.unpack(await self.reader.readexactly(ANSWER_HEAD.size))
            return kind, await self.reader.readexactly(size_bytes)

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            self.writer.write(data)
            await self.writer.drain()


class Lane:
    """A node with its HTTP side."""

    def __init__(self, node: Node, port: int, trust: ssl.SSLContext | None) -> None:
        self.node, self._port, self._trust = node, port, trust

    @asynccontextmanager
    async def put(self, head: str = "Upgrade: flight-put\r\nConnection: Upgrade\r\n") -> AsyncIterator[Wire]:
        """A connection that has been upgraded."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._trust)
        try:
            writer.write(f"POST {PUT_PATH} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            yield Wire(reader, writer)
        finally:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])

    async def until(self, what: str) -> None:
        """Return when one stream waits, and for this."""
        await until(lambda: [wait["waiting_for"] for wait in self.node.waits.listed()] == [what])

    async def until_idle(self) -> None:
        """Return when no call runs."""
        await until(lambda: not len(self.node.running))


@asynccontextmanager
async def lane_of(directory: Path, *, tls: bool = False, **settings: Any) -> AsyncIterator[Lane]:
    trust = serving = None
    if tls:
        cert, key = self_signed(directory)
        trust = ssl.create_default_context(cafile=str(cert))
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(cert, key)
    async with running_node(directory, **settings) as node:
        server = node.http_server()
        port = await server.start("127.0.0.1", 0, serving)
        try:
            yield Lane(node, port, trust)
        finally:
            await server.stop()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_nothing_is_read_while_the_budget_is_full(tmp_path: Path, tls: bool) -> None:
    messages = put_messages(path("d"), [LARGE] * 20)
    async with lane_of(tmp_path, tls=tls) as lane, lane.put() as wire:
        arrivals = lane.node.budget.arrivals
        held = arrivals.reserve(arrivals.limit_bytes or 0)
        sending = asyncio.ensure_future(wire.send(b"".join(map(framed, messages)) + LENGTH.pack(0)))
        # It may have begun to wait for the first message before the account was full.
        await lane.until("budget")
        assert lane.node.counters.frames_in == 0
        held.free()
        assert await wire.answer() == (b"K", b"")
        await sending
        assert lane.node.counters.frames_in == 20


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_reset_is_seen_while_nothing_is_read(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_put, "LOOK_SECONDS", 0.01)
    async with lane_of(tmp_path, tls=tls) as lane:
        arrivals = lane.node.budget.arrivals
        held = arrivals.reserve(arrivals.limit_bytes or 0)
        async with lane.put() as wire:
            # More than is read ahead over TLS, so that neither loop reads any more.
            sending = asyncio.ensure_future(
                wire.send(b"".join(map(framed, put_messages(path("d"), [LARGE] * 40))))
            )
            await lane.until("budget")
            reset = struct.pack("ii", 1, 0)
            wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            wire.writer.transport.abort()
            with suppress(ConnectionError):
                await sending
            await lane.until_idle()
        assert len(lane.node.waits) == 0
        held.free()


async def test_a_bug_is_answered_with_an_id_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("flight_server.transfer.receiving.PutReceiver.receive", broken)
    async with lane_of(tmp_path) as lane, lane.put() as wire:
        kind, data = await wire.answer()
        assert (kind, json.loads(data)["error"]) == (b"E", "internal")
        assert b"secret" not in data


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_stopping_does_not_wait_for_a_refused_client_that_stays(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_put, "LINGER_SECONDS", 3600.0)
    async with lane_of(tmp_path, tls=tls) as lane, lane.put() as wire:
        await wire.send(framed(b"nonsense"))
        assert (await wire.answer())[0] == b"E"
        await lane.until_idle()


def test_a_client_that_leaves_before_its_connection_is_taken_over_has_left() -> None:
    headers = {"Connection": "Upgrade", "Upgrade": UPGRADE}
    lost = Mock(is_closing=Mock(return_value=True), get_extra_info=Mock(return_value=None))
    request = Mock(headers=headers, version=(1, 1), can_read_body=False, transport=lost)
    with pytest.raises(ConnectionResetError, match="the client has left"):
        Intake(Mock(), request, memoryview(b""), Mock())


async def keep_sending(wire: Wire) -> None:
    while True:
        await wire.send(b"more")
        await asyncio.sleep(0.001)


async def test_a_refused_client_that_never_leaves_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_put, "LINGER_SECONDS", 0.05)
    async with lane_of(tmp_path) as lane, lane.put() as wire:
        await wire.send(framed(b"nonsense"))
        assert (await wire.answer())[0] == b"E"
        with pytest.raises(ConnectionError):
            await keep_sending(wire)


async def test_many_small_messages_let_other_streams_have_their_turns(tmp_path: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with lane_of(tmp_path) as lane, lane.put() as wire:
        first, batch = put_messages(path("d"), [SMALL])
        at_once = READ_BYTES // len(framed(batch))
        assert at_once > 2 * bulk_put.MESSAGES_AT_ONCE
        await wire.send(framed(first))
        await lane.until("writer")
        counting = asyncio.ensure_future(count())
        before = turns
        await wire.send(framed(batch) * at_once + LENGTH.pack(0))
        assert await wire.answer() == (b"K", b"")
        counting.cancel()
        await asyncio.wait([counting])
        assert turns - before >= at_once // bulk_put.MESSAGES_AT_ONCE
