"""Numbers for keys that come batch by batch: for rows that share a hash, which are told apart by their keys.

Nearly always such rows have one key. Further keys take further passes over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import group_codes
from spark_client.arrow import Picker, array_over, values

KeyColumns = Callable[[pa.RecordBatch], list[pa.Array]]


class KnownKeys:
    """The distinct keys seen so far, numbered from 0 by first appearance."""

    def __init__(self) -> None:
        self._columns: list[pa.Array] = []
        self.count = 0

    def codes(self, columns: list[pa.Array]) -> NDArray[np.int32]:
        """The number of each row's key; new keys get the next numbers."""
        parts = [[column] for column in columns]
        if self._columns:
            parts = [[known, *part] for known, part in zip(self._columns, parts, strict=True)]
        every = [pa.chunked_array(part) for part in parts]
        codes = values(group_codes(every), np.int32)
        # Codes count by first appearance, so the known keys keep theirs.
        _, firsts = np.unique(codes, return_index=True)
        if len(firsts) > self.count:
            at = array_over(firsts)
            self._columns = [pa.concat_arrays(column.take(at).chunks) for column in every]
        known, self.count = self.count, len(firsts)
        return codes[known:]

    def firsts(
        self, batches: Iterable[pa.RecordBatch], key_columns: KeyColumns, names: Sequence[str]
    ) -> dict[int, pa.RecordBatch]:
        """The number of each key of these batches, and the columns ``names`` of its first row."""
        found: dict[int, pa.RecordBatch] = {}
        for batch in batches:
            codes, rows = np.unique(self.codes(key_columns(batch)), return_index=True)
            for code, row in zip(codes.tolist(), rows.tolist(), strict=True):
                if code not in found:
                    found[code] = batch.select(names).take(array_over(np.array([row])))
        return found

    def rows(
        self, code: int, key_columns: KeyColumns, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one key, among batches whose keys are all known."""
        for batch in batches:
            if self.count == 1:
                yield batch
                continue
            chosen = np.flatnonzero(self.codes(key_columns(batch)) == code)
            if len(chosen):
                yield Picker(batch).take(chosen)
