"""Sort keys, as a user writes them.

Guarantee: a :class:`SortKey` that :func:`sort_key` returns has Spark's defaults: ascending with nulls first, descending
with nulls last.

Forms
    ``"time"``, ``"time desc"``, ``"time asc nulls last"``, ``("time", "desc")``, ``("time", "descending", "at_end")``,
    or a :class:`SortKey`. Words are taken in any case. A text that is a column's whole name is that column, so ``"sales
    desc"`` may be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flight_server.protocol import InvalidRequest

from .sort_codes import SortKey

_DIRECTIONS = {"asc": False, "ascending": False, "desc": True, "descending": True}
_NULLS = {
    "nulls first": True,
    "first": True,
    "at_start": True,
    "nulls last": False,
    "last": False,
    "at_end": False,
}
_WORDS = re.compile(r"(?is)(.*?)(?:\s+(asc|ascending|desc|descending))?(?:\s+(nulls\s+(?:first|last)))?\s*")
FORMS = "'time', 'time desc', 'time asc nulls last' or ('time', 'desc')"


def sort_key(given: Any, where: str, find: Callable[[str], str | None]) -> SortKey:
    """The key that ``given`` stands for; ``find`` gives the column that a name stands for, or None. Raises
    InvalidRequest: ``given`` has none of the forms above. A name without a column is left as it is.
    """
    if isinstance(given, SortKey):
        return replace(given, column=find(given.column) or given.column)
    if isinstance(given, str):
        column = find(given)
        if column is not None:
            return SortKey(column)
        found = _WORDS.fullmatch(given)
        assert found is not None
        name, direction, nulls = found.groups()
        words: tuple[Any, ...] = (direction or "asc", *(() if nulls is None else (" ".join(nulls.split()),)))
    elif isinstance(given, tuple | list) and len(given) in (2, 3) and isinstance(given[0], str):
        name, *others = given
        words = tuple(others)
    else:
        raise InvalidRequest(f"{where}: {_text_of(given)} is no key to sort by; write {FORMS}")
    descending, nulls_first = _meaning(words, f"{where}: {_text_of(given)}")
    return SortKey(find(name) or name, descending, nulls_first)


def is_pair(given: Any) -> bool:
    """Whether it is one key in the form ``("time", "desc")`` and not a list of keys."""
    return (
        isinstance(given, tuple)
        and len(given) in (2, 3)
        and all(isinstance(word, str) for word in given)
        and given[1].lower() in _DIRECTIONS
    )


def _meaning(words: Any, what: str) -> tuple[bool, bool | None]:
    descending, nulls_first = False, None
    for word, known in zip(words, (_DIRECTIONS, _NULLS), strict=False):
        found = known.get(word.lower()) if isinstance(word, str) else None
        if found is None:
            raise InvalidRequest(f"{what}: {_text_of(word)} is none of {', '.join(map(repr, known))}")
        if known is _DIRECTIONS:
            descending = found
        else:
            nulls_first = found
    return descending, nulls_first


def _text_of(given: Any) -> str:
    return repr(given) if isinstance(given, str | tuple | list) else type(given).__name__
