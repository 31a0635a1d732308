"""The results of a function that is called for each group: checked, cast, owned, and joined.

Results of small groups are joined into batches of ``BATCH_ROWS`` rows or ``BATCH_BYTES``: a message for each group
would cost more than the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from spark_client.arrow import SMALL_ROWS, Declared, Lent, own

from .one_pass import expect, iterable, noted

BATCH_ROWS = 64 * 1024
BATCH_BYTES = 4 * 1024 * 1024

Call = Callable[[], Iterable[Any]]


def table_of(declared: Declared, fn: Callable[..., Any], *given: Any) -> Iterable[Any]:
    """The result of a function that must give a table. Raises InvalidRequest."""
    result = fn(*given)
    expect(result, pa.Table, declared.stage)
    return (result,)


def batches_of(declared: Declared, fn: Callable[..., Any], *given: Any) -> Iterator[Any]:
    """The results of a function that must give batches, one by one. Raises InvalidRequest."""
    for result in iterable(fn(*given), declared.stage, "an iterator"):
        expect(result, pa.RecordBatch, declared.stage)
        yield result


def group_results(declared: Declared, calls: Iterable[tuple[Lent, Call]]) -> Iterator[Any]:
    """The results of all calls, in order, in batches of the declared schema, without empty ones.

    Args:
        calls: for each group the data lent to the function, and its call, which gives tables or batches. The next group
            is requested when the results of this one are copied.

    Raises:
        InvalidRequest: a result does not have the declared schema.
    """
    results: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for lent, call in calls:
        for result in noted(declared.stage, call):
            if not result.num_rows:
                continue
            cast = declared.cast(result)
            for batch in cast.to_batches() if isinstance(cast, pa.Table) else [cast]:
                owned = _own(batch, lent)
                results.append(owned)
                rows, size_bytes = rows + owned.num_rows, size_bytes + owned.get_total_buffer_size()
                if rows >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                    yield from _together(results)
                    results, rows, size_bytes = [], 0, 0
    yield from _together(results)


def _own(batch: Any, lent: Lent) -> Any:
    """The rows in memory that the function cannot write to. A result that waits to be joined is copied in any case: a
    slice of its group would keep all rows that were copied with the group.
    """
    if batch.num_rows <= SMALL_ROWS or batch.nbytes < BATCH_BYTES:
        return pa.concat_batches([batch])
    return own(batch, lent)


def _together(results: list[pa.RecordBatch]) -> Iterator[Any]:
    """The rows in as few batches as their columns' offsets allow."""
    if len(results) <= 1:
        yield from results
    else:
        yield from pa.Table.from_batches(results).combine_chunks().to_batches()
