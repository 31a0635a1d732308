"""How a writing task places rows: by Spark's hash of keys, in turn, or by range.

``place`` gives, for a batch of a producer's task, each row's partition; ``first_row`` rows of the task came before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import SortCodes, SortKey, ranges_of, widened
from spark_client.placement import partition_ids, round_robin_ids, round_robin_start


@dataclass(frozen=True)
class ByKeys:
    """Spark's hash of the keys, computed in the task; as ``types``, if another side of a join has others."""

    keys: tuple[str, ...]
    partitions: int
    types: tuple[pa.DataType, ...] | None = None

    def place(self, batch: Any, producer: int, first_row: int) -> NDArray[np.int32]:
        if self.types is None:
            return partition_ids(batch, self.keys, self.partitions)
        columns = [
            widened(batch.column(key), type_) for key, type_ in zip(self.keys, self.types, strict=True)
        ]
        names = [str(number) for number in range(len(columns))]
        return partition_ids(pa.RecordBatch.from_arrays(columns, names=names), names, self.partitions)


@dataclass(frozen=True)
class InTurn:
    """Round robin, from a start that depends on the producer."""

    partitions: int

    def place(self, batch: Any, producer: int, first_row: int) -> NDArray[np.int32]:
        start = round_robin_start(producer, self.partitions) + first_row
        return round_robin_ids(batch.num_rows, start, self.partitions)


@dataclass(frozen=True)
class ByRange:
    """Ranges in the order of ``keys``. ``boundaries`` has a column for each key, of its type, and ascends."""

    keys: tuple[SortKey, ...]
    boundaries: pa.RecordBatch = field(hash=False)

    def place(self, batch: Any, producer: int, first_row: int) -> NDArray[np.int32]:
        boundaries = SortCodes.of_columns(self.boundaries.columns, self.keys, self.boundaries.num_rows)
        return ranges_of(SortCodes.of(batch, self.keys), boundaries)


Placement = ByKeys | ByRange | InTurn
