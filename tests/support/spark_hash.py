"""Spark's hash of one value at a time, as its definition reads, and values on which implementations differ."""

from __future__ import annotations

import decimal
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

# --- A scalar reference -----------------------------------------------------------------------------------

WORD = 0xFFFFFFFF


def rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & WORD


def mixed(state: int, word: int) -> int:
    word = rotated(word * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD
    return (rotated(state ^ word, 13) * 5 + 0xE6546B64) & WORD


def finished(state: int, length_bytes: int) -> int:
    state ^= length_bytes
    state = (state ^ state >> 16) * 0x85EBCA6B & WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & WORD
    return state ^ state >> 16


def hash_of_bytes(data: bytes, seed: int) -> int:
    whole = len(data) // 4 * 4
    for place in range(0, whole, 4):
        seed = mixed(seed, int.from_bytes(data[place : place + 4], "little"))
    for byte in data[whole:]:
        seed = mixed(seed, (byte - 256 if byte > 127 else byte) & WORD)
    return finished(seed, len(data))


def hash_of_int(value: int, seed: int) -> int:
    return finished(mixed(seed, value & WORD), 4)


def hash_of_long(value: int, seed: int) -> int:
    return finished(mixed(mixed(seed, value & WORD), value >> 32 & WORD), 8)


def hash_of_float(value: float, kind: pa.DataType, seed: int) -> int:
    if kind == pa.float32():
        bits = 0x7FC00000 if math.isnan(value) else struct.unpack("<i", struct.pack("<f", value or 0.0))[0]
        return hash_of_int(bits, seed)
    bits = 0x7FF8 << 48 if math.isnan(value) else struct.unpack("<q", struct.pack("<d", value or 0.0))[0]
    return hash_of_long(bits, seed)


def hash_of_decimal(value: decimal.Decimal, kind: pa.DataType, seed: int) -> int:
    with decimal.localcontext(prec=80):
        unscaled = int(value.scaleb(kind.scale))
    if kind.precision <= 18:
        return hash_of_long(unscaled, seed)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return hash_of_bytes(unscaled.to_bytes(size, "big", signed=True), seed)


def hash_of(value: Any, kind: pa.DataType, seed: int) -> int:
    """Spark's hash of one Python value; times and dates are given as their integers."""
    if value is None:
        return seed
    if pa.types.is_dictionary(kind):
        return hash_of(value, kind.value_type, seed)
    if pa.types.is_struct(kind):
        for field in kind.fields:
            seed = hash_of(value[field.name], field.type, seed)
        return seed
    if pa.types.is_nested(kind):
        for element in value:
            seed = hash_of(element, kind.value_type, seed)
        return seed
    if pa.types.is_floating(kind):
        return hash_of_float(value, kind, seed)
    if pa.types.is_decimal(kind):
        return hash_of_decimal(value, kind, seed)
    if isinstance(value, str | bytes):
        return hash_of_bytes(value.encode() if isinstance(value, str) else value, seed)
    return (hash_of_long if kind.bit_width == 64 else hash_of_int)(int(value), seed)


def reference_ids(batch: pa.RecordBatch, keys: list[str], partitions: int) -> list[int]:
    columns = [(batch.schema.field(key).type, batch.column(key).to_pylist()) for key in keys]
    ids = []
    for row in range(batch.num_rows):
        state = 42
        for kind, values in columns:
            state = hash_of(values[row], kind, state)
        ids.append((state - (1 << 32) if state >> 31 else state) % partitions)
    return ids


# --- Data with the values where implementations differ ----------------------------------------------------

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
