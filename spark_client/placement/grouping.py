"""The groups of a partition's rows: rows whose keys are equal by Spark's rules.

Guarantee: every row is in exactly one group. Groups are in the order of their first rows, the rows of a group in
their input order.

Equality
    Null equals null, NaN every NaN, and -0.0 equals 0.0, as in Spark's GROUP BY. Structs are compared field by field,
    and a null struct equals only a null struct. Lists and maps are refused. Equal values have one hash (see
    ``hashing``), so an exchange puts them in one partition.

How
    The keys of a row become one integer code (Arrow's dictionary encoding), and a stable sort of the codes puts the
    rows of a group side by side. Rows are copied in windows. A group above ``window_bytes`` has several chunks, so
    that no column of text exceeds its 32-bit offsets.

Memory
    The rows, 40 bytes for each of them, two copies of a window, and the current group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Picker, array_over, batch_row_bits, values

from .hashing import partition_ids

WINDOW_BYTES = 128 * 1024 * 1024
SMALL_BYTES = 4 * 1024 * 1024
"""Smaller neighbouring batches are joined, up to this size."""

Group = tuple[tuple[Any, ...], pa.Table]


@dataclass(frozen=True)
class PlacedKeys:
    """The exchange before the groups; ``exchange`` is its text for messages."""

    exchange: str
    keys: pa.Schema
    partitions: int

    def check(self, keys: pa.RecordBatch, partition: int, stage: str) -> None:
        """Check that the exchange would send all of ``keys``, cast to its types, to ``partition``: otherwise a stage
        has changed a key, and its rows may be in several partitions. Raises InvalidRequest, also if a cast fails.
        """
        columns = []
        for column, field in zip(keys.columns, self.keys, strict=True):
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
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
            (row,) = keys.slice(first, 1).to_pylist()
            key = ", ".join(f"{name!r} = {str(value)[:80]!r}" for name, value in row.items())
            raise InvalidRequest(
                f"{stage}: {len(wrong)} of {len(ids)} groups may be in parts: {key} is in partition {partition}, "
                f"and {self.exchange} places it in partition {ids[first]}; a stage after the exchange has "
                f"changed the key; {self._remedy(keys)}",
                stage=stage,
                partition=partition,
            )

    def _remedy(self, keys: pa.RecordBatch) -> str:
        names = ", ".join(map(repr, keys.schema.names))
        return f"exchange again after that stage: .exchange({self.partitions}, {names})"


def check_groupable(schema: pa.Schema, keys: Sequence[str], stage: str) -> None:
    """Raise InvalidRequest if a key's type contains a list or a map."""
    for key in keys:
        if _is_nested(schema.field(key).type):
            raise InvalidRequest(
                f"{stage}: cannot group by {key!r} of type {schema.field(key).type}; "
                "group by a column made from it, for example its length, an element or its text",
                stage=stage,
                column=key,
            )


def groups(
    batches: list[pa.RecordBatch],
    schema: pa.Schema,
    keys: Sequence[str],
    window_bytes: int = WINDOW_BYTES,
    check: Callable[[pa.RecordBatch], None] = lambda _: None,
) -> Iterator[Group]:
    """Each group's keys as a tuple of Arrow scalars, and its rows.

    Args:
        batches: the rows, of ``schema``. The list is emptied.
        schema: of types that ``arrow.sizes`` can weigh.
        window_bytes: copied at a time, or one row if it is larger.
        check: called for each window before its groups, with one row of keys for each group.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which tasks without groups do without

    rows = _Rows(batches)
    if not rows.count:
        return
    codes = group_codes([pa.chunked_array([batch.column(key) for batch in rows.batches]) for key in keys])
    order = values(pc.array_sort_indices(codes), np.uint64).astype(np.int64)
    ends = np.cumsum(np.bincount(values(codes, np.int32)))
    sizes = rows.sizes()
    before = np.concatenate([[0], np.cumsum(sizes[order])])
    first = 0
    while first < len(ends):
        start = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(before, before[start] + window_bytes, side="right")) - 1
        last = max(first + 1, int(np.searchsorted(ends, fitting, side="right")))
        starts = np.concatenate([[start], ends[first : last - 1]])
        window = [
            rows.take(order[piece_start:piece_end])
            for piece_start, piece_end in _pieces(before, start, int(ends[last - 1]), window_bytes)
        ]
        table = pa.Table.from_batches(window, schema)
        del window
        check(_keys_at(table, keys, starts - start))
        for begin, end in zip(starts.tolist(), ends[first:last].tolist(), strict=True):
            group = table.slice(begin - start, end - begin)
            yield tuple(group.column(key)[0] for key in keys), group
        first = last


def group_codes(columns: Sequence[Any]) -> pa.Array:
    """Each row's int32 code: its group's number, from 0 by first appearance."""
    codes = np.zeros(len(columns[0]), np.int64)
    for part in (part for column in columns for part in _parts(column)):
        encoded = _codes(part)
        # Both factors are at most the number of rows, so the product fits 63 bits.
        codes = codes * (int(encoded.max()) + 1) + encoded
        codes = values(array_over(codes).dictionary_encode().indices, np.int32).astype(np.int64)
    return array_over(codes.astype(np.int32))


class _Rows:
    """The rows of several batches, numbered through."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.batches = _together(batches)
        counts = [batch.num_rows for batch in self.batches]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.count = int(self._starts[-1])
        self._pickers = [Picker(batch) for batch in self.batches]

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each row, rounded up."""
        each = [np.broadcast_to(batch_row_bits(batch), batch.num_rows) for batch in self.batches]
        return (np.concatenate(each) + 7) // 8

    def take(self, numbers: NDArray[np.int64]) -> pa.RecordBatch:
        batch_of = np.searchsorted(self._starts, numbers, side="right") - 1
        by_batch = np.argsort(batch_of, kind="stable")
        bounds = np.searchsorted(batch_of[by_batch], np.arange(len(self.batches) + 1))
        pieces = [
            self._pickers[index].take(numbers[by_batch[start:end]] - self._starts[index])
            for index, (start, end) in enumerate(pairwise(bounds.tolist()))
            if start < end
        ]
        if len(pieces) == 1:
            return pieces[0]
        places = np.empty(len(numbers), np.int64)
        places[by_batch] = np.arange(len(numbers))
        return Picker(pa.concat_batches(pieces)).take(places)


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches, small neighbours joined. Empties the given list."""
    found: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    batches.reverse()
    while batches:
        batch = batches.pop()
        if small and small_bytes + batch.nbytes > SMALL_BYTES:
            found.append(small[0] if len(small) == 1 else pa.concat_batches(small))
            small, small_bytes = [], 0
        if batch.num_rows:
            small.append(batch)
            small_bytes += batch.nbytes
    if small:
        found.append(small[0] if len(small) == 1 else pa.concat_batches(small))
    return found


def _pieces(before: NDArray[np.int64], start: int, end: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of the sorted rows, each at most this size or one row."""
    while start < end:
        fitting = int(np.searchsorted(before, before[start] + size_bytes, side="right")) - 1
        cut = min(end, max(fitting, start + 1))
        yield start, cut
        start = cut


def _keys_at(table: pa.Table, keys: Sequence[str], places: NDArray[np.int64]) -> pa.RecordBatch:
    """The key columns of some rows. Only a table of one group has several chunks; its first row is in the first."""
    columns = [table.column(key).chunk(0).take(array_over(places)) for key in keys]
    return pa.RecordBatch.from_arrays(columns, names=list(keys))


def _codes(column: Any) -> Any:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    if pa.types.is_floating(column.type):
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        # Arrow distinguishes NaNs by their bits, and -0.0 from 0.0.
        nan = pa.scalar(float("nan"), column.type)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    if column.type in wide:
        # The dictionary of all chunks may have more text than 32-bit offsets can count.
        column = column.cast(wide[column.type])
    encoded = column.dictionary_encode(null_encoding="encode")
    chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    return np.concatenate([values(chunk.indices, np.int32) for chunk in chunks]).astype(np.int64)


def _parts(column: Any) -> Iterator[Any]:
    """A struct's own validity and its fields, at any depth; anything else as it is."""
    if pa.types.is_struct(column.type):
        yield column.is_null()
        for field in column.flatten():
            yield from _parts(field)
    else:
        yield column


def _is_nested(type_: Any) -> bool:
    if pa.types.is_struct(type_):
        return any(_is_nested(field.type) for field in type_)
    return bool(pa.types.is_nested(type_))
