"""Connections of a pool end with their last owner, closed: none is left to the collector."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_client.connection import RemoteServer
from spark_client.lanes.http import Connection, HttpPool

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def location() -> Iterator[str]:
    """Of a server that gives one connection one empty answer, and keeps it open until the client closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(ANSWER)
                connection.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.join(30)
        assert not server.is_alive(), "the connection is still open"


def pool_of(location: str) -> HttpPool:
    return HttpPool(location, RemoteServer(location.replace("http", "grpc")))


def answered(pool: HttpPool) -> Connection:
    connection = pool.new()
    assert connection.request("/", {})[0] == 200
    return connection


def test_a_connection_that_comes_back_after_its_pool_was_closed_is_closed(location: str) -> None:
    pool = pool_of(location)
    connection = answered(pool)
    pool.close()
    pool.release(connection, reusable=True)
    assert connection.sock is not None
    assert connection.sock.fileno() == -1


def test_a_pool_that_the_collector_finds_in_a_cycle_has_closed_its_connections(location: str) -> None:
    # The socket is older than the pool that keeps it, so that the collector comes to it first; it warns of an open one.
    connection = answered(pool_of(location))
    pool = pool_of(location)
    pool.release(connection, reusable=True)
    cycle: list[object] = [pool]
    cycle.append(cycle)
    del connection, pool, cycle
    gc.collect()
