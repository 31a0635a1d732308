"""What the coalescer's tests share: numbered rows, a model of the result, and a run that checks on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from spark_client.arrow.coalescer import Coalescer

KIB = 1024


def encoded_bytes(batch: pa.RecordBatch) -> int:
    """The size of the batch's own message, as an encoder writes it."""
    return int(pa.ipc.get_record_batch_size(batch))


def coalesced(
    coalescer: Coalescer, batches: Iterable[tuple[pa.RecordBatch, np.ndarray[Any, Any] | None]]
) -> list[tuple[int, pa.RecordBatch]]:
    """Every frame; checks the budget after each call and each frame on the way."""
    frames = []
    for batch, ids in batches:
        for partition, frame in coalescer.add(batch, ids):
            frame.validate(full=True)
            assert frame.schema.equals(coalescer.schema, check_metadata=True)
            frames.append((partition, frame))
        assert coalescer.buffered_bytes <= coalescer.budget_bytes
    for partition, frame in coalescer.finish():
        frame.validate(full=True)
        frames.append((partition, frame))
    assert coalescer.buffered_bytes == 0
    return frames


def rows_by_partition(frames: Iterable[tuple[int, pa.RecordBatch]]) -> dict[int, list[Any]]:
    rows: dict[int, list[Any]] = defaultdict(list)
    for partition, frame in frames:
        assert frame.num_rows
        rows[partition] += frame.to_pylist()
    return dict(rows)


def expected_rows(batches: Iterable[tuple[pa.RecordBatch, Any]]) -> dict[int, list[Any]]:
    rows: dict[int, list[Any]] = defaultdict(list)
    for batch, ids in batches:
        for partition, row in zip(ids.tolist(), batch.to_pylist(), strict=True):
            rows[partition].append(row)
    return dict(rows)


def numbered(rows: int, partitions: int, *, first: int = 0, width: int = 4) -> tuple[pa.RecordBatch, Any]:
    """Rows that tell their place, dealt out at random but repeatably."""
    numbers = np.arange(first, first + rows)
    columns = [pa.array(numbers), *(pa.array(numbers * 0.5) for _ in range(width - 1))]
    ids = np.random.default_rng(first + rows).integers(0, partitions, rows, dtype=np.int32)
    return pa.record_batch(columns, names=[f"c{index}" for index in range(width)]), ids
