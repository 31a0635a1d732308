"""Addresses that the server can listen on, and the errors for those that it cannot."""

from __future__ import annotations

import pytest

from flight_server.lanes.http.listening import AddressRefused, bind
from flight_server.protocol import bracketed


@pytest.mark.parametrize("host", ["192.0.2.7", "nowhere.invalid", "not a host"])
def test_a_host_that_is_not_this_one_is_said_so(host: str) -> None:
    with pytest.raises(AddressRefused, match=f"--host: '{host}' is no address of this machine"):
        bind(host, 0, option="--port")


def test_an_address_with_colons_is_put_in_brackets_once() -> None:
    assert [bracketed(host) for host in ("::1", "[::1]", "a")] == ["[::1]", "[::1]", "a"]
