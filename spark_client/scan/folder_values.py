"""The types of folders' values ``name=value``: those of Spark where it is int, bigint, double, date or timestamp.

All else is text, also where Spark has ``decimal``, as for ``1e5``, or ``time``. A type that is given counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest

NULL = "__HIVE_DEFAULT_PARTITION__"
_NUMBER = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?)")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9])?)?")
_INT, _LONG, _DOUBLE, _DATE, _TEXT = pa.int32(), pa.int64(), pa.float64(), pa.date32(), pa.string()
_LOCAL, _INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")


def unescaped(text: str) -> str:
    """The text without Spark's escapes, each of which is one character."""
    return re.sub("%([0-9A-Fa-f]{2})", lambda escape: chr(int(escape[1], 16)), text)


@dataclass(frozen=True)
class FolderRules:
    """Whether the session finds types, the type of its times, and the microseconds since 1970 of such texts."""

    infers: bool = True
    time: pa.DataType = _LOCAL
    instants: Callable[[Sequence[str]], Sequence[int]] | None = None

    def values(self, name: str, texts: Iterable[str], kind: pa.DataType | None = None) -> dict[str, Any]:
        """Each text's value as pyarrow's scalar. Raises InvalidRequest: one is none of ``kind``."""
        known = {text: unescaped(text) for text in texts if text != NULL}
        kind = kind or self._common({self._kind(text) for text in known})
        read: list[Any] = list(known.values())
        try:
            if pa.types.is_timestamp(kind) and kind.tz and self.instants and all(map(_TIME.fullmatch, read)):
                list(
                    map(datetime.fromisoformat, read)
                )  # raises for what is no day, which Spark may cast to null
                kind, read = _INSTANT, list(self.instants(read) if read else ())
            elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
                read = [int(text) if pa.types.is_integer(kind) else float(text) for text in read]
            values = {text: pa.scalar(value).cast(kind) for text, value in zip(known, read, strict=True)}
            [value.as_py() for value in values.values()]  # as pyarrow's plan of a dataset does
        except (ValueError, OverflowError, pa.ArrowException) as error:
            what = f"scan: a folder of column {name!r} has a value that is no {kind} of Python's ({error})"
            raise InvalidRequest(f"{what}; give schema= with it as string", column=name) from error
        return values | {NULL: pa.scalar(None, kind)}

    def _kind(self, text: str) -> pa.DataType:
        plain = unescaped(text)
        with suppress(ValueError):
            if self.infers and _NUMBER.fullmatch(text) and re.fullmatch("[+-]?[0-9]+", text):
                size = max(int(text), -1 - int(text))
                return _INT if size < 1 << 31 else _LONG if size < 1 << 63 else _TEXT
            if self.infers and _NUMBER.fullmatch(
                text
            ):  # with an exponent that is not negative a decimal in Spark
                exponent = Decimal(text).as_tuple().exponent
                return _TEXT if isinstance(exponent, int) and exponent >= 0 else _DOUBLE
            if self.infers and _TIME.fullmatch(plain):
                datetime.fromisoformat(plain)
                return self.time if len(plain) > 10 else _DATE if plain == text else _TEXT
        return _TEXT

    def _common(self, kinds: set[pa.DataType]) -> pa.DataType:
        rules = (({_INT, _LONG}, _LONG), ({_INT, _DOUBLE}, _DOUBLE), ({_DATE, self.time}, self.time))
        one = next(iter(kinds)) if len(kinds) == 1 else _TEXT if kinds else pa.null()
        return next((kind for both, kind in rules if kinds == both), one)
