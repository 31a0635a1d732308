"""Values of every Spark type, with those at the edges: few different ones in a case, so that keys of two tables meet.

Numbers, texts, days and times of a case come from one small pool for each family, whatever the column's type: a key
that is a ``decimal(10,2)`` on one side and a ``double`` on the other then has equal values on both, and near ones.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import numpy as np
from pyspark.sql import types as sql

_INTEGERS = [
    *(0, 0, 1, -1, 2, 3, 7, 127, -128, 128, 255, 32767, -32768, 2**24 + 1, 2**31 - 1, -(2**31), 2**31),
    *(2**53, 2**53 + 1, -(2**53) - 1, 10**18, 2**63 - 1, -(2**63), 2**63 - 513),
]
_FRACTIONS = [
    *("0.1", "0.5", "-0.5", "0.3", "1.1", "2.675", "86071.23", "12345678.91", "99999999.99", "0.29", "-1.25"),
    *("0.1234567890123456789", "99999999999999999999.99", "1E-10", "9E+37", "4.35", "1E-18", "1E-38"),
]
_FLOATS = [
    *(math.nan, math.inf, -math.inf, -0.0, -0.0, 5e-324, 1.7976931348623157e308, 1.401298464324817e-45, 1e16),
    *(float(np.float32(0.1)), 0.1 + 0.2, 1e300, 3.4028234663852886e38),
]
_TAME = [0, 1, -1, 2, 3, 0.5, -0.25, 7, 100, -0.0]
_TEXTS = [
    *("", "a", "b", "ab", "A", "a ", " a", "ä", "a\u0308", "漢", "😀", "\uffff", "\U0010ffff", "a\0b", "\0"),
    *("a" * 300, "x" * 3000, "1", "1.0", "NaN", "ab\u0000", "k1", "k2", "k3"),
]
_BYTES = [b"", b"\x00", b"\xff", b"\xff\xfe", b"\x80", b"a", b"\x00\x00", bytes(range(40)), b"b" * 2000]
_DAYS = [0, 1, -1, 18262, -141428, -141427, -141438, -719162, -719163, 2932896, 2932897, 5_000_000, -800_000]
_DAY_MICROS = 86_400_000_000
_MICROS = [
    *(0, 1, -1, 10**6, 1_585_449_000_000_000, 1_603_594_800_000_000, 253_402_300_799_999_999),
    *(253_402_300_800_000_000, -62_135_596_800_000_000, -62_135_596_800_000_001, -12_219_292_800_000_001),
    *(day * _DAY_MICROS for day in (1, 18262, -141428)),
]
_NANOS = [0, 1000, 86_399_999_999_000, 3_600_000_000_000, 43_200_000_001_000]
_JSON = ["1", "1.0", "null", '"a"', "[1, 2]", '{"b": 1, "a": [null]}', '{"a": [null], "b": 1}', "true"]


class Pools:
    """The values of one case: the same for the same seed.

    Args:
        numbers: instead of drawn ones.
        tame: numbers whose sums and squares are exact in doubles.
    """

    def __init__(self, seed: int, *, tame: bool, numbers: Sequence[float | int | str] = ()) -> None:
        self._seed = seed
        self.numbers = self._some("numbers", _TAME if tame else [*_INTEGERS, *_FRACTIONS, *_FLOATS], 5, 14)
        if tame:
            self.numbers += [math.nan] * (seed % 2)
        self.numbers = list(numbers) or self.numbers
        self.texts = self._some("texts", _TEXTS, 3, 9)
        self.bytes = [*self._some("bytes", _BYTES, 2, 6), *(text.encode() for text in self.texts[:2])]
        self.days = self._some("days", _DAYS, 3, 7)
        self.micros = [*self._some("micros", _MICROS, 3, 7), *(day * _DAY_MICROS for day in self.days[:2])]
        self.nanos = self._some("nanos", _NANOS, 2, 5)

    def _some(self, what: str, given: list[Any], least: int, most: int) -> list[Any]:
        chance = Random(f"{self._seed} {what}")
        return chance.choices(given, k=chance.randint(least, most))

    def column(self, kind: sql.DataType, rows: int, name: str, *, nulls: bool) -> list[Any]:
        """The column's values, for ``pyarrow.array``. The first rows are the same for every number of rows."""
        chance = Random(f"{self._seed} {name}")
        share = chance.choice([0.0, 0.1, 0.1, 0.5]) if nulls else 0.0
        return [
            None if chance.random() < share else self.value(kind, chance, nulls=nulls) for _ in range(rows)
        ]

    def value(self, kind: sql.DataType, chance: Random, *, nulls: bool = True) -> Any:
        """One value; None only where the type has no other."""
        if isinstance(kind, sql.ArrayType):
            return [
                self._part(kind.elementType, chance, nulls=nulls) for _ in range(chance.choice([0, 1, 2, 3]))
            ]
        if isinstance(kind, sql.StructType):
            return {field.name: self._part(field.dataType, chance, nulls=nulls) for field in kind}
        if isinstance(kind, sql.MapType):
            keys = {repr(key): key for key in (self.value(kind.keyType, chance) for _ in range(2))}
            return [(key, self._part(kind.valueType, chance, nulls=nulls)) for key in keys.values()]
        return _PLAIN[type(kind)](self, kind, chance)

    def _part(self, kind: sql.DataType, chance: Random, *, nulls: bool) -> Any:
        return None if nulls and chance.random() < 0.15 else self.value(kind, chance, nulls=nulls)

    def number(self, kind: sql.DataType, chance: Random) -> Any:
        """One of the pool's numbers that the type has, or else 0 or 1."""
        for _ in range(4):
            found = converted(chance.choice(self.numbers), kind)
            if found is not None:
                return found
        return converted(chance.choice([0, 0, 0, 1]), kind) or converted(0, kind)


def converted(number: float | int | str, kind: sql.DataType) -> Any:
    """The number as a value of the type, rounded to its scale; None if it is beyond it."""
    if isinstance(kind, sql.DoubleType):
        return float(number)
    if isinstance(kind, sql.FloatType):
        with np.errstate(over="ignore"):
            return float(np.float32(float(number)))
    if isinstance(number, float) and not math.isfinite(number):
        return None
    exact = Decimal(number)
    if isinstance(kind, sql.DecimalType):
        with localcontext() as context:
            context.prec = 1200
            rounded = exact.quantize(Decimal(1).scaleb(-kind.scale))
        # A zero has no sign in Spark.
        return rounded + 0 if abs(rounded) < Decimal(10) ** (kind.precision - kind.scale) else None
    most = 1 << (_BITS[type(kind)] - 1)
    whole = int(exact)
    return whole if -most <= whole < most else None


_BITS: dict[type[sql.DataType], int] = {
    sql.ByteType: 8,
    sql.ShortType: 16,
    sql.IntegerType: 32,
    sql.LongType: 64,
}


def _interval(pools: Pools, kind: sql.DataType, chance: Random) -> int:
    """Microseconds, whole in the interval's last unit."""
    unit = {0: _DAY_MICROS, 1: 3_600_000_000, 2: 60_000_000, 3: 1}[kind.endField]  # type: ignore[attr-defined]
    return int(chance.choice(pools.micros) // unit * unit)


_Plain = Callable[[Pools, sql.DataType, Random], Any]
_PLAIN: dict[type[sql.DataType], _Plain] = {
    **dict.fromkeys([*_BITS, sql.FloatType, sql.DoubleType, sql.DecimalType], Pools.number),
    sql.BooleanType: lambda _, __, chance: chance.random() < 0.5,
    sql.StringType: lambda pools, _, chance: chance.choice(pools.texts),
    sql.BinaryType: lambda pools, _, chance: chance.choice(pools.bytes),
    sql.DateType: lambda pools, _, chance: chance.choice(pools.days),
    sql.TimestampType: lambda pools, _, chance: chance.choice(pools.micros),
    sql.TimestampNTZType: lambda pools, _, chance: chance.choice(pools.micros),
    sql.TimeType: lambda pools, _, chance: chance.choice(pools.nanos),
    sql.DayTimeIntervalType: _interval,
    sql.YearMonthIntervalType: lambda _, __, chance: chance.randrange(-30, 30),
    sql.VariantType: lambda _, __, chance: chance.choice(_JSON),
    sql.NullType: lambda _, __, ___: None,
}


def bits(number: float) -> int:
    """A double's bits; one NaN for all."""
    (found,) = struct.unpack("<q", struct.pack("<d", math.nan if math.isnan(number) else number))
    return int(found)
