"""One form for equal keys."""

from __future__ import annotations

import pyarrow as pa


def canonical(column: pa.Array) -> pa.Array:
    """The values with one form for equal floats, also inside structs and lists: 0.0 for -0.0, and one NaN."""
    kind = column.type
    if pa.types.is_floating(kind):
        import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which tasks without groups do without

        nan, zero = pa.scalar(float("nan"), kind), pa.scalar(0.0, kind)
        return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
    if pa.types.is_struct(kind) and _has_floats(kind):
        parts = [canonical(column.field(index)) for index in range(kind.num_fields)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not _has_floats(kind):
            return column
        # The offsets count from the start of the child, also for a slice.
        validity, bounds = column.buffers()[:2]
        elements = canonical(column.values)
        return pa.Array.from_buffers(
            kind, len(column), [validity, bounds], column.null_count, column.offset, [elements]
        )
    return column


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(index).type) for index in range(kind.num_fields))
