"""The keys of a batch's rows as they are matched: in their normal form, with a 64-bit hash of each row.

Guarantee: equal keys have equal hashes. Unequal keys may have equal ones, too, unless ``Keys.exact``: then nothing
needs to be compared after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import flags, plain, row_hashes, same
from spark_client.arrow import array_over, values

from .join_keys import KeyForm, present

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Keys:
    """Keys in their normal form, without nulls. ``given`` are their hashes, where they are not those of
    ``row_hashes``, which are computed when first asked for: what is found without them need not wait for them.
    """

    columns: tuple[pa.Array, ...]
    given: NDArray[np.uint64] | None = None
    exact: bool = False

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> Keys:
        """With the hashes that files of layers have, too."""
        exact = len(columns) == 1 and columns[0].type == pa.int64()
        return cls(tuple(columns), None, exact)

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        return row_hashes(self.columns, len(self)) if self.given is None else self.given

    @property
    def numbers(self) -> NDArray[np.int64] | None:
        """The keys themselves, if they are numbers."""
        return values(self.columns[0], np.int64) if self.exact and self.columns else None

    def take(self, positions: Positions) -> Keys:
        at = array_over(positions)
        return Keys(tuple(column.take(at) for column in self.columns), self.hashes[positions], self.exact)

    def same(self, others: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """For each row, whether the other keys' columns have the same there."""
        found = np.ones(len(self), np.bool_)
        for ours, theirs in zip(self.columns, others, strict=True):
            found &= same(ours, theirs)
        return found


@dataclass(frozen=True)
class MatchKeys:
    """The key columns of one side, and the form of each. ``null_safe``: null equals null, as by Spark's ``<=>``;
    otherwise a null matches nothing.
    """

    names: tuple[str, ...]
    forms: tuple[KeyForm, ...]
    null_safe: bool = False

    def of(self, batch: pa.RecordBatch) -> tuple[Keys, Positions | None]:
        """The keys of the rows that can match, and the positions of these rows; None for all rows."""
        columns = [plain(batch.column(name)) for name in self.names]
        if self.null_safe:
            parts = [
                part
                for form, column in zip(self.forms, columns, strict=True)
                for part in _null_safe(form, column)
            ]
            return Keys.of(parts), None
        rows = None
        valid = present(columns)
        if valid is not None:
            rows = np.flatnonzero(valid)
            columns = [column.take(array_over(rows)) for column in columns]
        return Keys.of([form.normal(column) for form, column in zip(self.forms, columns, strict=True)]), rows

    def hashes(self, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        """The hash of each row, for windows. Rows that match nothing have hashes of their places in the batch, so
        that they are not all in one window.
        """
        keys, rows = self.of(batch)
        if rows is None:
            return keys.hashes
        found = row_hashes([array_over(np.arange(batch.num_rows))], batch.num_rows)
        found[rows] = keys.hashes
        return found


def _null_safe(form: KeyForm, column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The values, one and the same under all nulls, and which are not null."""
    valid = flags(column.is_valid())
    normal = form.normal(column)
    if form.stored == pa.int64():
        normal = array_over(np.where(valid, values(normal, np.int64), 0))
    elif column.null_count:
        normal = normal.fill_null(pa.scalar(b"" if form.stored == pa.binary() else Decimal(0), form.stored))
    return normal, array_over(valid.astype(np.int64))
