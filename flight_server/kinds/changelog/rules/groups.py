"""Groups: the rows of whole keys at one version, as the keep rules take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class Groups:
    """Distinct rows; those of one key are neighbours.

    Args:
        rows: the declared columns. Within a key they ascend by ``order_by``, the greatest is the last; rows that tie
            are ordered by all columns. Without ``order_by`` they are ordered by all columns.
        starts: int64, the index of each key's first row, ascending from 0; as many as there are keys.
        counts: int64, one for each row: the sum of its diffs. Below zero if its retractions came before its
            assertions; such a row is not in the collection yet. Zeros are allowed.
    """

    rows: pa.RecordBatch
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        ends = np.full(len(self.starts), self.rows.num_rows)
        ends[:-1] = self.starts[1:]
        return ends


@dataclass(frozen=True)
class Kept:
    """A collection: rows and how often each is there.

    Args:
        rows: the declared columns. The very object that was given, if the rule picks rows of its input.
        counts: int64, one for each row; zero for a row that is not there.
    """

    rows: pa.RecordBatch
    counts: NDArray[np.int64]
