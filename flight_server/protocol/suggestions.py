"""The name that was probably meant, for messages about one that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LIKENESS = 0.6


def nearest(name: object, names: Iterable[str], likeness: float = _LIKENESS) -> str | None:
    """Of the names the one that is most like this one, the first of several; case does not count. None if none is."""
    known = {each.casefold(): each for each in reversed([*names])}
    near = difflib.get_close_matches(name.casefold(), known, 1, likeness) if isinstance(name, str) else []
    return known[near[0]] if near else None


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """The end of a message: it asks for the nearest name; empty if none is near."""
    near = nearest(name, names)
    return "" if near is None else f"; did you mean {near!r}?"
