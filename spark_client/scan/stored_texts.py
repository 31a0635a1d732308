"""Texts as Parquet stores them: which columns are read as dictionaries, and how many rows at once where texts are not.

A column of texts that takes at most ``CODED_BYTES`` for a value is read as dictionaries. So is one of few long texts,
whose codes take less than a byte, if a batch of it as texts could be above ``LARGE_BYTES``.

Texts inside of lists, maps and structs are read as texts. Where a dictionary has few long ones, a batch would be far
larger than its rows are in the file, and Arrow gives none with 2 GiB of them: so it has at most ``NESTED_ROWS`` rows,
and fewer where those are too many.

A batch whose texts are dictionaries is cut so that they are not too large as texts (:func:`cut`): a column that has one
text of 50 kB in each of 64 Ki rows takes some bytes as it is stored, and 3 GB as texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import compute, is_bytes
from spark_client.arrow import values

CODED_BYTES = 2
"""A text that is stored as itself takes four bytes for its length."""
LARGE_BYTES = 256 << 20
NESTED_ROWS = 4096
_FEWER = 16


def coded_columns(
    texts: Sequence[str], metadata: Any, groups: Sequence[Any], batch_rows: int
) -> frozenset[str]:
    """Those of the columns of texts that all row groups have as short codes for the values of a dictionary."""
    if not texts:
        return frozenset()
    places = {metadata.schema.column(index).path: index for index in range(len(metadata.schema))}
    # In a path a dot may stand for a field of a struct.
    return frozenset(
        name
        for name in texts
        if "." not in name and all(_is_coded(group.column(places[name]), batch_rows) for group in groups)
    )


def _is_coded(column: Any, batch_rows: int) -> bool:
    if not column.has_dictionary_page:
        return False
    if column.total_uncompressed_size <= CODED_BYTES * column.num_values:
        return True
    # As texts, all could be as long as the dictionary: its size stands in no footer, that of the compressed codes does.
    if column.total_uncompressed_size * min(column.num_values, batch_rows) <= LARGE_BYTES:
        return False
    dictionary_bytes = column.data_page_offset - (column.dictionary_page_offset or column.data_page_offset)
    return bool(column.total_compressed_size - dictionary_bytes < column.num_values)


def inner_texts(metadata: Any, names: Sequence[str]) -> list[int]:
    """The numbers of the stored columns of texts, or bytes, that are inside of these columns."""
    outer = set(names)
    numbers = []
    for index in range(len(metadata.schema)):
        column = metadata.schema.column(index)
        name, _, inner = column.path.partition(".")
        if inner and name in outer and column.physical_type == "BYTE_ARRAY":
            numbers.append(index)
    return numbers


def bounded_rows(rows: int, group: Any, inner: Sequence[int]) -> int:
    """So many rows of a row group, or ``NESTED_ROWS`` if the texts inside of others, were each as long as its
    dictionary, could be above ``LARGE_BYTES`` together.
    """
    for column in map(group.column, inner if rows > NESTED_ROWS else ()):
        texts = rows * column.num_values / max(1, group.num_rows)
        if column.has_dictionary_page and texts * column.total_uncompressed_size > LARGE_BYTES:
            return NESTED_ROWS
    return rows


def batches_of(reader: Any, unit: int, names: Sequence[str], rows: int) -> Iterator[Any]:
    """A row group's batches, of so many rows, or of fewer where Arrow gives none of so many."""
    yielded = 0
    while True:
        seen = 0
        try:
            for batch in reader.iter_batches(rows, [unit], names, use_threads=False):
                fresh = batch.slice(max(0, yielded - seen))
                seen += batch.num_rows
                yielded = max(yielded, seen)
                if fresh.num_rows:
                    yield fresh
        except pa.ArrowNotImplementedError:
            if rows == 1:
                raise
            rows = max(1, rows // _FEWER)
        else:
            return


def cut(batch: Any, most_bytes: int) -> Iterator[Any]:
    """The batch, in slices that take about so many bytes when dictionaries of texts are decoded; a row at least."""
    coded = [
        column
        for column in batch.columns
        if isinstance(column, pa.DictionaryArray) and is_bytes(column.dictionary.type)
    ]
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


def _lengths(dictionary: Any) -> NDArray[np.int64]:
    lengths = compute().binary_length(dictionary).fill_null(0)
    return values(lengths, lengths.type.to_pandas_dtype()).astype(np.int64)
