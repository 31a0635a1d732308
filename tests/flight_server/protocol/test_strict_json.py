"""JSON that two parsers could take for two different things is refused, at any depth."""

from __future__ import annotations

import pytest

from flight_server.protocol.errors import InvalidRequest
from flight_server.protocol.strict_json import parse_json


@pytest.mark.parametrize(
    "text",
    [
        b'{"dataset":"a","dataset":"b"}',
        b'{"dataset":"a","x":{"deep":[{"k":1,"l":2,"k":1}]}}',
        b'{"a":1,"\\u0061":2}',
    ],
)
def test_a_key_that_comes_twice_is_refused_and_named(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"the command .* key '(dataset|k|a)' comes twice"):
        parse_json(text, "the command")


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"\\ud800"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"\\udfff":1}',
        b'{"a":["x",{"b":"\\ude00\\ud83d"}]}',
        '{"a":1}'.encode("utf-16"),
        b'\xef\xbb\xbf{"a":1}',
    ],
)
def test_text_that_is_not_utf_8_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the command is not UTF-8 JSON"):
        parse_json(text, "the command")


def test_what_is_written_with_escapes_means_the_same() -> None:
    assert parse_json(b'{"\\u0061":"\\ud83d\\ude00"}', "x") == parse_json('{"a":"😀"}'.encode(), "x")


def test_the_same_key_in_different_objects_is_fine() -> None:
    assert parse_json(b'{"a":{"a":1},"b":[{"a":1},{"a":2}]}', "x")["b"] == [{"a": 1}, {"a": 2}]
