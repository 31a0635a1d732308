"""What a drain does with clients of the HTTP port that have ended their input."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from flight_server.lanes.http import connections
from flight_server.lanes.http.connections import EndedInputs


@pytest.mark.parametrize("sent_bytes", [0, 64 << 20])
async def test_a_drain_disconnects_a_client_that_is_sent_nothing_and_keeps_one_that_has_bytes_on_the_way(
    monkeypatch: pytest.MonkeyPatch, sent_bytes: int
) -> None:
    monkeypatch.setattr(connections, "DRAINED_SECONDS", 0.0)
    ended, accepted = EndedInputs(600.0), asyncio.Queue[asyncio.Transport]()

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            accepted.put_nowait(transport)

        def eof_received(self) -> bool:
            return True

    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    async with server:
        _, client = await asyncio.open_connection(*server.sockets[0].getsockname())
        transport = await accepted.get()
        transport.write(bytes(sent_bytes))
        client.write_eof()
        connection: Any = Mock(transport=transport, answering=True)
        assert ended.add(connection)
        ended.look(())
        assert not transport.is_closing(), "no drain"
        ended.drain()
        ended.look(())
        assert transport.is_closing() is (sent_bytes == 0)
        transport.abort()
        client.close()
