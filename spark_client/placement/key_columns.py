"""Arrow arrays as the keys of a placement: each mixes the values of some of its rows into running hashes.

Arrays have the types that Spark's have in Arrow. A column holds views of the array's own buffers. `fold` takes the rows
as a slice (of a batch) or as positions (of a list's elements), so nested columns are read in place.

Lists
    Rows are ordered by length, longest first, and one step folds the next element of all rows that have one. So the
    time of a slice is at least proportional to its longest list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import float_bits, offsets, values, view
from spark_client.arrow import decimal_halves

from .murmur3 import Hashes, hash_bytes, hash_ints, hash_longs

Rows: TypeAlias = "slice | NDArray[np.int64]"
"""Rows of an array, counted from its own start: a slice with both ends, or positions."""


def key_column(array: pa.Array, name: str) -> KeyColumn:
    """The key column over `array`; `name` is for messages. TypeError: rows of this type cannot be placed."""
    kind = array.type
    if types.is_struct(kind):
        return _Structs(array, name)
    if types.is_list(kind):
        return _Lists(array, name)
    if types.is_decimal(kind):
        return _Decimals(array) if kind.precision <= 18 else _LongDecimals(array)
    if (column := _PLAIN_COLUMNS.get(kind.id)) is not None:
        return column(array)
    raise TypeError(
        f"the key {name!r} contains a map ({kind}), and Spark hashes none: equal maps may differ in order"
    )


class KeyColumn(ABC):
    """Hashes the rows of one array."""

    def __init__(self, array: pa.Array) -> None:
        self._offset = array.offset
        self._validity = view(array.buffers()[0], np.uint8) if array.null_count else None

    def fold(self, rows: Rows, hashes: Hashes) -> None:
        """Mix the value of each of `rows` into its hash, in place; a null leaves the hash as it is."""
        valid = None if self._validity is None else _bits(self._validity, self._offset, rows)
        if valid is None or valid.all():
            self._mix(rows, hashes)
        elif valid.any():
            mixed = hashes.copy()
            self._mix(rows, mixed)
            np.copyto(hashes, mixed, where=valid)

    @abstractmethod
    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        """Mix all of `rows`: the caller discards the hashes of nulls, whose values are undefined."""


class _Nulls(KeyColumn):
    def fold(self, rows: Rows, hashes: Hashes) -> None:
        """Change nothing: arrays of type null have no validity bits."""

    def _mix(self, rows: Rows, hashes: Hashes) -> None: ...


class _Booleans(KeyColumn):
    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self._values = view(array.buffers()[1], np.uint8)

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        hash_ints(_bits(self._values, self._offset, rows).astype(np.int32), hashes)


class _Integers(KeyColumn):
    """Also times, in Spark's units: microseconds, and nanoseconds for a time of day."""

    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self._values = values(array, np.dtype(f"i{array.type.byte_width}"))

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        values = self._values[rows]
        if values.itemsize == 8:
            hash_longs(values, hashes)
        else:
            hash_ints(values.astype(np.int32, copy=False), hashes)


class _Floats(KeyColumn):
    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self._bits = values(array, np.dtype(f"u{array.type.byte_width}"))

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        bits = float_bits(self._bits[rows])
        if bits.itemsize == 8:
            hash_longs(bits.view(np.int64), hashes)
        else:
            hash_ints(bits.view(np.int32), hashes)


class _Decimals(KeyColumn):
    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self._low = decimal_halves(array)[:, 0]

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        hash_longs(self._low[rows], hashes)


class _LongDecimals(KeyColumn):
    """Unscaled values of up to 128 bits, as the bytes of Java's `BigInteger.toByteArray`."""

    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self._halves = decimal_halves(array)

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        halves = self._halves[rows]
        # Significant from the first byte that is not zero in the one's-complement magnitude.
        magnitudes = halves ^ (halves[:, 1:] >> 63)
        big_endian = np.ascontiguousarray(halves[:, ::-1].astype(">i8")).view(np.uint8).reshape(-1, 16)
        leading = np.ascontiguousarray(magnitudes[:, ::-1].astype(">i8")).view(np.uint8).reshape(-1, 16)
        significant = leading != 0
        first = np.where(significant.any(axis=1), significant.argmax(axis=1), 15)
        # If its top bit is set, one more byte before it has the sign.
        count = np.arange(first.size)
        first -= leading[count, first] >= 0x80
        hash_bytes(big_endian.reshape(-1), count * 16 + first, 16 - first, hashes)


class _Bytes(KeyColumn):
    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self._ends = offsets(array)
        self._data = view(array.buffers()[2], np.uint8)

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        starts, lengths = _spans(self._ends, rows)
        hash_bytes(self._data, starts, lengths, hashes)


class _Structs(KeyColumn):
    def __init__(self, array: pa.Array, name: str) -> None:
        super().__init__(array)
        fields = array.type.fields
        # field() applies the struct's offset, so rows have the same number in both.
        self._fields = [
            key_column(array.field(index), f"{name}.{field.name}") for index, field in enumerate(fields)
        ]

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        for field in self._fields:
            field.fold(rows, hashes)


class _Lists(KeyColumn):
    def __init__(self, array: pa.Array, name: str) -> None:
        super().__init__(array)
        # .values is the whole child, also for a slice: the offsets count from its start.
        self._elements = key_column(array.values, f"{name}.element")
        self._ends = offsets(array)

    def _mix(self, rows: Rows, hashes: Hashes) -> None:
        starts, lengths = _spans(self._ends, rows)
        order = np.argsort(-lengths, kind="stable")
        places = starts[order]
        mixed = hashes[order]
        ascending = lengths[order[::-1]]
        for element in range(int(lengths.max(initial=0))):
            count = lengths.size - int(np.searchsorted(ascending, element, side="right"))
            self._elements.fold(places[:count] + element, mixed[:count])
        hashes[order] = mixed


_PLAIN_COLUMNS: dict[int, Callable[[pa.Array], KeyColumn]] = {
    pa.null().id: _Nulls,
    pa.bool_().id: _Booleans,
    **{kind.id: _Integers for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())},
    **{kind.id: _Integers for kind in (pa.timestamp("us"), pa.duration("us"), pa.time64("ns"))},
    **{kind.id: _Floats for kind in (pa.float32(), pa.float64())},
    **{kind.id: _Bytes for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())},
}


def _spans(ends: NDArray[Any], rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if isinstance(rows, slice):
        bounds = ends[rows.start : rows.stop + 1].astype(np.int64)
        return bounds[:-1], np.diff(bounds)
    starts = ends[rows].astype(np.int64)
    return starts, ends[rows + 1] - starts


def _bits(bitmap: NDArray[np.uint8], offset: int, rows: Rows) -> NDArray[np.bool_]:
    if isinstance(rows, slice):
        first = offset + rows.start
        last = offset + rows.stop
        unpacked = np.unpackbits(bitmap[first >> 3 : (last + 7) >> 3], bitorder="little")
        return unpacked[first & 7 : (first & 7) + last - first].view(np.bool_)
    places = rows + offset
    bits: NDArray[np.uint8] = bitmap[places >> 3] >> (places & 7).astype(np.uint8) & 1
    return bits.view(np.bool_)
