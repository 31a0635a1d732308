"""A table is indexed once per process, and its index goes with it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_client.joining import Column, JoinPlan, KeyForm, MatchKeys, held_rows, held_table
from spark_client.joining.join_plan import Side

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.list_(pa.int64()))])


def side(name: str = "k") -> Side:
    form = KeyForm.of(pa.string(), pa.string(), "key")
    keys = MatchKeys((name,), (form,))
    return JoinPlan("inner", keys, keys, (Column(None, "v"),), SCHEMA, SCHEMA, SCHEMA).side(left=False)


def table(rows: int = 10) -> pa.Table:
    batch = pa.record_batch([[str(n) for n in range(rows)], [[n] for n in range(rows)]], schema=SCHEMA)
    return pa.Table.from_batches([batch, batch])


def cast(given: pa.Table) -> pa.Table:
    return given


@pytest.mark.parametrize("copied_bytes", [0, 1 << 20])
def test_rows_are_taken_from_several_chunks(copied_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "COPIED_BYTES", copied_bytes)
    given = table()
    held = held_table(given, side(), cast)
    numbers, valid = np.array([19, 0, 5, 12]), np.array([True, True, False, True])
    assert held.take(numbers, valid).column("v").to_pylist() == [[9], [0], None, [2]]


def test_keys_beyond_what_32_bit_offsets_count_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "_CHUNK_BYTES", 20)
    given = table(100)
    held = held_table(given, side(), cast)
    keys, _ = side().keys.of(given.to_batches()[0].slice(50, 3))
    assert held.index.counts(held.index.find(keys)).tolist() == [2, 2, 2]
