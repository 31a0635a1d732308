"""State tables: the states of an object and the verbs that change them, written once, as a table."""

from __future__ import annotations

import re
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)


def transitions(states: type[State], table: str) -> dict[tuple[State, str], State]:
    """The state that a verb leads to, for each pair that has one. ``table``: a line for each state and a column for
    each verb, columns two spaces apart at least. A cell in small letters names no state: that step is an error.
    """
    (_, *verbs), *rows = (re.split(" {2,}", line.strip()) for line in table.strip().splitlines())
    return {
        (states[name], verb): states[after]
        for name, *cells in rows
        for verb, after in zip(verbs, cells, strict=True)
        if not after.islower()
    }
