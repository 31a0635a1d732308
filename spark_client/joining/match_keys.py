"""The keys of a batch's rows as they are matched: in their normal form, with a 64-bit hash of each row.

Guarantee: equal keys have equal hashes. Unequal keys may have equal ones, too, unless ``Keys.exact``: the hash of one
64-bit key is a bijection of it (Murmur3's 64-bit finaliser), and nothing needs to be compared after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import HEAD_WORDS, TAIL_WORDS, key_hashes
from spark_client.arrow import array_over, offsets, values
from spark_client.placement import row_hashes

from .join_keys import KeyForm, flags, present

Positions = NDArray[np.int64]

_HASHED_BYTES = 8 * (HEAD_WORDS + TAIL_WORDS)

_SLICE_ROWS = 16_384
"""Rows mixed at a time, as in ``placement.hashing``: they stay in a core's cache."""


@dataclass(frozen=True)
class Keys:
    """Keys in their normal form, without nulls, and their hashes."""

    columns: tuple[pa.Array, ...]
    hashes: NDArray[np.uint64]
    exact: bool = False

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> Keys:
        """With the hashes that files of layers have: the server's own, in whose order it sends a snapshot's rows."""
        hashes = key_hashes(columns, len(columns[0]))
        for column in columns:
            if column.type == pa.binary():
                # The server's do not see the middle of such texts, and many may differ only there.
                long = np.flatnonzero(np.diff(offsets(column)) > _HASHED_BYTES)
                if len(long):
                    hashes[long] ^= row_hashes([column.take(array_over(long))], len(long))
        return cls(tuple(columns), hashes)

    @classmethod
    def quick(cls, columns: Sequence[pa.Array]) -> Keys:
        """With hashes for one process, exact where they can be."""
        if len(columns) == 1 and columns[0].type == pa.int64():
            return cls(tuple(columns), mixed(values(columns[0], np.uint64)), exact=True)
        return cls(tuple(columns), row_hashes(columns, len(columns[0])))

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, positions: Positions) -> Keys:
        at = array_over(positions)
        return Keys(tuple(column.take(at) for column in self.columns), self.hashes[positions], self.exact)

    def same(self, others: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """For each row, whether the other keys' columns have the same there."""
        found = np.ones(len(self), np.bool_)
        for ours, theirs in zip(self.columns, others, strict=True):
            if ours.type == pa.int64():
                found &= values(ours, np.int64) == values(theirs, np.int64)
            else:
                import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which drivers do without

                found &= flags(pc.equal(ours, theirs))
        return found


@dataclass(frozen=True)
class MatchKeys:
    """The key columns of one side, and the form of each.

    Args:
        null_safe: null equals null, as by Spark's ``<=>``; otherwise a null matches nothing.
    """

    names: tuple[str, ...]
    forms: tuple[KeyForm, ...]
    null_safe: bool = False

    def of(self, batch: pa.RecordBatch) -> tuple[Keys, Positions | None]:
        """The keys of the rows that can match, and the positions of these rows; None for all rows."""
        columns = [_decoded(batch.column(name)) for name in self.names]
        if self.null_safe:
            parts = [
                part
                for form, column in zip(self.forms, columns, strict=True)
                for part in _null_safe(form, column)
            ]
            return Keys.quick(parts), None
        rows = None
        valid = present(columns)
        if valid is not None:
            rows = np.flatnonzero(valid)
            columns = [column.take(array_over(rows)) for column in columns]
        return Keys.quick(
            [form.normal(column) for form, column in zip(self.forms, columns, strict=True)]
        ), rows

    def hashes(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        """The hash of each row, for windows. Rows that match nothing have hashes of their places in the batch, so
        that they are not all in one window.
        """
        keys, rows = self.of(batch)
        if rows is None:
            return keys.hashes
        found = mixed(np.arange(batch.num_rows, dtype=np.uint64))
        found[rows] = keys.hashes
        return found


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers whose bits all depend on all of theirs: the finaliser of Murmur3 (x64, 128)."""
    found = np.empty(len(numbers), np.uint64)
    for start in range(0, len(numbers), _SLICE_ROWS):
        part = found[start : start + _SLICE_ROWS]
        given = numbers[start : start + _SLICE_ROWS]
        np.bitwise_xor(given, given >> _SHIFT, out=part)
        for factor in _FACTORS:
            part *= factor
            part ^= part >> _SHIFT
    return found


_SHIFT = np.uint64(33)
_FACTORS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _null_safe(form: KeyForm, column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The values, one and the same under all nulls, and which are not null."""
    valid = flags(column.is_valid())
    normal = form.normal(column)
    if form.stored == pa.int64():
        normal = array_over(np.where(valid, values(normal, np.int64), 0))
    elif column.null_count:
        normal = normal.fill_null(pa.scalar(b"" if form.stored == pa.binary() else Decimal(0), form.stored))
    return normal, array_over(valid.astype(np.int64))
