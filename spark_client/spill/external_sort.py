"""The rows of many batches in Spark's order, within a memory budget.

Guarantee: :func:`sorted_batches` gives every row exactly once, ordered by the keys (``arrow.sort_codes``); rows with
equal keys stay in the order in which they came. A result batch has at most ``OUT_ROWS`` rows and about ``OUT_BYTES``,
less with a budget below 64 MiB, or one row.

How
    Batches are gathered with all memory that they keep alive (``gathered``). If they fit three quarters of the
    budget, they are sorted in memory. Otherwise they are sorted in *runs*, as many rows as fit, which go to files and
    are merged (``run_merging``). Rows that are in order already are not copied.

Memory
    The budget, and the batch that is being added. A row counts with ``ROW_BYTES`` for its code, position and size, and
    text, lists and structs that are keys count twice, because their codes take as much.

Ending
    The end of the iterator, its close and an error release the memory and the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_client.arrow import NumberedRows, SortCodes, SortKey, together

from .gathered import Gathered
from .row_pieces import cut, piece_bytes, pieces
from .run_merging import Runs
from .task_memory import TaskMemory

_MOST_BYTES = 1 << 30
"""Of a run: columns of text have 32-bit offsets."""


def sorted_batches(
    batches: Iterator[pa.RecordBatch], keys: Sequence[SortKey], memory: TaskMemory
) -> Iterator[pa.RecordBatch]:
    """The rows in the order of the keys, as batches that the caller may keep.

    Args:
        keys: at least one, of columns of the batches, whose types ``arrow.check_sortable`` allows.

    Raises:
        OutOfBudget: the rows do not fit the budget, and the scratch directory cannot be written.
        CorruptFrame: the bytes in the file are not those that were written.
    """
    room_bytes = min(memory.budget_bytes * 3 // 4, _MOST_BYTES)
    most_bytes = piece_bytes(memory.budget_bytes)
    gathered = Gathered()
    codes_bytes = 0
    runs: Runs | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.add(batch)
        codes_bytes += _codes_bytes(batch, keys)
        if gathered.weight_bytes + codes_bytes <= room_bytes:
            continue
        if 2 * (gathered.least_bytes + codes_bytes) <= room_bytes:
            gathered.compact()
            continue
        runs = runs or Runs(keys, memory)
        runs.add(_in_order(gathered, keys, most_bytes))
        codes_bytes = 0
    if runs is None:
        yield from _in_order(gathered, keys, most_bytes)
        return
    if gathered.batches:
        runs.add(_in_order(gathered, keys, most_bytes))
    yield from runs.merged()


def _codes_bytes(batch: pa.RecordBatch, keys: Sequence[SortKey]) -> int:
    columns = [batch.column(key.column) for key in keys]
    return sum(column.nbytes for column in columns if not pa.types.is_primitive(column.type))


def _in_order(gathered: Gathered, keys: Sequence[SortKey], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, in pieces; empties ``gathered``."""
    batches = gathered.batches
    gathered.clear()
    batches = together(batches)
    if not batches:
        return
    codes = SortCodes.concat([SortCodes.of(batch, keys) for batch in batches])
    if codes.ascends():
        batches.reverse()
        while batches:
            yield from cut(batches.pop(), most_bytes)
        return
    order = codes.order()
    del codes
    rows = NumberedRows(batches)
    batches.clear()
    for start, end in pieces(rows.sizes()[order], most_bytes):
        yield rows.take(order[start:end])
