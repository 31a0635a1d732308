"""Addresses of several servers, as a program gives them."""

from __future__ import annotations

import pytest

from flight_server.protocol import InvalidRequest, Unavailable
from spark_client.connection import check_locations


@pytest.mark.parametrize("text", ["grpc://a:1,grpc://b:2", " grpc://a:1 ,, grpc://b:2/,grpc://a:1/"])
def test_addresses_have_commas_between_them_and_stand_once_each(text: str) -> None:
    assert check_locations(text) == ("grpc://a:1", "grpc://b:2")


@pytest.mark.parametrize("text", [",", "", "grpc://a:1,b:2", "dns+a:1", "embedded,grpc://a:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no address of a server: write"):
        check_locations(text)


def test_a_name_stands_for_each_of_its_addresses() -> None:
    assert check_locations("dns+grpc://127.0.0.1:8815") == ("grpc://127.0.0.1:8815",)
    assert check_locations("dns+grpc+tls://[::1]:8815") == ("grpc+tls://[::1]:8815",)


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".b", "no-such-name.invalid"])
def test_a_name_that_has_no_address_is_said(host: str) -> None:
    with pytest.raises(Unavailable, match=r"^dns\+grpc://.*: the name .* has no address"):
        check_locations(f"dns+grpc://{host}:8815")
