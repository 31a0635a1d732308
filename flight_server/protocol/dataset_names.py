"""Names of datasets.

A name that ends in a slash and digits is none: in a ticket, and in a path of the bulk lane, that is the number of a
partition. So each text has one meaning, and no reader asks which datasets there are.
"""

from __future__ import annotations

import re

from .errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9._/:=-]{1,200}")
_NUMBERED = re.compile(r"(.*)/([0-9]+)", re.DOTALL)


def check_dataset_name(name: object) -> str:
    """Return the name. Raises InvalidRequest if it is not 1 to 200 of ``A-Z a-z 0-9 . _ / : = -``, ends in ``/`` and
    digits, has ``..``, or an element between slashes that is empty or ``.``: HTTP clients and proxies rewrite such
    paths.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"a dataset's name must be text, not {type(name).__name__}")
    if not _NAME.fullmatch(name) or ".." in name or not {"", "."}.isdisjoint(name.split("/")):
        shown = name if len(name) <= 80 else name[:80] + "…"
        raise InvalidRequest(
            f"{shown!r} is not a dataset name: use 1 to 200 characters of A-Z a-z 0-9 . _ / : = -, without '..', and "
            "without '.' and empty elements between slashes, such as in 'a/./b', 'a//b', '/a' and 'a/'"
        )
    whole, number = numbered(name)
    if number is not None:
        raise InvalidRequest(
            f"{name!r} is not a dataset name, but partition {number} of {whole!r}: a name does not end in '/' and "
            f"digits; write {f'{whole}-{number}'!r}"
        )
    return name


def numbered(text: str) -> tuple[str, str | None]:
    """The text without a slash and digits at its end, and the digits; the whole text and None if it has none."""
    parts = _NUMBERED.fullmatch(text)
    return (text, None) if parts is None else (parts[1], parts[2])
