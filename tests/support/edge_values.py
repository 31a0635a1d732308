"""Columns of every type with the values on which implementations of Spark's hash differ."""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

RANDOM = random.Random(20_240_607)


def integers(bits: int) -> list[int | None]:
    top = 1 << (bits - 1)
    edges: list[int | None] = [0, 1, -1, 42, top - 1, -top, None]
    return edges + [RANDOM.randrange(-top, top) for _ in range(300)]


def floats() -> list[float | None]:
    edges: list[float | None] = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, None]
    return edges + [math.ldexp(RANDOM.uniform(-1, 1), RANDOM.randrange(-120, 120)) for _ in range(300)]


def decimals(precision: int, scale: int) -> list[decimal.Decimal | None]:
    top = 10**precision
    edges = [0, 1, -1, top - 1, 1 - top]
    edges += [sign * 2**bits + step for bits in range(7, 127, 8) for sign in (1, -1) for step in (-1, 0, 1)]
    edges += [
        RANDOM.randrange(1 - 10**digits, 10**digits) for digits in range(1, precision) for _ in range(5)
    ]
    with decimal.localcontext(prec=80):
        return [None, *(decimal.Decimal(edge).scaleb(-scale) for edge in edges if abs(edge) < top)]


def strings() -> list[str | None]:
    alphabet = "aZ09 _é߀漢😀\x00\x7f"
    texts = ["".join(RANDOM.choices(alphabet, k=length)) for length in range(40) for _ in range(8)]
    return ["", None, "a", "abc", "abcd", "abcde", "é", "x" * 1_000, *texts, "y" * 70_001]


def binaries() -> list[bytes | None]:
    return [b"", None, b"\x80", b"\xff\xfe\xfd", *(RANDOM.randbytes(size % 40) for size in range(300))]


def with_nulls(values: list[Any]) -> list[Any]:
    return [None if RANDOM.random() < 0.15 else value for value in values]


def lists(elements: list[Any]) -> list[Any]:
    return [None, [], [None], *(RANDOM.choices(elements, k=RANDOM.randrange(6)) for _ in range(200))]


def structs() -> list[dict[str, Any] | None]:
    rows = zip(integers(32), floats(), lists(strings()[:40]), strict=False)
    return [None, *({"i": i, "d": d, "l": texts} for i, d, texts in rows)]


STRUCT = pa.struct([("i", pa.int32()), ("d", pa.float64()), ("l", pa.list_(pa.string()))])

COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "boolean": lambda: pa.array([True, False, None] * 40),
    "int8": lambda: pa.array(integers(8), pa.int8()),
    "int16": lambda: pa.array(integers(16), pa.int16()),
    "int32": lambda: pa.array(integers(32), pa.int32()),
    "int64": lambda: pa.array(integers(64), pa.int64()),
    "float32": lambda: pa.array(floats(), pa.float32()),
    "float64": lambda: pa.array(floats(), pa.float64()),
    "date": lambda: pa.array(integers(20), pa.int32()).cast(pa.date32()),
    "timestamp": lambda: pa.array(integers(50), pa.int64()).cast(pa.timestamp("us", "UTC")),
    "timestamp_ntz": lambda: pa.array(integers(50), pa.int64()).cast(pa.timestamp("us")),
    "timestamp_ms": lambda: pa.array(integers(40), pa.int64()).cast(pa.timestamp("ms", "UTC")),
    "timestamp_ns": lambda: pa.array(integers(60), pa.int64()).cast(pa.timestamp("ns")),
    "duration": lambda: pa.array(integers(50), pa.int64()).cast(pa.duration("us")),
    "duration_ns": lambda: COLUMNS["duration"]().cast(pa.duration("ns")),
    "duration_s": lambda: pa.array(integers(40), pa.int64()).cast(pa.duration("s")),
    "time_ns": lambda: pa.array([abs(i or 0) for i in integers(46)], pa.int64()).cast(pa.time64("ns")),
    "time": lambda: pa.array([abs(i or 0) for i in integers(36)], pa.int64()).cast(pa.time64("us")),
    "decimal(9,2)": lambda: pa.array(decimals(9, 2), pa.decimal128(9, 2)),
    "decimal(18,4)": lambda: pa.array(decimals(18, 4), pa.decimal128(18, 4)),
    "decimal(19,0)": lambda: pa.array(decimals(19, 0), pa.decimal128(19, 0)),
    "decimal(38,10)": lambda: pa.array(decimals(38, 10), pa.decimal128(38, 10)),
    "string": lambda: pa.array(strings()),
    "large_string": lambda: pa.array(strings(), pa.large_string()),
    "binary": lambda: pa.array(binaries()),
    "fixed_size_binary": lambda: pa.array([RANDOM.randbytes(7) for _ in range(50)], pa.binary(7)),
    "array of int": lambda: pa.array(lists(integers(32)), pa.list_(pa.int32())),
    "array of array of string": lambda: pa.array(
        lists(lists(strings()[:60])), pa.list_(pa.list_(pa.string()))
    ),
    "struct": lambda: pa.array(structs(), STRUCT),
    "array of struct": lambda: pa.array(lists(structs()), pa.list_(STRUCT)),
    "null": lambda: pa.nulls(20),
}
