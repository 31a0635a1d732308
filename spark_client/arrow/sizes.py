"""The sizes of record batches, in two senses that differ for a slice.

*Held* bytes are those that a batch keeps alive: a slice of ten rows keeps the buffers of all its parent's rows, and a
column of a received message keeps the message. `held_buffers` follows each buffer to its allocation.

*Own* bytes are those of the batch's rows in separate buffers, and in an encoded frame. They are known row by row, so
that a frame can be cut before it is made.

pyarrow's `get_total_buffer_size` is neither: it counts a buffer inside a larger one by its own size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import has_elements, is_bytes, offsets

RowBytes = int | NDArray[np.int64]
"""Bytes of each row; one number when all have the same."""


def check_type(kind: pa.DataType, name: str) -> None:
    """TypeError: rows of this type have no known size, or would bring other rows' buffers into a frame."""
    if isinstance(kind, pa.BaseExtensionType):
        check_type(kind.storage_type, name)
    elif types.is_dictionary(kind):
        check_type(kind.value_type, name)
    elif has_elements(kind) or types.is_struct(kind):
        for index in range(kind.num_fields):
            check_type(kind.field(index).type, f"{name}.{kind.field(index).name}")
    elif not (types.is_null(kind) or types.is_primitive(kind) or is_bytes(kind) or _is_fixed(kind)):
        raise TypeError(
            f"the column {name!r} has the type {kind}, whose rows cannot be moved one by one: "
            "cast views and run-end encodings to the plain type, and take unions apart"
        )


def inner_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The type and those inside of it: of fields, elements, an encoding's values, and an extension's storage."""
    yield kind
    if isinstance(kind, pa.BaseExtensionType):
        yield from inner_types(kind.storage_type)
    elif types.is_dictionary(kind):
        yield from inner_types(kind.value_type)
    for index in range(kind.num_fields):
        yield from inner_types(kind.field(index).type)


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether a column of this type has a dictionary anywhere."""
    return not types.is_primitive(kind) and any(map(types.is_dictionary, inner_types(kind)))


def allocations(arrays: Iterable[pa.Array]) -> dict[int, int]:
    """Address and size of each allocation that the arrays' buffers are part of."""
    sizes: dict[int, int] = {}
    for array in arrays:
        for buffer in array.buffers():
            if buffer is None:
                continue
            while buffer.parent is not None:
                buffer = buffer.parent  # noqa: PLW2901  # up to the allocation that the slice is of
            sizes[buffer.address] = buffer.size
    return sizes


def held_buffers(batch: pa.RecordBatch) -> dict[int, int]:
    """The :func:`allocations` that the batch's rows keep alive."""
    return allocations(batch.columns)


def buffer_count(batch: pa.RecordBatch) -> int:
    """How many buffers the columns have, at all depths."""
    return sum([len(column.buffers()) for column in batch.columns])


def row_bytes(batch: pa.RecordBatch) -> RowBytes:
    """The *own* bytes of each row, rounded up."""
    if all(map(types.is_primitive, batch.schema.types)):
        return (int(batch_bits_before(batch, np.array([1]))[0]) + 7) // 8
    sizes = np.diff(batch_bits_before(batch, np.arange(batch.num_rows + 1)))
    sizes += 7
    sizes >>= 3
    return sizes


def batch_bits_before(batch: pa.RecordBatch, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bits of all rows before each place, over all columns: values, offsets and validity, at any depth. Its time
    depends on the number of places only.
    """
    bits, others = 0, []
    for column in batch.columns:
        kind = column.type
        if types.is_primitive(kind):  # most columns, and each call costs as much as the sum
            bits += int(kind.bit_width) + (column.buffers()[0] is not None)
        else:
            others.append(column)
    total: NDArray[np.int64] = places * bits
    for column in others:
        total += _bits_before(column, places)
    return total


def _bits_before(array: pa.Array, places: NDArray[np.int64]) -> NDArray[np.int64]:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _bits_before(array.storage, places)
    if types.is_null(kind):
        return places * 0
    validity = 0 if array.buffers()[0] is None else 1
    if types.is_primitive(kind):
        return places * (int(kind.bit_width) + validity)
    bits = places * validity
    if types.is_dictionary(kind):
        bits += places * int(kind.index_type.bit_width)
    elif types.is_struct(kind):
        for index in range(kind.num_fields):
            bits += _bits_before(array.field(index), places)
    elif types.is_fixed_size_list(kind):
        size: int = kind.list_size
        elements = array.values.slice(array.offset * size, len(array) * size)
        bits += _bits_before(elements, places * size)
    elif has_elements(kind) or is_bytes(kind):
        bounds = offsets(array)
        inside = bounds[np.append(places, 0)].astype(np.int64)
        before = inside * 8 if is_bytes(kind) else _bits_before(array.values, inside)
        bits += before[:-1] - before[-1]
        bits += places * (bounds.itemsize * 8)
    else:
        bits += places * int(kind.bit_width)
    return bits


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(types.is_fixed_size_binary(kind) or types.is_decimal(kind) or types.is_interval(kind))


def readable_size(size_bytes: int) -> str:
    """As ``1.5 MiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.1f} {unit}"
    return f"{size_bytes} B"
