"""Layers: files of rows with an index, found by real keys."""

from __future__ import annotations

import errno
import io
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.kinds.changelog.runs import Layout, Updates
from flight_server.protocol import KeepRule, PartitionFailed, RuleName
from spark_client.joining import Keys
from spark_client.lookup import layers
from spark_client.lookup.layers import Index, Layer, write_layer
from tests.support.layered import layer

ONES = np.ones(100, np.int64)


def numbers(*values: int) -> pa.Array:
    return pa.array(values, pa.int64())


def pairs(of: Layer, *columns: pa.Array) -> list[tuple[int, int]]:
    positions, rows = of.find(Keys.of(columns))
    return sorted(zip(positions.tolist(), rows.tolist(), strict=True))


def written(table: pa.Table) -> bytes:
    out = io.BytesIO()
    write_layer(out, table.to_batches(), table.schema, keys=1, after=3, version=9, live=1)
    return out.getvalue()


def test_keys_with_one_hash_are_told_apart() -> None:
    table = pa.table({"k": numbers(1, 2, 3), "v": [1, 2, 3]})
    out = io.BytesIO()
    index = Index.of(np.zeros(3, np.uint64))
    write_layer(out, table.to_batches(), table.schema, keys=1, after=None, version=1, index=index)
    of = Layer.over(pa.py_buffer(out.getvalue()))
    positions, rows = of.find(Keys((numbers(3, 4, 1),), np.zeros(3, np.uint64)))
    assert sorted(zip(positions.tolist(), rows.tolist(), strict=True)) == [(0, 2), (2, 0)]


def test_rows_in_many_chunks_are_found_and_taken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "CHUNK_ROWS", 7)
    keys = random.Random(3).sample(range(1000), 100)
    table = pa.table({"k": numbers(*keys), "v": [f"value {key}" for key in keys]})
    chunked = pa.concat_tables([table.slice(at, 3) for at in range(0, 100, 3)])
    of = layer(chunked)
    assert len(of.chunks) > 10
    rows = np.array([keys.index(key) for key in sorted(keys)])
    assert of.take(rows, slice(1, None)).column(0).to_pylist() == [f"value {key}" for key in sorted(keys)]
    assert pairs(of, numbers(*keys)) == [(number, number) for number in range(100)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary()])
def test_rows_in_the_order_in_which_a_server_sends_them_need_no_sorting(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "CHUNK_ROWS", 40)
    keys = [key if kind == pa.int64() else f"key {key}".encode() for key in range(100)]
    rows = Layout(pa.schema([("k", kind), ("v", pa.int64())]), KeepRule(RuleName.LATEST, ("k",)))
    sent = Updates.of(rows, pa.record_batch([pa.array(keys, kind), range(100)], rows.schema), ONES, ONES).rows
    parts = [Index.of(Keys.of([sent.column(0).slice(at, 10)]).hashes, at) for at in range(0, 100, 10)]
    assert Index.in_order(parts) is parts
    of = layer(pa.table(sent))
    assert pairs(of, sent.column(0)) == [(number, number) for number in range(100)]


def test_keys_that_differ_only_in_the_middle_of_long_texts_have_different_hashes() -> None:
    texts = [b"a" * 1000 + str(number).encode().rjust(9) + b"b" * 1000 for number in range(1000)]
    assert len(np.unique(Keys.of([pa.array(texts, pa.binary())]).hashes)) == 1000


def test_rows_that_break_off_make_no_layer_and_leave_no_thread() -> None:
    table, before = pa.table({"k": numbers(1, 2), "v": [1, 2]}), threading.active_count()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(max_chunksize=1)
        raise ConnectionError("cut")

    with pytest.raises(ConnectionError, match="cut"):
        write_layer(io.BytesIO(), broken(), table.schema, keys=1, after=None, version=1)
    assert threading.active_count() == before


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_a_sink_that_refuses_a_chunk_ends_the_writing(
    chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "CHUNK_ROWS", chunk_rows)
    table = pa.table({"k": numbers(*range(50)), "v": ["x" * 99] * 50})

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 1000:
                raise OSError(errno.ENOSPC, "full")
            return super().write(data)

    with pytest.raises(OSError, match="full") as raised:
        write_layer(Full(), table.to_batches(max_chunksize=1), table.schema, keys=1, after=None, version=1)
    assert raised.value.errno == errno.ENOSPC


def test_the_hashes_of_this_format_stay_as_they_are() -> None:
    # Files hold them, and processes of other versions on the same host map these: other numbers need another format.
    keys = Keys.of([numbers(5, -1), pa.array([b"x" * 400, b""], pa.binary())])
    assert keys.hashes.tolist() == [15554326566496930897, 12858764403163671469]


@pytest.mark.parametrize("seed", range(40))
def test_a_changed_byte_anywhere_is_noticed(seed: int) -> None:
    data = bytearray(written(pa.table({"k": numbers(*range(50)), "v": list(range(50))})))
    place = random.Random(seed).randrange(len(data))
    data[place] ^= 1 << seed % 8
    with pytest.raises(PartitionFailed, match="damaged"):
        Layer.over(pa.py_buffer(bytes(data)))


@pytest.mark.parametrize("missing_bytes", [1, 8, 16, 100, 10_000])
def test_a_torn_file_is_noticed(missing_bytes: int) -> None:
    data = written(pa.table({"k": numbers(*range(50)), "v": list(range(50))}))
    with pytest.raises(PartitionFailed, match="damaged"):
        Layer.over(pa.py_buffer(data[: max(0, len(data) - missing_bytes)]))
