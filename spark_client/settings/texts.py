"""Values that Spark gives as text: each parser returns the value, or raises a ValueError that names the accepted
values.

A parser that raises InvalidRequest has the whole message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from flight_server.protocol import InvalidRequest, KeepRule, check_prefix, parse_size
from spark_client.connection import check_locations

EMBEDDED = "embedded"
"""The location that stands for a server of the client's own."""
EXECUTORS = "executors"
"""The location that stands for servers that tasks start."""
EVERY_ROW = "all"
"""The value of the option ``changelog`` for one that keeps every row."""
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

N = TypeVar("N", int, float)


def _number(
    what: str, low: float, pattern: str, units: Mapping[str, float], kind: type[N]
) -> Callable[[str], N]:
    def parse(text: str) -> N:
        match = re.fullmatch(pattern, text.lower())
        value = kind(kind(match[1]) * units[match[2] or ""]) if match else kind(-1)
        if not low <= value < float("inf"):
            raise ValueError(what)
        return value

    return parse


def integer(low: int) -> Callable[[str], int]:
    """An integer from ``low`` on."""
    return _number(f"an integer from {low} on", low, r"\s*([0-9]+)\s*()", {"": 1}, int)


def seconds(low: float) -> Callable[[str], float]:
    """Seconds, or a time with one of Spark's units, such as ``500ms`` or ``5min``."""
    what = f"a number of seconds from {low:g} on, also with a unit, as in '90s' or '5min'"
    return _number(what, low, r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|min|h|d|)\s*", _SECONDS, float)


def size_bytes(low: int) -> Callable[[str], int]:
    """Bytes, or a size, see ``parse_size``."""

    def parse(text: str) -> int:
        try:
            value = parse_size(text)
        except ValueError:
            value = -1
        if value < low:
            raise ValueError(f"a number of bytes from {low} on, also with a unit, as in '64m' or '64MiB'")
        return value

    return parse


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}")
        return text.lower()

    return parse


def flag(text: str) -> bool:
    """``true`` or ``false``."""
    return one_of("true", "false")(text) == "true"


def some_text(what: str) -> Callable[[str], str]:
    """A text that is not empty."""

    def parse(text: str) -> str:
        if not text.strip():
            raise ValueError(what)
        return text

    return parse


def certificates(text: str) -> bytes:
    """PEM text, or the PEM of the file of that name."""
    if text.lstrip().startswith("-----BEGIN"):
        return text.encode()
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise ValueError(f"PEM text, or a file that the driver can read ({error})") from error


def file(text: str) -> Path:
    """The path of a file."""
    return Path(some_text("a file")(text))


def token(text: str) -> str:
    """A token that can be sent."""
    # Not a ValueError, whose message would show it.
    if not text or text != text.strip() or not text.isascii() or not text.isprintable():
        raise InvalidRequest(
            "the token is printable ASCII without spaces or line breaks around it, and this one is not"
        )
    return text


def location(text: str) -> str:
    """The address of a server, or of several with commas between, ``EMBEDDED``, or ``EXECUTORS``."""
    word = text.strip().lower()
    return word if word in (EMBEDDED, EXECUTORS) else ",".join(check_locations(text))


def compression(text: str) -> str | None:
    """As ``Writing`` has it, with ``none`` for None."""
    word = one_of("auto", "lz4", "zstd", "none")(text)
    return None if word == "none" else word


def directories(text: str) -> tuple[str, ...]:
    """Directories with commas between them."""
    paths = tuple(part.strip() for part in text.split(","))
    if not all(paths):
        raise ValueError("directories with commas between them")
    return paths


def prefixes(text: str) -> tuple[str, ...]:
    """Prefixes of objects with commas between them."""
    try:
        return tuple(check_prefix(part.strip(), "it") for part in text.split(","))
    except InvalidRequest as wrong:
        raise ValueError(
            "absolute paths, or addresses such as s3://bucket/path, with commas between them"
        ) from wrong


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them, or a JSON list of names."""
    if text.lstrip().startswith("["):
        try:
            columns = json.loads(text)
        except ValueError:
            columns = None
    else:
        columns = [name.strip() for name in text.split(",")]
    if (
        not isinstance(columns, list)
        or not columns
        or not all(isinstance(name, str) and name for name in columns)
        or len(set(columns)) < len(columns)
    ):
        raise ValueError("different names with commas between them, or a JSON list of names")
    return tuple(columns)


def keep_rule(text: str) -> KeepRule | str:
    """A keep rule, or ``EVERY_ROW``."""
    if text.strip().lower() == EVERY_ROW:
        return EVERY_ROW
    try:
        rule = json.loads(text)
    except ValueError:
        raise ValueError(
            f"{EVERY_ROW!r}, or a keep rule in JSON, as "
            '{"rule": "latest", "key": ["currency"], "order_by": ["time"]}'
        ) from None
    return KeepRule.parse(rule)


def start(text: str) -> str | int:
    """``earliest``, ``latest`` or a version."""
    if text.strip().isdecimal():
        return int(text)
    try:
        return one_of("earliest", "latest")(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a version") from None
