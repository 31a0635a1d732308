"""Addresses that the server can listen on, and the errors for those that it cannot."""

from __future__ import annotations

import re

import pytest

from flight_server.lanes.http.listening import AddressRefused, bind, bracketed


def test_a_free_address_is_bound_and_free_again_when_the_socket_is_closed() -> None:
    with bind("127.0.0.1", 0, option="--port") as bound:
        port = bound.getsockname()[1]
    with bind("127.0.0.1", port, option="--port") as again:
        assert again.getsockname() == ("127.0.0.1", port)


def test_a_taken_port_is_said_with_its_option() -> None:
    with bind("127.0.0.1", 0, option="--port") as taken:
        taken.listen()
        port = taken.getsockname()[1]
        words = f"127.0.0.1:{port} is in use by another process: end that one, or give another --http-port"
        with pytest.raises(AddressRefused, match=re.escape(words)):
            bind("127.0.0.1", port, option="--http-port")


@pytest.mark.parametrize("host", ["192.0.2.7", "nowhere.invalid", "not a host"])
def test_a_host_that_is_not_this_one_is_said_so(host: str) -> None:
    with pytest.raises(AddressRefused, match=f"--host: '{host}' is no address of this machine"):
        bind(host, 0, option="--port")


def test_an_address_with_colons_is_put_in_brackets_once() -> None:
    assert [bracketed(host) for host in ("::1", "[::1]", "a")] == ["[::1]", "[::1]", "a"]
