"""The bytes that have come on sockets of this process, by the names that gRPC gives their peers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flight_server.lanes.grpc.connection_bytes import LIST_SECONDS, ConnectionBytes


class Pair:
    """A client's socket, and the server's end of the connection."""

    def __init__(self, stack: ExitStack, listener: socket.socket, address: tuple[str, int]) -> None:
        self.client = stack.enter_context(socket.create_connection(address))
        self.served = stack.enter_context(listener.accept()[0])

    def send(self, size_bytes: int) -> None:
        self.client.sendall(bytes(size_bytes))
        while size_bytes:
            size_bytes -= len(self.served.recv(size_bytes))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_a_peer_over_either_protocol_is_found_and_its_bytes_add_up(stack: ExitStack) -> None:
    counted = ConnectionBytes()
    both = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
    port = both.getsockname()[1]
    looked_at = 0.0
    for host, named in (("::1", "ipv6:%5B::1%5D"), ("127.0.0.1", "ipv4:127.0.0.1")):
        pair = Pair(stack, both, (host, port))
        peer = f"{named}:{pair.client.getsockname()[1]}"
        pair.send(1000)
        looked_at += 1.0
        counted.begin_look(looked_at)
        assert counted.received(peer) == 1000
        pair.send(70_000)
        assert counted.received(peer) == 71_000


def test_a_descriptor_that_another_connection_has_now_is_not_taken_for_the_old_one(stack: ExitStack) -> None:
    counted = ConnectionBytes()
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    old = Pair(stack, listener, listener.getsockname())
    old_peer = f"ipv4:127.0.0.1:{old.client.getsockname()[1]}"
    old.send(10)
    assert counted.received(old_peer) == 10
    numbers = {old.client.fileno(), old.served.fileno()}
    old.client.close()
    old.served.close()
    new = Pair(stack, listener, listener.getsockname())
    assert {new.client.fileno(), new.served.fileno()} & numbers
    new.send(20)
    counted.begin_look(1.0)
    assert counted.received(f"ipv4:127.0.0.1:{new.client.getsockname()[1]}") == 20
    counted.begin_look(2.0)
    assert counted.received(old_peer) is None


def test_connections_that_are_new_are_found_only_once_in_a_while(stack: ExitStack) -> None:
    counted = ConnectionBytes()
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    first = Pair(stack, listener, listener.getsockname())
    first.send(10)
    first_peer = f"ipv4:127.0.0.1:{first.client.getsockname()[1]}"
    assert counted.begin_look(1.0)
    assert counted.received(first_peer) == 10
    second = Pair(stack, listener, listener.getsockname())
    second.send(20)
    second_peer = f"ipv4:127.0.0.1:{second.client.getsockname()[1]}"
    assert not counted.begin_look(1.0 + LIST_SECONDS / 2)
    assert counted.received(second_peer) is None
    assert counted.received(first_peer) == 10
    assert counted.begin_look(1.0 + LIST_SECONDS)
    assert counted.received(second_peer) == 20


@pytest.mark.parametrize("peer", ["unknown", "unix:", "ipv4:127.0.0.1:1", ""])
def test_of_a_peer_without_a_socket_nothing_is_known(peer: str) -> None:
    assert ConnectionBytes().received(peer) is None
