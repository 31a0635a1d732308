"""The servers of tests keep their addresses to themselves."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.support.server_process import ServerProcess


def test_no_other_process_is_given_the_ports_of_an_ended_server_but_the_one_started_there() -> None:
    with ServerProcess.start() as server:
        assert server.kill() == -9
        for location in (server.location, server.http or ""):
            address = urlsplit(location)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((address.hostname, address.port))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address.hostname, address.port))
        with server.restart() as again:
            assert (again.location, again.http) == (server.location, server.http)
