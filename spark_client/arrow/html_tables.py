"""A table of HTML, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def html_table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A head with the names, and a line for each row, of which each value is shown as text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = ("".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
