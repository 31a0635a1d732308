"""Types of columns, as DDL, and which of them Spark compares with which."""

from __future__ import annotations

from random import Random

_DECIMALS = [
    "3,0",
    "5,2",
    "10,0",
    "10,2",
    "17,1",
    "18,4",
    "18,18",
    "19,0",
    "20,0",
    "20,4",
    "38,0",
    "38,18",
    "38,38",
]
NUMBERS = [
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    *(f"decimal({each})" for each in _DECIMALS),
]
INTERVALS = ["interval day", "interval day to second", "interval hour to minute", "interval second"]
_ALONE = ["string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", "time(6)"]
_ODD = ["void", "variant", "interval year to month", "struct<x:string collate UTF8_LCASE>"]
_FAMILIES = [NUMBERS, INTERVALS, *([each] for each in _ALONE)]
SCANNED = {*NUMBERS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"}
"""Of which files have the type."""


def flat(chance: Random) -> str:
    """A type that may be a key."""
    if chance.random() < 0.5:
        return chance.choice(NUMBERS)
    return chance.choice([*_ALONE, *INTERVALS, "string", "string"])


def any_kind(chance: Random, depth: int = 2) -> str:
    """Any type."""
    drawn = chance.random()
    if drawn < 0.04 and depth == 2:
        return chance.choice(_ODD)
    if drawn < 0.65 or not depth:
        return flat(chance)
    part = any_kind(chance, depth - 1)
    if drawn < 0.77:
        return f"array<{part}>"
    if drawn < 0.9:
        return f"struct<x:{flat(chance)},y:{part}>"
    return f"map<{chance.choice(['string', 'int', 'date'])},{part}>"


def relative(kind: str, chance: Random) -> str:
    """A type that Spark may compare with this one: mostly another one of its family."""
    family = next((each for each in _FAMILIES if kind in each), [kind])
    return chance.choice(family) if chance.random() < 0.9 else kind


def relative_of_any(kind: str, chance: Random) -> str:
    """As ``relative``, also inside of arrays."""
    if kind.startswith("array<"):
        return f"array<{relative_of_any(kind[6:-1], chance)}>"
    return relative(kind, chance)


def schema(chance: Random, prefix: str, kinds: list[str]) -> str:
    """DDL of columns ``prefix0``, ``prefix1``…, some of them NOT NULL."""
    texts = []
    for number, kind in enumerate(kinds):
        never = chance.random() < 0.15 and kind not in _ODD
        texts.append(f"{prefix}{number} {kind}{' not null' if never else ''}")
    return ", ".join(texts)
