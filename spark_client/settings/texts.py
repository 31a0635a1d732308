"""Values that Spark gives as text: each parser returns the value, or raises a ValueError that says what it takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_SIZES = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def integer(low: int) -> Callable[[str], int]:
    """An integer from ``low`` on."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"\s*[0-9]+\s*", text) else -1
        if value < low:
            raise ValueError(f"an integer from {low} on")
        return value

    return parse


def seconds(low: float) -> Callable[[str], float]:
    """Seconds, or a time with one of Spark's units, such as ``500ms`` or ``5min``."""

    def parse(text: str) -> float:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|min|h|d|)\s*", text.lower())
        value = float(match[1]) * _SECONDS[match[2]] if match else -1.0
        if not low <= value < float("inf"):
            raise ValueError(f"a number of seconds from {low:g} on, also with a unit, as in '90s' or '5min'")
        return value

    return parse


def size_bytes(low: int) -> Callable[[str], int]:
    """Bytes, or a size such as ``64m`` or ``64MiB``. Not ``64MB``: Spark's is 1024², the server's is 1000²."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"\s*([0-9]+)\s*(?:([kmgt])(?:ib)?|)\s*", text.lower())
        value = int(match[1]) << _SIZES[match[2] or ""] if match else -1
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
