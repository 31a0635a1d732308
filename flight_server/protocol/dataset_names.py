"""Names of datasets."""

from __future__ import annotations

import re

from .errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}")


def check_dataset_name(name: object) -> str:
    """Return the name. Raises InvalidRequest if it is not 1 to 200 of ``A-Z a-z 0-9 . _ / -``, has ``..``, or an
    element between slashes that is empty or ``.``: HTTP clients and proxies rewrite such paths.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"a dataset's name must be text, not {type(name).__name__}")
    if not _NAME.fullmatch(name) or ".." in name or not {"", "."}.isdisjoint(name.split("/")):
        shown = name if len(name) <= 80 else name[:80] + "…"
        raise InvalidRequest(
            f"{shown!r} is not a dataset name: use 1 to 200 characters of A-Z a-z 0-9 . _ / -, without '..', and "
            "without '.' and empty elements between slashes, such as in 'a/./b', 'a//b', '/a' and 'a/'"
        )
    return name
