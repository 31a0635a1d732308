"""How commands print: tables for people, JSON for programs.

Texts that come from a server reach the terminal without control characters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from flight_server.protocol import FlightShuffleError
from spark_client.arrow import readable_size

_WIDE = 100_000
_CELL_CHARACTERS = 80


def print_line(text: str) -> None:
    """Print it for people."""
    sys.stdout.write(f"{printable(text)}\n")


def print_json(value: Any) -> None:
    """One line."""
    sys.stdout.write(f"{json.dumps(value, default=str)}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A column whose name begins with ``>`` is one of numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        made.add_row(*(cell(each) for each in row))
    # A table that goes into a pipe or file is not cut to a width.
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=width is not None)
    console.print(made)


def cell(value: object) -> str:
    """The value in few characters; a dash for None."""
    text = "-" if value is None else f"{value:,}" if isinstance(value, int) else printable(str(value))
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 1]}…"


def without_calls(error: FlightShuffleError) -> str:
    """The error's message; the server's, where the client has explained it by calls of Python."""
    explained = error.__context__
    return explained.message if type(explained) is type(error) else error.message


def printable(text: str) -> str:
    """The text without control characters."""
    return "".join(each if each.isprintable() else "�" for each in text)


def size(size_bytes: int | None) -> str:
    """Such as ``3.0 MiB``; a dash for None."""
    return "-" if size_bytes is None else readable_size(size_bytes)


def used(used_bytes: int, limit_bytes: int | None) -> str:
    """Such as ``3.0 MiB of 64.0 MiB``."""
    return size(used_bytes) if limit_bytes is None else f"{size(used_bytes)} of {size(limit_bytes)}"


def duration(seconds: float) -> str:
    """For people: the two greatest units, such as ``6 d 23 h``."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, length)
        if parts or number or unit == "s":
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])
