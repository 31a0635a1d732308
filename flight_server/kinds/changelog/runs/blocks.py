"""Blocks: updates as encapsulated IPC record batches, as run files and the log hold them; and what a run file's footer
says of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.keys import array_over

from .layout import Layout
from .run import Damaged
from .updates import Updates


def to_block(updates: Updates) -> pa.Buffer:
    """The encapsulated message of these updates."""
    extra = map(array_over, (updates.hashes, updates.versions, updates.diffs))
    batch = pa.RecordBatch.from_arrays([*updates.rows.columns, *extra], schema=updates.layout.block_schema)
    return batch.serialize()


def of_block(layout: Layout, data: Any, version: int | None = None) -> Updates:
    """The updates of a message, which they refer to. Raises Damaged if it is none."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), layout.block_schema)
        rows = pa.RecordBatch.from_arrays(batch.columns[:-3], schema=layout.schema)  # checks the columns
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(f"a block of {len(data)} bytes is not a record batch: {error}") from error
    hashes, versions, diffs = (batch.column(-3 + place).to_numpy() for place in range(3))
    if version is not None:
        versions = np.broadcast_to(np.int64(version), len(diffs))
    return Updates(layout, rows, hashes, versions, diffs)


@dataclass(frozen=True, slots=True)
class Block:
    """A block's entry in the footer, in the format's order."""

    offset: int
    size_bytes: int
    rows: int
    low: int
    high: int
    first_version: int
    last_version: int
    crc32c: int
