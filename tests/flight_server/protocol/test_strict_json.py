"""JSON that two parsers could take for two different things is refused, at any depth."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.sampled_from([None, 1]), st.booleans())
def test_json_that_is_parsed_in_a_thread_means_the_same(
    body: dict[str, object], indent: int, escapes: bool
) -> None:
    text = json.dumps(body, indent=indent, ensure_ascii=escapes).encode()
    assert parse_json(text, "it", in_thread=True) == body


@pytest.mark.parametrize(
    "text",
    [
        *(
            b'{"a":1,"a":1}',
            b'{"a":"\\ud800"}',
            b'{"a":"\xed\xa0\x80"}',
            b'{"a":1}x',
            b'{"a":1,}',
            b'{"a":1 "b":2}',
        ),
        *(b"{1:2}", b'{"a"}', b'{"a":}', b'{"a":{', b"[1]", b"{", b" "),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
def test_what_is_refused_on_the_event_loop_is_refused_in_a_thread(text: bytes, in_thread: bool) -> None:
    with pytest.raises(InvalidRequest):
        parse_json(text, "it", in_thread=in_thread)
