"""Connections with TLS whose client has left, as the kernel tells of them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

from flight_server.lanes.http.connections import disconnect_left
from tests.support.polling import eventually


def connection_over(peer: socket.socket | None) -> Any:
    return Mock(transport=Mock(get_extra_info=Mock(return_value=peer)))


def test_a_connection_that_is_lost_keeps_no_other_one_whose_client_has_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as opened:
        client = opened.enter_context(socket.create_connection(listener.getsockname()))
        peer = opened.enter_context(listener.accept()[0])
        opened.enter_context(socket.create_connection(listener.getsockname()))
        other = opened.enter_context(listener.accept()[0])
        lost, left, stays = connection_over(None), connection_over(peer), connection_over(other)
        client.close()

        def is_cut() -> bool:
            disconnect_left([lost, left, stays, Mock(transport=None)])
            return bool(left.transport.abort.called)

        eventually(is_cut, expected=True)
        assert not stays.transport.abort.called
        assert not lost.transport.abort.called
