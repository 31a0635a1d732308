"""The types and values that Spark finds in the names of folders ``name=value``.

Guarantee: each text has the type that ``spark.read`` infers for it, and several texts of a column the type that Spark
finds for all of them: ``int``, ``bigint``, ``decimal`` (whole numbers of up to 38 digits, ``1e5`` among them),
``double`` (as Java reads it: ``NaN`` and ``1d`` are such), ``date`` (``2024-05-31``), ``timestamp``
(``2024-05-31 10:00:00``), ``time`` (``10:00:00``), else ``string``. As in Spark escapes count only in texts and times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.jobs import is_on, spark_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NULL = "__HIVE_DEFAULT_PARTITION__"

_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
# Java takes the digits of all scripts in whole numbers.
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d{1,10}))?")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_DATE = r"([0-9]{4}|-[0-9]{4,7}|\+[0-9]{5,7})-([0-9]{2})-([0-9]{2})"
_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})"
_INSTANT = re.compile(rf"{_DATE} {_CLOCK}(?:\.[0-9])?")
_DAY = re.compile(_DATE)
_TIME = re.compile(_CLOCK + r"(?:\.[0-9]{1,6})?")
_BLANKS = "".join(map(chr, range(33)))
_TIMESTAMP = pa.timestamp("us")
_DIGITS = {pa.int32(): 10, pa.int64(): 20}
_MOST_DIGITS = 38


def unescaped(text: str) -> str:
    """The text without Spark's escapes, each of which is one character."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


@dataclass(frozen=True)
class FolderRules:
    """The settings of a session that decide how folders are read.

    Args:
        infers: ``spark.sql.sources.partitionColumnTypeInference.enabled``; otherwise all values are texts.
        case_sensitive: ``spark.sql.caseSensitive``.
        instants: gives the microseconds since 1970 of times in the session's zone; None where
            ``spark.sql.timestampType`` says that times have no zone.
    """

    infers: bool = True
    case_sensitive: bool = False
    instants: Callable[[Sequence[str]], Sequence[int]] | None = None

    @classmethod
    def of(cls, spark: SparkSession) -> FolderRules:
        """Those of a session. Runs no job."""

        def instants(texts: Sequence[str]) -> Sequence[int]:
            # By Spark itself, whose zones have names that Python does not know. The texts have no quotes.
            every = ", ".join(f"'{text}'" for text in texts)
            row = spark.sql(
                f"SELECT transform(array({every}), t -> unix_micros(CAST(t AS TIMESTAMP_LTZ)))"
            ).first()
            return list(row[0]) if row is not None else []

        return cls(
            is_on(spark, "spark.sql.sources.partitionColumnTypeInference.enabled"),
            is_on(spark, "spark.sql.caseSensitive"),
            None if spark_setting(spark, "spark.sql.timestampType") == "TIMESTAMP_NTZ" else instants,
        )

    def key(self, name: str) -> str:
        """A key that is equal for names of one column."""
        return name if self.case_sensitive else name.lower()

    def values(self, column: str, texts: Iterable[str]) -> Mapping[str, Any]:
        """The value of each text of a column, as pyarrow's scalar of the column's type. Raises InvalidRequest: a date
        or time is not of the years 1 to 9999, which is all that Python has.
        """
        found = list(dict.fromkeys(texts))
        kind = reduce(_wider, map(self._kind, found), pa.null())
        try:
            values = self._values(kind, [None if text == NULL else text for text in found])
        except (OverflowError, ValueError) as error:
            raise InvalidRequest(
                f"scan: a folder of column {column!r} has a date or time that Python cannot hold ({error}); set "
                "spark.sql.sources.partitionColumnTypeInference.enabled to false to read the column as text",
                column=column,
            ) from error
        return dict(zip(found, values, strict=True))

    def _kind(self, text: str) -> pa.DataType:
        if text == NULL:
            return pa.null()
        if not self.infers:
            return pa.string()
        if _INTEGER.fullmatch(text):
            number = int(text)
            size = max(number, -1 - number)
            if size < 1 << 63:
                return pa.int32() if size < 1 << 31 else pa.int64()
        if (digits := _digits(text)) is not None:
            return pa.decimal128(digits, 0)
        if _DOUBLE.fullmatch(text.strip(_BLANKS)):
            return pa.float64()
        plain = unescaped(text)
        if (found := _INSTANT.fullmatch(plain)) is not None:
            return (
                _TIMESTAMP if _is_day(*found.groups()[:3]) and _is_time(*found.groups()[3:]) else pa.string()
            )
        if (found := _DAY.fullmatch(text)) is not None:
            return pa.date32() if _is_day(*found.groups()) else pa.string()
        found = _TIME.fullmatch(plain)
        return pa.time64("us") if found is not None and _is_time(*found.groups()) else pa.string()

    def _values(self, kind: pa.DataType, texts: Sequence[str | None]) -> list[Any]:
        if kind == _TIMESTAMP:
            return self._times(texts)
        read = _READERS.get(kind, Decimal if pa.types.is_decimal(kind) else unescaped)
        return [pa.scalar(None if text is None else read(text), kind) for text in texts]

    def _times(self, texts: Sequence[str | None]) -> list[Any]:
        plain = [unescaped(text) for text in texts if text is not None]
        numbers: Iterator[Any] = iter(
            map(datetime.fromisoformat, plain) if self.instants is None else self.instants(plain)
        )
        kind = _TIMESTAMP if self.instants is None else pa.timestamp("us", "UTC")
        found = [pa.scalar(None if text is None else next(numbers), kind) for text in texts]
        for each in found:
            each.as_py()  # as pyarrow's plan of a dataset does
        return found


def _double(text: str) -> float:
    plain = text.strip(_BLANKS)
    found = _DOUBLE.fullmatch(plain)
    if found is None or found[1] is None:
        return float(plain if plain.endswith(("N", "y")) else plain.rstrip("fFdD"))
    try:
        return float.fromhex(plain.rstrip("fFdD"))
    except OverflowError:
        return float("-inf" if plain.startswith("-") else "inf")


_READERS: dict[pa.DataType, Callable[[str], Any]] = {
    pa.int32(): int,
    pa.int64(): int,
    pa.float64(): _double,
    pa.date32(): date.fromisoformat,
    pa.time64("us"): lambda text: time.fromisoformat(unescaped(text)),
}


def _digits(text: str) -> int | None:
    """How many digits a whole number has; None for other texts and more than a decimal holds."""
    found = _DECIMAL.fullmatch(text)
    if found is None:
        return None
    exponent = int(found[3] or 0) - len(found[1] or found[2] or "")
    if exponent < 0:
        return None
    digits = len(Decimal(text).as_tuple().digits) + exponent
    return digits if digits <= _MOST_DIGITS else None


def _is_day(year: str, month: str, day: str) -> bool:
    try:
        # Days repeat every 400 years.
        date(2000 + int(year) % 400, int(month), int(day))
    except ValueError:
        return False
    return not year.startswith("-0000")


def _is_time(hours: str, minutes: str, seconds: str) -> bool:
    return int(hours) < 24 and int(minutes) < 60 and int(seconds) < 60


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column with values of both."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int32(), pa.float64()}:
        return pa.float64()
    if {one, other} == {pa.date32(), _TIMESTAMP}:
        return _TIMESTAMP
    digits = [each.precision if pa.types.is_decimal(each) else _DIGITS.get(each) for each in (one, other)]
    if None in digits:
        return pa.string()
    return pa.decimal128(max(filter(None, digits)), 0) if _has_decimal(one, other) else pa.int64()


def _has_decimal(*kinds: pa.DataType) -> bool:
    return any(map(pa.types.is_decimal, kinds))
