"""Names of objects, and their indexes."""

from __future__ import annotations

import pytest

from flight_server.protocol import (
    Forbidden,
    InvalidRequest,
    ObjectIndex,
    Piece,
    StoredPartition,
    check_allowed,
    check_prefix,
    index_of,
    is_object,
    object_of,
)
from flight_server.protocol.checksums import crc32c


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("/shared/a b/", "file:///shared/a%20b"),
        ("file:///shared/a%20b", "file:///shared/a%20b"),
        ("file://localhost/x", "file:///x"),
        ("s3://bucket/path/?region=eu", "s3://bucket/path?region=eu"),
        ("abfs://container@account/x", "abfs://container@account/x"),
    ],
)
def test_a_prefix_has_one_form(given: str, wanted: str) -> None:
    assert check_prefix(given, "it") == wanted
    assert check_prefix(wanted, "it") == wanted


@pytest.mark.parametrize(
    "given", ["", "a", "/", "s3://", "/a/../b", "/a//b", "s3://b/./c", "s3://b/x#y", 3, "s3://a\nb"]
)
def test_what_is_no_prefix_is_refused(given: object) -> None:
    with pytest.raises(InvalidRequest, match="absolute path"):
        check_prefix(given, "it")


def test_a_password_in_a_prefix_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidRequest, match="has a user or a password") as refused:
        check_prefix("s3://key:secret@bucket/path", "it")
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("prefix", "allowed"),
    [("s3://b/x", "s3://b/x"), ("s3://b/x/y?region=eu", "s3://b/x?region=eu"), ("file:///a/b", "file:///a")],
)
def test_a_prefix_is_allowed_below_another_with_the_same_options(prefix: str, allowed: str) -> None:
    assert check_allowed(prefix, ["s3://other", allowed]) == allowed


@pytest.mark.parametrize(
    ("prefix", "allowed"),
    [
        ("s3://b/xy", "s3://b/x"),
        ("s3://b/x/y", "s3://b/x?region=eu"),
        ("s3://b/x?endpoint_override=evil", "s3://b/x"),
        ("file:///x", "s3://b/x"),
    ],
)
def test_another_prefix_is_refused_by_name(prefix: str, allowed: str) -> None:
    with pytest.raises(Forbidden, match="may write below") as refused:
        check_allowed(prefix, [allowed])
    assert "evil" not in refused.value.message


def test_an_object_is_named_by_dataset_generation_and_start() -> None:
    address = object_of("s3://b/x?region=eu", "exchange/a/0", "ab", "start")
    assert address == "s3://b/x/exchange~a~0-ab/start.arrows?region=eu"
    assert index_of(address) == "s3://b/x/exchange~a~0-ab/start.json?region=eu"
    assert is_object(address)
    assert not is_object("http://host:1/v1/datasets/d")


def test_an_index_says_what_was_written_and_any_changed_bit_is_found() -> None:
    parts = [StoredPartition(3, 7, 2, 123, 100, (Piece(150, 1), Piece(200, 2)))]
    index = ObjectIndex("d", "ab", "start", Piece(100, 9), {each.number: each for each in parts})
    text = index.encode(crc32c)
    assert ObjectIndex.parse(text, crc32c) == index
    for bit in range(8 * len(text)):
        damaged = bytearray(text)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong
            ObjectIndex.parse(bytes(damaged), crc32c)
