"""No message shows a signature or a password of an address."""

from __future__ import annotations

import pytest

from flight_server.protocol import NotFound, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "https://b.s3.amazonaws.com/a/x.parquet?X-Amz-Signature=abc&X=1 is",
            "https://b.s3.amazonaws.com/a/x.parquet is",
        ),
        ("403, url='https://h/x?sig=1'", "403, url='https://h/x'"),
        ("s3://KEY:secret@bucket/a", "s3://bucket/a"),
        ("s3://KEY:sec/ret@bucket/a", "s3://bucket/a"),
        ("https://token@host:443/a#token", "https://host:443/a"),
        (
            "abfss://container@account.dfs.core.windows.net/a?sig=1",
            "abfss://container@account.dfs.core.windows.net/a",
        ),
        ("abfss://me:secret@account/a", "abfss://account/a"),
        ("zip://a.csv::https://me:secret@h/x.zip?sig=1", "zip://h/x.zip"),
        ("write 'grpc://h:1', or 'grpc+tls://h:1'", "write 'grpc://h:1', or 'grpc+tls://h:1'"),
        ("http://host:9000/a@b", "http://host:9000/a@b"),
        ("s3://bucket/t=12:00/x@y", "s3://bucket/t=12:00/x@y"),
        ("is it there? at a@b", "is it there? at a@b"),
        ("{'https': 'me:secret@proxy:80'}", "{'https': 'proxy:80'}"),
        ("https=me:secret@proxy.corp;http=me:s@cret@[::1]:80", "https=proxy.corp;http=[::1]:80"),
        ("me:secret@h.corp/x.zip is", "h.corp/x.zip is"),
        (
            "file:/a@b.c, a:b@c, 'k:a.Foo@1a2b' of me@h.corp",
            "file:/a@b.c, a:b@c, 'k:a.Foo@1a2b' of me@h.corp",
        ),
    ],
)
def test_an_address_is_shown_without_query_and_user_info(text: str, expected: str) -> None:
    assert shown(text) == expected
    assert shown(expected) == expected


def test_an_error_shows_addresses_so_in_its_message_and_its_detail() -> None:
    error = NotFound("https://h/x?sig=1 is not there", file="https://h/x?sig=1", partition=1)
    assert (error.message, str(error)) == ("https://h/x is not there",) * 2
    assert error.detail == {"file": "https://h/x", "partition": 1}
