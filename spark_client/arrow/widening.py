"""Casts a key to the type in which it is compared with a key of another type."""

from __future__ import annotations

import pyarrow as pa


def widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as ``kind``. A number as a double is the nearest one, as in Spark; any other cast that would change
    a value raises ``ArrowInvalid``.
    """
    return column if column.type == kind else column.cast(kind, safe=not pa.types.is_floating(kind))
