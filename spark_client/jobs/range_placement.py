"""Placement by range: partition ``i`` has the rows from boundary ``i - 1`` on to before boundary ``i``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import SortCodes, SortKey, ranges_of


@dataclass(frozen=True)
class ByRange:
    """Ranges in the order of ``keys``. ``boundaries`` has a column for each key, of its type, and ascends."""

    keys: tuple[SortKey, ...]
    boundaries: pa.RecordBatch = field(hash=False)

    def place(self, batch: Any, producer: int, first_row: int) -> tuple[Any, NDArray[np.int32]]:
        boundaries = SortCodes.of_columns(self.boundaries.columns, self.keys, self.boundaries.num_rows)
        return batch, ranges_of(SortCodes.of(batch, self.keys), boundaries)
