"""Cuts a batch whose texts are dictionaries so that they are not too large as texts.

A column that has one text of 50 kB in each of 64 Ki rows takes some bytes as it is stored, and 3 GB as texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import is_bytes, values


def cut(batch: Any, most_bytes: int) -> Iterator[Any]:
    """The batch, in slices that take about so many bytes when dictionaries of texts are decoded; a row at least."""
    coded = [column for column in batch.columns if _is_coded(column)]
    row_bytes = [_lengths(column.dictionary) for column in coded]
    # Most batches are far below, even if each row had the longest text.
    if batch.num_rows * sum(int(lengths.max(initial=0)) for lengths in row_bytes) <= most_bytes:
        yield batch
        return
    sizes = np.zeros(batch.num_rows, np.int64)
    for column, lengths in zip(coded, row_bytes, strict=True):
        # A null looks up the last one, which is none.
        sizes += np.append(lengths, 0)[codes(column)]
    ends = np.cumsum(sizes)
    first = 0
    while first < batch.num_rows:
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        yield batch.slice(first, last - first)
        first = last


def codes(column: Any) -> NDArray[Any]:
    """The place of each row's value in the dictionary; of a null, the one after the last."""
    indices = column.indices
    if indices.null_count or pa.types.is_uint64(indices.type):
        # An index of 8 bits may have no number for a null, and numpy does not add unsigned ones of 64 bits to others.
        indices = indices.cast(pa.int64()).fill_null(len(column.dictionary))
    return values(indices, indices.type.to_pandas_dtype())


def _is_coded(column: Any) -> bool:
    return isinstance(column, pa.DictionaryArray) and is_bytes(column.dictionary.type)


def _lengths(dictionary: Any) -> NDArray[np.int64]:
    import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which files without dictionaries do without

    lengths = pc.binary_length(dictionary).fill_null(0)
    return values(lengths, lengths.type.to_pandas_dtype()).astype(np.int64)
