"""Names of datasets.

Of a dataset over several servers a server may have a copy of what another one holds. It is a dataset like others, under
:func:`copy_name`.
"""

from __future__ import annotations

import hashlib
import re

from .errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}(~[0-9a-f]{16})?")


def check_dataset_name(name: object) -> str:
    """Return the name. Raises InvalidRequest if it is not 1 to 200 of ``A-Z a-z 0-9 . _ / -``, also as a
    :func:`copy_name`, has ``..``, or begins with ``/``.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"a dataset's name must be text, not {type(name).__name__}")
    if not _NAME.fullmatch(name) or ".." in name or name.startswith("/"):
        shown = name if len(name) <= 80 else name[:80] + "…"
        raise InvalidRequest(
            f"{shown!r} is not a dataset name: use 1 to 200 characters of A-Z a-z 0-9 . _ / -, "
            "without '..' and without a leading '/'"
        )
    return name


def copy_name(dataset: str, start: str) -> str:
    """The name of a copy of what the server of that start holds of the dataset."""
    return f"{dataset}~{start}"


def original(name: str) -> tuple[str, str | None]:
    """The dataset's name and the server's start, of the name of a copy; the name itself and None of any other one."""
    dataset, _, start = name.partition("~")
    return dataset, start or None


def check_new_dataset_name(name: str, *, copies: bool = False) -> None:
    """Raise InvalidRequest if an element of a new name is empty or ``.``: HTTP clients and proxies rewrite such
    paths; older datasets with such names can still be read and dropped. Also for the name of a copy, without
    ``copies``.
    """
    if "~" in name and not copies:
        raise InvalidRequest(
            f"{name!r} cannot be the name of a new dataset: '~' is in the names of copies, which exchanges write",
            dataset=name,
        )
    if not {"", "."}.isdisjoint(name.split("/")):
        raise InvalidRequest(
            f"{name!r} cannot be the name of a new dataset: leave out '.' and empty elements between slashes, "
            "such as in 'a/./b', 'a//b' and 'a/'",
            dataset=name,
        )


def directory_name(name: str) -> str:
    """A dataset's name as one path element: readable, and different for different names."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
