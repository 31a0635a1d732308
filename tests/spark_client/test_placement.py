"""Placement against real Spark, row for row, and against a scalar reference of Spark's definition."""

from __future__ import annotations

import decimal
import math
import os
import random
import struct
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_client import murmur3
from spark_client.placement import (
    SLICE_ROWS,
    find_keys,
    partition_ids,
    round_robin_ids,
    round_robin_start,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


# --- Against Spark ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    yield session
    session.stop()


def assert_placed_as_by_spark(
    spark: SparkSession, batch: pa.RecordBatch, keys: list[str], partitions: int
) -> None:
    from pyspark.sql import functions as f

    table = pa.table(batch.columns, names=batch.schema.names)
    rows = spark.createDataFrame(table.append_column("row", pa.array(range(batch.num_rows), pa.int64())))
    by_hash = rows.select("row", f.pmod(f.hash(*keys), f.lit(partitions)).alias("id"))
    by_exchange = rows.repartition(partitions, *keys).select("row", f.spark_partition_id().alias("id"))
    ours = partition_ids(batch, keys, partitions).tolist()
    for theirs in (by_hash, by_exchange):
        placed = theirs.toArrow().sort_by("row")
        assert placed["row"].to_pylist() == list(range(batch.num_rows))
        assert placed["id"].to_pylist() == ours


@pytest.mark.spark
@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_is_placed_as_by_spark(spark: SparkSession, name: str) -> None:
    batch = pa.record_batch([COLUMNS[name]()], names=["key"])
    assert_placed_as_by_spark(spark, batch, ["key"], 200)


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 2, 7, 16, 1_000])
def test_several_keys_are_placed_as_by_spark(spark: SparkSession, partitions: int) -> None:
    rows = 300
    names = ["int64", "string", "decimal(38,10)", "timestamp", "float64", "array of int", "boolean"]
    columns = [pa.array(with_nulls(COLUMNS[name]().to_pylist() * 3), COLUMNS[name]().type) for name in names]
    batch = pa.record_batch([column.slice(0, rows) for column in columns], names=list("abcdefg"))
    assert_placed_as_by_spark(spark, batch, ["c", "a", "b"], partitions)
    assert_placed_as_by_spark(spark, batch, list("abcdefg"), partitions)


@pytest.mark.spark
def test_spark_refuses_maps_and_so_do_we(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    batch = pa.record_batch([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], names=["m"])
    with pytest.raises(AnalysisException, match="HASH_MAP_TYPE"):
        spark.createDataFrame(pa.table(batch.columns, names=["m"])).selectExpr("hash(m)")
    with pytest.raises(TypeError, match="'m' contains a map"):
        partition_ids(batch, ["m"], 4)


# --- Against the reference --------------------------------------------------------------------------------


def scalar_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        top = 1 << (kind.bit_width - 1)
        return st.integers(-top, top - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pa.types.is_decimal(kind):
        return st.decimals(allow_nan=False, allow_infinity=False, places=kind.scale).filter(
            lambda value: len(value.as_tuple().digits) <= kind.precision
        )
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    return st.binary(max_size=30) if "binary" in str(kind) else st.text(max_size=20)


SCALARS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.decimal128(10, 3), pa.decimal128(30, 5), pa.decimal64(12, 0), pa.binary(5), pa.binary()),
    *(pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view()),
]


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    shape = (
        draw(st.sampled_from(["scalar"] * 3 + ["list", "large_list", "fixed_list", "struct"]))
        if depth
        else ""
    )
    if shape == "struct":
        fields = [draw(typed_values(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        kind = pa.struct([(f"f{index}", field) for index, (field, _) in enumerate(fields)])
        values = st.fixed_dictionaries({f"f{index}": inner for index, (_, inner) in enumerate(fields)})
        return kind, st.none() | values
    if "list" in shape:
        element, inner = draw(typed_values(depth - 1))
        if shape == "fixed_list":
            return pa.list_(element, 3), st.none() | st.lists(inner, min_size=3, max_size=3)
        make = pa.list_ if shape == "list" else pa.large_list
        return make(element), st.none() | st.lists(inner, max_size=4)
    kind = draw(st.sampled_from(SCALARS))
    return kind, st.none() | scalar_values(kind)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 12))
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        kind, values = draw(typed_values())
        column = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
        columns.append(column)
    batch = pa.record_batch(columns, names=[f"c{index}" for index in range(len(columns))])
    first = draw(st.integers(0, rows))
    return batch.slice(first, draw(st.integers(0, rows - first)))


@given(batch=batches(), partitions=st.sampled_from([1, 2, 3, 16, 200, 2**31 - 1]))
@settings(max_examples=300, deadline=None)
def test_any_slice_of_any_schema_is_placed_as_the_reference_says(
    batch: pa.RecordBatch, partitions: int
) -> None:
    assert partition_ids(batch, batch.schema.names, partitions).tolist() == reference_ids(
        batch, batch.schema.names, partitions
    )


@pytest.mark.parametrize(
    "name", [name for name in COLUMNS if not name.startswith(("date", "time", "duration"))]
)
def test_edge_values_are_placed_as_the_reference_says(name: str) -> None:
    batch = pa.record_batch([COLUMNS[name]()], names=["key"])
    assert partition_ids(batch, ["key"], 2**31 - 1).tolist() == reference_ids(batch, ["key"], 2**31 - 1)


def test_batches_longer_than_a_slice_are_placed_without_a_seam() -> None:
    rows = 2 * SLICE_ROWS + 77
    values = np.random.default_rng(7).integers(-(2**40), 2**40, rows)
    numbers = pa.array(values, mask=values % 5 == 0)
    texts = pa.array([None if value % 7 == 0 else str(value)[: value % 11] for value in values.tolist()])
    whole = pa.record_batch([numbers, texts], names=["n", "t"])
    for batch in (whole, whole.slice(3), whole.slice(SLICE_ROWS - 1, SLICE_ROWS + 2)):
        ids = partition_ids(batch, ["n", "t"], 97)
        assert ids.dtype == np.int32
        assert ids.tolist() == reference_ids(batch, ["n", "t"], 97)


def test_one_very_long_string_among_short_ones_is_hashed_whole() -> None:
    long = "".join(map(str, range(2 * murmur3.TAIL_WORDS)))
    assert len(long) > 8 * murmur3.TAIL_WORDS
    texts = pa.array([*map(str, range(100)), long, *("ab" * length for length in range(60)), long[:-1]])
    batch = pa.record_batch([texts], names=["t"])
    assert partition_ids(batch, ["t"], 1_000).tolist() == reference_ids(batch, ["t"], 1_000)


@pytest.mark.parametrize("index_type", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()])
def test_dictionaries_are_placed_by_their_values(index_type: pa.DataType) -> None:
    indices = pa.array([0, 1, None, 2, 3, 1, 0, None] * 20, index_type)
    dictionary = pa.array(["a", "bcdef", None, "g" * 9])
    encoded = pa.DictionaryArray.from_arrays(indices, dictionary)
    plain = pa.record_batch([encoded.cast(pa.string())], names=["k"])
    batch = pa.record_batch([encoded], names=["k"])
    assert partition_ids(batch, ["k"], 50).tolist() == partition_ids(plain, ["k"], 50).tolist()
    part = batch.slice(3, 100)
    assert partition_ids(part, ["k"], 50).tolist() == partition_ids(plain.slice(3, 100), ["k"], 50).tolist()


def test_a_dictionary_inside_a_list_inside_a_struct_is_placed_by_its_values() -> None:
    encoded = pa.array(["x", "yy", None, "x", "zzz", "yy"]).dictionary_encode()
    nested = pa.ListArray.from_arrays(pa.array([0, 2, None, 3, 6], pa.int32()), encoded)
    batch = pa.record_batch([pa.StructArray.from_arrays([nested], ["l"])], names=["k"])
    assert partition_ids(batch, ["k"], 1_000).tolist() == reference_ids(batch, ["k"], 1_000)


def test_garbage_under_a_null_is_not_followed() -> None:
    # A null's index may point anywhere: the format says that nobody looks.
    wild = pa.Array.from_buffers(
        pa.int32(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, 2**31 - 1, 0], np.int32))]
    )
    encoded = pa.DictionaryArray.from_arrays(wild, pa.array(["a", "b"]), safe=False)
    none_at_all = pa.DictionaryArray.from_arrays(pa.nulls(3, pa.int32()), pa.array([], pa.string()))
    batch = pa.record_batch([encoded, none_at_all], names=["k", "n"])
    plain = pa.record_batch([pa.array(["b", None, "a"])], names=["k"])
    assert partition_ids(batch, ["n", "k"], 99).tolist() == partition_ids(plain, ["k"], 99).tolist()


def test_every_nan_and_both_zeros_are_one_value_each() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    zeros = np.array([0.0, -0.0])
    for values in (nans, zeros, np.array([0x7FC00000, 0x7F800001, 0xFFC00000], np.uint32).view(np.float32)):
        batch = pa.record_batch([pa.array(values)], names=["x"])
        assert len(set(partition_ids(batch, ["x"], 2**31 - 1).tolist())) == 1


@pytest.mark.parametrize("unit", [pa.timestamp, pa.duration])
def test_times_of_any_unit_are_placed_by_their_microsecond(unit: Callable[[str], pa.DataType]) -> None:
    def ids(values: list[int], name: str) -> list[int]:
        times = pa.array(values, pa.int64()).cast(unit(name))
        return list(partition_ids(pa.record_batch([times], names=["t"]), ["t"], 2**31 - 1))

    assert ids([1_999, -1_999, -1, 7_000], "ns") == ids([1, -2, -1, 7], "us")
    assert ids([3, -3], "ms") == ids([3_000, -3_000], "us")
    assert ids([3, -3], "s") == ids([3_000_000, -3_000_000], "us")


# --- What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1], pa.uint32()), "'k' contains uint32, a type that Spark cannot hold; cast it to int64"),
        (pa.array([1], pa.date64()), r"'k' contains date64\[ms\].*cast it to date32"),
        (pa.array([1.0], pa.float16()), "cast it to float32"),
        (pa.array([[1]], pa.list_(pa.uint8())), r"'k\.element' contains uint8"),
        (pa.array([{"a": {"b": 1}}], pa.struct({"a": pa.struct({"b": pa.uint64()})})), r"'k\.a\.b' contains"),
        (pa.array([None], pa.month_day_nano_interval()), "a type that Spark cannot hold$"),
    ],
)
def test_types_that_spark_cannot_hold_are_refused_by_name(column: pa.Array, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        partition_ids(pa.record_batch([column], names=["k"]), ["k"], 4)


def test_a_key_is_an_exact_name_or_else_the_only_one_in_another_case() -> None:
    schema = pa.schema([("id", pa.int64()), ("ID", pa.int64()), ("Name", pa.string())])
    assert find_keys(schema, ["ID", "id", "name"]) == [1, 0, 2]
    with pytest.raises(
        ValueError, match="'Id' could be any of 2 columns; the columns are 'id', 'ID', 'Name'"
    ):
        find_keys(schema, ["Id"])
    with pytest.raises(ValueError, match="no column is named 'nome'; the columns are 'id', 'ID', 'Name'"):
        find_keys(schema, ["nome"])
    with pytest.raises(ValueError, match="could be any of 2 columns"):
        find_keys(pa.schema([("a", pa.int64()), ("a", pa.string())]), ["a"])


@pytest.mark.parametrize("partitions", [0, -1, 2**31])
def test_an_impossible_number_of_partitions_is_refused(partitions: int) -> None:
    batch = pa.record_batch([pa.array([1])], names=["a"])
    for call in (
        lambda: partition_ids(batch, ["a"], partitions),
        lambda: round_robin_ids(1, 0, partitions),
        lambda: round_robin_start(0, partitions),
    ):
        with pytest.raises(ValueError, match="number of partitions"):
            call()
    with pytest.raises(ValueError, match="at least one key"):
        partition_ids(batch, [], 4)


# --- Without keys -----------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 50), max_size=6),
    start=st.integers(0, 10**12),
    partitions=st.integers(1, 40),
)
def test_round_robin_goes_on_over_the_batches_of_a_producer(
    sizes: list[int], start: int, partitions: int
) -> None:
    dealt: list[int] = []
    for size in sizes:
        ids = round_robin_ids(size, start + len(dealt), partitions)
        assert ids.dtype == np.int32
        dealt += ids.tolist()
    assert dealt == [(start + row) % partitions for row in range(sum(sizes))]


def test_producers_of_one_row_each_fill_the_partitions_evenly() -> None:
    for partitions in (1, 7, 16, 200):
        starts = [round_robin_start(producer, partitions) for producer in range(10 * partitions)]
        rows = np.bincount(starts, minlength=partitions)
        assert rows.size == partitions
        assert rows.min() >= 8
        assert rows.max() <= 12
