"""Which ports refuse connections, for certain."""

from __future__ import annotations

import socket

from spark_client.connection import refuses


def test_a_server_is_gone_when_all_its_ports_refuse() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        open_port = listening.getsockname()[1]
        bound.bind(("127.0.0.1", 0))  # so that no other process listens there
        closed_port = bound.getsockname()[1]
        closed = [f"grpc://127.0.0.1:{closed_port}", f"http://127.0.0.1:{closed_port}/v1"]
        assert refuses(closed)
        assert not refuses([*closed, f"http://127.0.0.1:{open_port}"])


def test_an_address_that_is_no_port_or_of_no_host_refuses_nothing() -> None:
    for location in ("grpc+unix:///tmp/socket", "executors", "grpc://no-such-host.invalid:1"):
        assert not refuses([location])
    assert not refuses([])
