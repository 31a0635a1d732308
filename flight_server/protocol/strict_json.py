"""Strict JSON for requests. A key that comes twice in one object, of which two parsers may take different values, is an
error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from json import scanner
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


def parsed_bytes(data: bytes) -> int:
    """The most memory that :func:`parse_json` takes, its result included."""
    texts_bytes = len(data) * (_TEXT_COST if data.isascii() else _WIDE_TEXT_COST)
    return texts_bytes + sum(data.count(mark) * cost for mark, cost in _COST_BYTES.items())


def parse_json(
    data: bytes | str, what: str, *, small: bool = False, in_thread: bool = False
) -> dict[str, Any]:
    """A JSON object; the empty one for an empty text. Raises InvalidRequest: not UTF-8, not JSON, not an object, or a
    key twice in one object.

    Args:
        small: refuse bytes that would take more than ``MAX_SMALL_PARSED_BYTES`` before they are parsed.
        in_thread: let other threads run meanwhile.
    """
    if not data:
        return {}
    if small and isinstance(data, bytes) and parsed_bytes(data) > MAX_SMALL_PARSED_BYTES:
        raise InvalidRequest(f"{what} has many more values than anything that it could say")
    try:
        # json.loads itself accepts halves of surrogate pairs, as bytes and as escapes.
        text = data.decode() if isinstance(data, bytes) else data
        body = (_PythonDecoder() if in_thread else _decoder).decode(text)
        if "\\u" in text:
            for part in json.JSONEncoder(ensure_ascii=False).iterencode(body):
                part.encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not UTF-8 JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"{what} must be a JSON object, not {type(body).__name__}")
    return body


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} comes twice in one object")
    return body


class _PythonDecoder(json.JSONDecoder):
    """With Python's own scanner. The one in C keeps the interpreter's lock for the whole text."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object)
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # typeshed has only the one in C


_decoder = json.JSONDecoder(object_pairs_hook=_object)


def dump_json(body: Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(body, separators=(",", ":")).encode()
