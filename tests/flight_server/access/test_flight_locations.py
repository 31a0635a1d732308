"""An address has one meaning, or is refused: disguised addresses reach no other host."""

from __future__ import annotations

import pytest

from flight_server.access.flight_locations import FlightLocation


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("grpc://host:8815", "grpc://host:8815"),
        ("grpc+tcp://HOST.example.:08815/", "grpc://host.example:8815"),
        ("GRPC+TLS://Host:1", "grpc+tls://host:1"),
        ("grpc://[::0001]:1", "grpc://[::1]:1"),
        ("grpc://[2001:DB8:0:0::7]:1", "grpc://[2001:db8::7]:1"),
        ("host", "host"),
        ("[::1]", "[::1]"),
        ("127.0.0.1:9", "127.0.0.1:9"),
        ("grpc://unix:1", "grpc://unix:1"),
    ],
)
def test_an_address_has_one_spelling(text: str, meant: str) -> None:
    assert str(FlightLocation.parse(text)) == meant
    assert str(FlightLocation.parse(meant)) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "grpc://",
        "grpc://:1",
        "grpc://host:",
        "grpc://host:0",
        "grpc://host:65536",
        "grpc://host:1:2",
        "grpc://host:+1",
        "grpc://host:\u0661",
        "grpc://allowed@host:1",
        "grpc://allowed:1@host:1",
        "grpc://host:1/path",
        "grpc://host:1?x",
        "grpc://host:1#x",
        "grpc://host:1\n",
        " grpc://host:1",
        "grpc://host\\@allowed:1",
        "grpc://host%2eexample:1",
        "grpc://ho\u017ft:1",
        "grpc://ho,st:1",
        "grpc://[::1%eth0]:1",
        "grpc://[:::1]:1",
        "grpc://::1:1",
        "http://host:1",
        "https://host:1",
        "grpc+unix:///tmp/socket",
        "unix:/tmp/socket",
        "dns:///host:1",
        "xds:///host",
        "s3://bucket",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_plain_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not grpc://host:port"):
        FlightLocation.parse(text)


def test_what_an_entry_leaves_open_it_covers_and_nothing_else() -> None:
    covered = {
        "host": ["grpc://host:1", "grpc+tls://HOST:2"],
        "host:1": ["grpc://host:1", "grpc+tls://host:1"],
        "grpc://host": ["grpc://host:1", "grpc+tcp://host.:2"],
        "grpc+tls://host:2": ["grpc+tls://host:2"],
    }
    everything = {text for texts in covered.values() for text in texts} | {
        "grpc://host.example:1",
        "grpc://ahost:1",
        "grpc://localhost:1",
        "grpc+tls://host:3",
    }
    for entry, texts in covered.items():
        meant = {FlightLocation.parse(text) for text in texts}
        found = {
            each for each in map(FlightLocation.parse, everything) if FlightLocation.parse(entry).covers(each)
        }
        assert meant <= found
        assert all(each.host == "host" for each in found)
    assert not FlightLocation.parse("grpc://host:1").covers(FlightLocation.parse("grpc+tls://host:1"))
    assert not FlightLocation.parse("host:1").covers(FlightLocation.parse("grpc://host:2"))
    assert all(FlightLocation.parse("*").covers(FlightLocation.parse(text)) for text in everything)
    assert not FlightLocation.parse("grpc://*:1").covers(FlightLocation.parse("grpc://host:2"))


def test_a_host_that_is_named_like_a_scheme_of_grpc_is_still_a_host() -> None:
    assert FlightLocation.parse("grpc://unix:1").target == "dns:///unix:1"
    assert FlightLocation.parse("grpc://[::1]:1").target == "dns:///[::1]:1"
