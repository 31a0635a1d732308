"""The size of the batches that a function gets: within Spark's settings, also after an exchange."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BatchLimits:
    """At most this many rows, and about this many bytes, in a batch; 0 is no limit, as in Spark."""

    rows: int = 0
    size_bytes: int = 0

    def cut(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            rows = self.rows_of(batch)
            if batch.num_rows <= rows:
                yield batch
                continue
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def rows_of(self, data: Any) -> int:
        """How many rows of ``data`` fit the limits; at least one."""
        rows = max(1, int(data.num_rows))
        if self.rows > 0:
            rows = min(rows, self.rows)
        if 0 < self.size_bytes < data.nbytes:
            rows = min(rows, max(1, data.num_rows * self.size_bytes // data.nbytes))
        return rows


NO_LIMITS = BatchLimits()
