"""Strict JSON for requests. A key that comes twice in one object, of which two parsers may take different values, is an
error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any

from .errors import InvalidRequest

# The most that CPython takes for each of these marks and its value, measured with 8 MB of lists of empty lists, lists
# in lists, small objects, objects of many keys, short texts and numbers: up to 49 bytes per byte of JSON.
_COST_BYTES = {b"[": 104, b"{": 160, b",": 80, b":": 240}
_TEXT_COST = 4
"""The request, the JSON in it, the decoded text, and the strings in it."""
_WIDE_TEXT_COST = 16
"""The same if one character makes each of a text take four bytes."""
MAX_SMALL_PARSED_BYTES = 16 << 20
_ONE_STEP_BYTES = 64 << 10
_SPACE = re.compile(r"[ \t\n\r]*")


def parsed_bytes(data: bytes) -> int:
    """The most memory that :func:`parse_json` takes, its result included."""
    texts_bytes = len(data) * (_TEXT_COST if data.isascii() else _WIDE_TEXT_COST)
    return texts_bytes + sum(data.count(mark) * cost for mark, cost in _COST_BYTES.items())


def parse_json(data: bytes | str, what: str, *, small: bool = False) -> dict[str, Any]:
    """A JSON object; the empty one for an empty text. With ``small`` bytes that would take more than
    ``MAX_SMALL_PARSED_BYTES`` are refused before they are parsed. Raises InvalidRequest: not UTF-8, not JSON, not an
    object, or with a key twice in one object.
    """
    if not data:
        return {}
    if small and isinstance(data, bytes) and parsed_bytes(data) > MAX_SMALL_PARSED_BYTES:
        raise InvalidRequest(f"{what} has many more values than anything that it could say")
    try:
        # json.loads itself accepts halves of surrogate pairs, as bytes and as escapes.
        text = data.decode() if isinstance(data, bytes) else data
        body = json.loads(text, object_pairs_hook=_object)
        if "\\u" in text:
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not UTF-8 JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"{what} must be a JSON object, not {type(body).__name__}")
    return body


def parsing(data: bytes, what: str) -> Generator[None, None, dict[str, Any]]:
    """:meth:`parse_json` in steps, as far as objects in the object are large: their members are parsed one by one.
    Raises as that.
    """
    if len(data) <= _ONE_STEP_BYTES:
        return parse_json(data, what)
    try:
        text = data.decode()
        yield
        escapes = "\\u" in text
        yield
        body, end = yield from _value(text, _after_space(text, 0), 2, escapes=escapes)
        if _after_space(text, end) != len(text):
            raise ValueError(f"something follows the object at character {end}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not UTF-8 JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"{what} must be a JSON object, not {type(body).__name__}")
    return body


def _value(text: str, at: int, depth: int, *, escapes: bool) -> Generator[None, None, tuple[Any, int]]:
    """The value that begins there, and where it ends; the members of objects down to ``depth`` in steps."""
    if depth == 0 or text[at : at + 1] != "{":
        value, end = _decoder.raw_decode(text, at)
        if escapes:
            json.dumps(value, ensure_ascii=False).encode()
        return value, end
    pairs: list[tuple[str, Any]] = []
    at = _after_space(text, at + 1)
    if text[at : at + 1] == "}":
        return {}, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise ValueError(f"a key in quotes is expected at character {at}")
        key, at = yield from _value(text, at, 0, escapes=escapes)
        at = _after_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"':' is expected at character {at}")
        value, at = yield from _value(text, _after_space(text, at + 1), depth - 1, escapes=escapes)
        pairs.append((key, value))
        at = _after_space(text, at)
        mark = text[at : at + 1]
        if mark == "}":
            return _object(pairs), at + 1
        if mark != ",":
            raise ValueError(f"',' or '}}' is expected at character {at}")
        at = _after_space(text, at + 1)
        yield


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} comes twice in one object")
    return body


_decoder = json.JSONDecoder(object_pairs_hook=_object)


def dump_json(body: Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(body, separators=(",", ":")).encode()
