"""Decodes a dictionary's texts without much more memory than the texts take.

Before Arrow decodes them it asks for as many bytes as the rows would take if each had a text of the dictionary's mean
length. Where 64 Ki rows have a text of one byte, but one of them has one of 60 kB, that is 2 GB for 124 kB: it is not
used, but counts as address space, which ``spark.executor.pyspark.memory`` bounds. So such rows are decoded some at a
time.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .sizes import is_bytes

ASKED_BYTES = 32 << 20


def decoded(column: Any) -> Any:
    """A dictionary-encoded array, or chunked array, as one of its values' type."""
    kind = column.type.value_type
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array(list(map(decoded, column.chunks)), kind)
    dictionary = column.dictionary
    most_rows = len(column)
    if len(dictionary) and is_bytes(kind):
        most_rows = max(1, ASKED_BYTES * len(dictionary) // max(1, dictionary.nbytes))
    if len(column) <= most_rows:
        return column.dictionary_decode()
    parts = range(0, len(column), most_rows)
    return pa.concat_arrays([column.slice(first, most_rows).dictionary_decode() for first in parts])
