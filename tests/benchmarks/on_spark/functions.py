"""What the jobs' Python stages do: the same functions for Spark and ours, over Arrow batches.

Every job has a column ``key``. The first stages make the rows of the exchange, ``second`` counts what came through it,
and ``digest`` is a checksum of whole rows, whatever their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

WIDTH = 256
Batches = Iterator[pa.RecordBatch]
Stage = Callable[[Batches], Batches]

SECOND = "rows long, total long, elements long"
DIGEST = "rows long, digest long"
NUMBERS = "key long, a long, b double, c double"
NAMED = "key long, twice long, gross double, name string"
VECTORS = "key long, vector array<float>"


def numbers(batches: Batches) -> Batches:
    """From (id, value): a key, and two columns more than came in."""
    for batch in batches:
        key = batch.column("id")
        columns = [key, pc.multiply(key, 2), pc.cast(key, pa.float64()), batch.column("value")]
        yield pa.record_batch(columns, names=["key", "a", "b", "c"])


def named(batches: Batches) -> Batches:
    """From (id, quantity, amount, name): two columns are computed, the text goes through."""
    for batch in batches:
        columns = [
            batch.column("id"),
            pc.multiply(batch.column("quantity"), 2),
            pc.multiply(batch.column("amount"), 1.19),
            batch.column("name"),
        ]
        yield pa.record_batch(columns, names=["key", "twice", "gross", "name"])


def vectors(batches: Batches) -> Batches:
    """From (id): a vector of 256 floats, as an embedding would be."""
    for batch in batches:
        rows = batch.num_rows
        values = np.random.default_rng(1).random(rows * WIDTH, dtype=np.float32)
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * WIDTH)
        yield pa.record_batch(
            [batch.column("id"), pa.ListArray.from_arrays(offsets, pa.array(values))], names=["key", "vector"]
        )


def count(batches: Batches) -> Batches:
    """Rows only: what it costs to get them here."""
    yield _counted(sum(batch.num_rows for batch in batches), 0, 0)


def second(batches: Batches) -> Batches:
    """Rows, the sum of the keys, and how many bytes or values the last column's texts or vectors have."""
    rows = total = elements = 0
    for batch in batches:
        rows += batch.num_rows
        total += pc.sum(batch.column("key")).as_py() or 0
        elements += _elements(batch.column(batch.num_columns - 1))
    yield _counted(rows, total, elements)


def digest(batches: Batches) -> Batches:
    """Rows, and the sum of their hashes."""
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += int(row_hashes(batch.columns, batch.num_rows).sum(dtype=np.uint64))
    yield pa.record_batch([pa.array([rows]), pa.array([total % (1 << 63)])], names=["rows", "digest"])


def row_hashes(columns: Iterable[Any], rows: int) -> NDArray[np.uint64]:
    """A hash of each row, of all its columns together. A column's values must all have one width."""
    hashes = np.zeros(rows, np.uint64)
    for number, column in enumerate(columns):
        words = _words(column, rows)
        odd = np.random.default_rng(number).integers(0, 1 << 63, words.shape[1], np.uint64) * 2 + 1
        hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) + words @ odd
    return (hashes ^ (hashes >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)


def _words(column: Any, rows: int) -> NDArray[np.uint64]:
    """The bytes of each value as words of eight, or of one where they are no multiple of eight."""
    if column.null_count:
        raise ValueError("the jobs have no nulls")
    if rows == 0:
        return np.zeros((0, 1), np.uint64)
    if pa.types.is_primitive(column.type):
        values = column.to_numpy()
    else:
        offsets = _offsets(column)
        widths = np.diff(offsets)
        if widths.min() != widths.max():
            raise ValueError("texts and vectors must have one width")
        value_bytes = column.values.type.bit_width // 8 if pa.types.is_list(column.type) else 1
        data = column.values.buffers()[1] if pa.types.is_list(column.type) else column.buffers()[2]
        shift = column.values.offset if pa.types.is_list(column.type) else 0
        start, end = (int(shift + offset) * value_bytes for offset in (offsets[0], offsets[-1]))
        values = np.frombuffer(data, np.uint8)[start:end]
    whole = np.ascontiguousarray(values).view(np.uint8).reshape(rows, -1)
    word = np.uint64 if whole.shape[1] % 8 == 0 else np.uint8
    return whole.view(word).astype(np.uint64, copy=False)


def _elements(column: Any) -> int:
    if not len(column) or pa.types.is_primitive(column.type):
        return 0
    offsets = _offsets(column)
    return int(offsets[-1] - offsets[0])


def _offsets(column: Any) -> NDArray[np.int32]:
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]


def _counted(rows: int, total: int, elements: int) -> Any:
    columns = [pa.array([each], pa.int64()) for each in (rows, total, elements)]
    return pa.record_batch(columns, names=["rows", "total", "elements"])
