"""Batches of any types come back as one chunk for each column, from one piece of memory."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest

from spark_client.arrow import OneChunk, counts, fits_one_chunk

WORDS = pa.list_(pa.string())
TYPES = [
    pa.null(),
    pa.bool_(),
    pa.int64(),
    pa.float32(),
    pa.decimal128(10, 2),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.binary(5),
    pa.string(),
    pa.large_binary(),
    WORDS,
    pa.list_(WORDS),
    pa.large_list(pa.bool_()),
    pa.list_(pa.float64(), 3),
    pa.struct([("a", pa.int8()), ("b", WORDS)]),
    pa.map_(pa.string(), pa.int32()),
    pa.list_(pa.struct([("a", pa.list_(pa.bool_(), 2))]), 2),
]
SCHEMA = pa.schema([(str(kind), kind) for kind in TYPES])


def value(chance: random.Random, kind: pa.DataType, nulls: float) -> Any:
    of = pa.types
    if chance.random() < nulls or of.is_null(kind):
        return None
    if of.is_struct(kind):
        return {field.name: value(chance, field.type, nulls) for field in kind}
    if of.is_map(kind):
        return [(str(number), number) for number in range(chance.randrange(3))]
    if kind.num_fields:
        size = getattr(kind, "list_size", chance.randrange(4))
        return [value(chance, kind.value_type, nulls) for _ in range(size)]
    found = {
        "bool": chance.random() < 0.5,
        "string": "ä" * chance.randrange(4),
        "large_binary": b"x" * chance.randrange(4),
        "fixed_size_binary[5]": chance.randbytes(5),
        "decimal128(10, 2)": decimal.Decimal(chance.randrange(1000)) / 100,
        "date32[day]": dt.date(2020, 1, chance.randrange(1, 29)),
        "timestamp[us, tz=UTC]": dt.datetime(2020, 1, chance.randrange(1, 29), tzinfo=dt.UTC),
    }
    return found.get(str(kind), chance.randrange(100))


def one_chunk(table: pa.Table) -> pa.Table:
    found = counts(table)
    assert fits_one_chunk(table.schema, found)
    writing = OneChunk(table.schema, table.num_rows, found)
    data = bytearray(writing.size_bytes)

    def write(at: int, part: Any) -> None:
        view = memoryview(part).cast("B")
        assert at + len(view) <= len(data)
        data[at : at + len(view)] = view

    for batch in table.to_batches():
        writing.append(batch, write)
    writing.finish(write)
    return OneChunk(table.schema, table.num_rows, found).read(pa.py_buffer(bytes(data)))


@pytest.mark.parametrize("nulls", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("rows", [0, 1, 8, 9, 333])
def test_slices_of_all_types_come_back(rows: int, nulls: float) -> None:
    chance = random.Random(rows)
    columns = [
        pa.array([value(chance, kind, nulls if row > rows // 3 else 0.0) for row in range(rows)], kind)
        for kind in TYPES
    ]
    whole, batches, at = pa.table(columns, schema=SCHEMA), list[pa.RecordBatch](), 0
    while at < rows:
        batches += whole.slice(at, size := chance.randrange(20)).to_batches()
        at += size
    given = pa.Table.from_batches(batches, SCHEMA)
    found = one_chunk(given)
    found.validate(full=True)
    assert found.to_pylist() == whole.to_pylist()
    assert all(column.num_chunks == 1 for column in found.columns)
    for name in SCHEMA.names:
        assert found[name].null_count == whole[name].null_count


def test_other_types_and_texts_beyond_32_bits_do_not_fit() -> None:
    for kind in (
        pa.dictionary(pa.int8(), pa.string()),
        pa.string_view(),
        pa.list_(pa.string_view()),
        pa.uuid(),
    ):
        assert not fits_one_chunk(pa.schema([("x", kind)]))
    assert not fits_one_chunk(pa.schema([]))
    schema = pa.schema([("a", pa.large_string()), ("b", WORDS)])
    assert fits_one_chunk(schema, [1 << 40, 5, (1 << 31) - 1])
    assert not fits_one_chunk(schema, [0, 1 << 31, 5])
