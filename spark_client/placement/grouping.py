"""The groups of a partition's rows: rows whose keys are equal by Spark's rules (``keys.group_codes``).

Guarantee: every row is in exactly one group. Groups are in the order of their first rows, the rows of a group in
their input order. Equal values have one hash (see ``hashing``), so an exchange puts them in one partition.

How
    The keys of a row become one integer code, and a stable sort of the codes puts the rows of a group side by side.
    Up to ``BLOCK_BYTES`` are joined and copied at once, more in windows of whole groups. A group above ``CHUNK_BYTES``
    has several chunks, so that no column of text exceeds its 32-bit offsets.

Memory
    The rows, 12 to 40 bytes for each of them, and four copies of a window, or of a chunk of a larger group; up to
    ``BLOCK_BYTES`` two copies of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import group_codes, groupable
from flight_server.protocol import InvalidRequest
from spark_client.arrow import (
    SMALL_BYTES,
    NumberedRows,
    array_over,
    cuts,
    python_values,
    shown,
    together,
    values,
    widened,
)

from .hashing import partition_ids

WINDOW_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 128 * 1024 * 1024
BLOCK_BYTES = 16 * 1024 * 1024
"""Rows are copied out of one batch twice as fast as out of several."""

Group = tuple[tuple[Any, ...], pa.Table]


@dataclass(frozen=True)
class PlacedKeys:
    """The exchange before the groups; ``exchange`` is its text for messages."""

    exchange: str
    keys: pa.Schema
    partitions: int

    def check(self, keys: pa.RecordBatch, partition: int, stage: str, what: str = "groups") -> None:
        """Check that the exchange would send all of ``keys``, cast to its types, to ``partition``: otherwise a stage
        has changed a key, and its rows may be in several partitions. Raises InvalidRequest, also if a cast fails.
        """
        columns = []
        for column, field in zip(keys.columns, self.keys, strict=True):
            try:
                columns.append(widened(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidRequest(
                    f"{stage}: key {field.name!r} is {column.type}, and {self.exchange} has placed rows by "
                    f"{field.type}, which its values cannot be made again ({error}); {self._remedy(keys)}",
                    stage=stage,
                    partition=partition,
                ) from error
        # Numbers for names, because an exchange may name a key twice.
        names = [str(number) for number in range(len(columns))]
        ids = partition_ids(pa.RecordBatch.from_arrays(columns, names=names), names, self.partitions)
        wrong = np.flatnonzero(ids != partition)
        if len(wrong):
            first = int(wrong[0])
            row = [python_values(column.slice(first, 1))[0] for column in keys.columns]
            key = ", ".join(
                f"{name!r} = {shown(value)[:80]}" for name, value in zip(keys.schema.names, row, strict=True)
            )
            raise InvalidRequest(
                f"{stage}: {len(wrong)} of {len(ids)} {what} may be in parts: {key} is in partition {partition}, "
                f"and {self.exchange} places it in partition {ids[first]}; a stage after the exchange has "
                f"changed the key; {self._remedy(keys)}",
                stage=stage,
                partition=partition,
            )

    def _remedy(self, keys: pa.RecordBatch) -> str:
        names = ", ".join(map(repr, keys.schema.names))
        return f"exchange again after that stage: .exchange({self.partitions}, {names})"


def check_groupable(schema: pa.Schema, keys: Sequence[str], stage: str) -> None:
    """Raise InvalidRequest if a key's type contains a map."""
    for key in keys:
        if not groupable(schema.field(key).type):
            raise InvalidRequest(
                f"{stage}: cannot group by {key!r} of type {schema.field(key).type}: equal maps may differ in order; "
                "group by a column made from it, for example its sorted entries as a list, an element or its text",
                stage=stage,
                column=key,
            )


def groups(
    batches: list[pa.RecordBatch],
    schema: pa.Schema,
    keys: Sequence[str],
    *,
    with_keys: bool = True,
    block_bytes: int = BLOCK_BYTES,
    window_bytes: int = WINDOW_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    check: Callable[[pa.RecordBatch], None] = lambda _: None,
) -> Iterator[Group]:
    """Each group's keys as a tuple of Arrow scalars, and its rows.

    Args:
        batches: the rows, of ``schema``. The list is emptied.
        schema: of types that ``arrow.sizes`` can weigh.
        with_keys: False for empty tuples.
        block_bytes: so many are joined and copied at once.
        window_bytes: copied at a time of more rows, or one group if it is larger.
        chunk_bytes: the most in a chunk, or one row if it is larger; at least ``window_bytes``.
        check: called for each window before its groups, with one row of keys for each group.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which tasks without groups do without

    total_bytes = sum(batch.nbytes for batch in batches)
    small = total_bytes <= block_bytes
    rows = NumberedRows(together(batches, block_bytes if small else SMALL_BYTES))
    if not rows.count:
        return
    codes = group_codes([pa.chunked_array([batch.column(key) for batch in rows.batches]) for key in keys])
    order = values(pc.array_sort_indices(codes), np.uint64).view(np.int64)
    ends = np.cumsum(np.bincount(values(codes, np.int32)))
    del codes
    # Where all rows are one window, their sizes do not matter.
    before = None if small else rows.bytes_before(order)
    first = start = 0
    while first < len(ends):
        last = len(ends) if before is None else _last(before, ends, first, window_bytes)
        end = int(ends[last - 1])
        pieces = [(start, end)] if before is None else cuts(before, start, end, chunk_bytes)
        table = pa.Table.from_batches([rows.take(order[begin:stop]) for begin, stop in pieces], schema)
        bounds = [0, *(ends[first:last] - start).tolist()]
        found = _keys_at(table, keys, np.array(bounds[:-1]))
        check(found)
        columns = found.columns if with_keys else []
        for number, (begin, stop) in enumerate(pairwise(bounds)):
            yield tuple([column[number] for column in columns]), table.slice(begin, stop - begin)
        first, start = last, end


def _last(before: NDArray[np.int64], ends: NDArray[np.int64], first: int, window_bytes: int) -> int:
    """The group after the last one that fits a window from this one on, at least the next one."""
    start = int(ends[first - 1]) if first else 0
    fitting = int(np.searchsorted(before, before[start] + window_bytes, side="right")) - 1
    return max(first + 1, int(np.searchsorted(ends, fitting, side="right")))


def _keys_at(table: pa.Table, keys: Sequence[str], places: NDArray[np.int64]) -> pa.RecordBatch:
    """The key columns of some rows. Only a table of one group has several chunks: its first row is in the first one."""
    columns = [table.column(key).chunk(0).take(array_over(places)) for key in keys]
    return pa.RecordBatch.from_arrays(columns, names=list(keys))
