"""Columns whose plain order is Spark's order of rows.

Guarantee: for rows ``a`` and ``b``, the codes of ``a`` are before, equal to or after those of ``b`` exactly where
Spark's ORDER BY puts ``a`` before, beside or after ``b``: NaN is greater than every number and equals every NaN, -0.0
equals 0.0, text is compared by its bytes, structs field by field, lists element by element and then by length; inside
of both, a null is less than every value. Rows of several batches compare, too, if their types are the same.

How
    Numbers, times and booleans become unsigned integers of the same order; of descending keys, their complements. A
    null has a code of its own, or a column of its own before it where all 64 bits are taken. Text and binary stay as
    they are. A list of values of a fixed width becomes binary: its elements' codes, most significant byte first.

Refused
    Maps, which Spark cannot sort, and lists of text, binary or lists. Other types are those of Spark.

Ranges
    :func:`ranges_of` numbers ranges of rows: the range of a row is the number of boundaries that are not after it.
    Column by column, a value becomes its place among the boundaries' values: odd at one of them, even between two.
    Places of several columns are combined into one number, and numbered again against those of the boundaries, so
    that they stay below twice the number of boundaries. Each column is one binary search for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import (
    array_over,
    byte_lists,
    compute,
    elements,
    flags,
    float_bits,
    has_elements,
    is_bytes,
    values,
)

from .widening import decimal_halves

Column: TypeAlias = "NDArray[Any] | pa.Array"
"""Unsigned integers, or binary without nulls."""

_SMALL_BITS = 32
"""Values of at most so many bits have room for a null in their 64-bit code."""


@dataclass(frozen=True)
class SortKey:
    """A column's name and its order; ``nulls_first`` None: as in Spark, exactly if it is not descending."""

    column: str
    descending: bool = False
    nulls_first: bool | None = None

    def __post_init__(self) -> None:
        if self.nulls_first is None:
            object.__setattr__(self, "nulls_first", not self.descending)

    def __str__(self) -> str:
        direction = " desc" if self.descending else ""
        nulls = " nulls first" if self.nulls_first else " nulls last"
        return f"{self.column}{direction}{nulls if self.nulls_first is self.descending else ''}"


class SortCodes:
    """The codes of some rows, column by column. Where ``descending`` says so, a binary column's greatest value is the
    first.
    """

    def __init__(self, columns: Sequence[Column], descending: Sequence[bool], rows: int) -> None:
        self.columns = tuple(columns)
        self.descending = tuple(descending)
        self.rows = rows

    @classmethod
    def of(cls, batch: pa.RecordBatch, keys: Sequence[SortKey]) -> SortCodes:
        """The codes of a batch's rows. TypeError: a key's type has no order here; the text names what helps."""
        return cls.of_columns([batch.column(key.column) for key in keys], keys, batch.num_rows)

    @classmethod
    def of_columns(cls, columns: Sequence[pa.Array], keys: Sequence[SortKey], rows: int) -> SortCodes:
        """As :meth:`of`, of the keys' columns in turn."""
        coded: list[tuple[Column, bool]] = []
        for column, key in zip(columns, keys, strict=True):
            coded += _codes(column, key)
        return cls([column for column, _ in coded], [descending for _, descending in coded], rows)

    @classmethod
    def concat(cls, parts: Sequence[SortCodes]) -> SortCodes:
        """The rows of one or more, of equal keys and types, one after the other."""
        first = parts[0]
        if len(parts) == 1:
            return first
        columns = [_together(each) for each in zip(*(part.columns for part in parts), strict=True)]
        return cls(columns, first.descending, sum(part.rows for part in parts))

    @property
    def size_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def slice(self, start: int, end: int) -> SortCodes:
        """The rows from ``start`` to before ``end``, not copied."""
        columns = [
            column[start:end] if isinstance(column, np.ndarray) else column.slice(start, end - start)
            for column in self.columns
        ]
        return SortCodes(columns, self.descending, end - start)

    def order(self) -> NDArray[np.int64]:
        """The rows' numbers in their order; those of equal rows ascend."""
        kept = [
            (column, descending)
            for column, descending in zip(self.columns, self.descending, strict=True)
            if not _is_constant(column)
        ]
        if not kept:
            return np.arange(self.rows, dtype=np.int64)
        numbers = [column for column, _ in kept if isinstance(column, np.ndarray)]
        if len(numbers) == len(kept):
            if len(numbers) == 1:
                return np.argsort(numbers[0], kind="stable")
            return np.lexsort(numbers[::-1])
        names = [str(number) for number in range(len(kept))]
        table = pa.RecordBatch.from_arrays(
            [array_over(column) if isinstance(column, np.ndarray) else column for column, _ in kept],
            names=names,
        )
        orders = ["descending" if descending else "ascending" for _, descending in kept]
        return values(
            compute().sort_indices(table, sort_keys=list(zip(names, orders, strict=True))), np.uint64
        ).astype(np.int64)

    def ascends(self) -> bool:
        undecided = np.ones(max(0, self.rows - 1), np.bool_)
        for column, descending in zip(self.columns, self.descending, strict=True):
            less, greater = _neighbours(column)
            if descending:
                less, greater = greater, less
            if bool((greater & undecided).any()):
                return False
            undecided &= ~less
        return True

    def changes(self) -> NDArray[np.bool_]:
        """Of each row but the last, whether the next one has other keys."""
        changed = np.zeros(max(0, self.rows - 1), np.bool_)
        for column in self.columns:
            less, greater = _neighbours(column)
            changed |= less | greater
        return changed

    def place(self, row: int) -> tuple[Any, ...]:
        """A row's codes as Python values; compared, they give the rows' order."""
        return tuple(
            int(column[row])
            if isinstance(column, np.ndarray)
            else (_Reversed(column[row].as_py()) if descending else column[row].as_py())
            for column, descending in zip(self.columns, self.descending, strict=True)
        )

    def count_before(self, place: tuple[Any, ...], *, equal: bool) -> int:
        """How many of the rows, which ascend, are before the place; with ``equal`` also those at it."""
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            here = self.place(middle)
            if here < place or (equal and here == place):
                low = middle + 1
            else:
                high = middle
        return low


@total_ordering
class _Reversed:
    """Bytes of a descending column."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self._data == other._data

    def __lt__(self, other: _Reversed) -> bool:
        return self._data > other._data

    def __hash__(self) -> int:
        return hash(self._data)


def check_sortable(kind: pa.DataType, name: str) -> None:
    """Raise TypeError if rows cannot be sorted by a column of this type; the text says what helps."""
    _codes(pa.nulls(0, kind), SortKey(name))


def _codes(array: pa.Array, key: SortKey) -> list[tuple[Column, bool]]:
    """The columns for one key, and which of them are in descending order."""
    kind = array.type
    if types.is_null(kind):
        return []
    if types.is_struct(kind):
        columns: list[tuple[Column, bool]] = [(_flag(_valid(array), len(array), key), False)]
        for field, inner in zip(kind, array.flatten(), strict=True):
            # Inside of a value, nulls are less than values; its order as a whole is reversed.
            columns += _codes(inner, SortKey(f"{key.column}.{field.name}", key.descending))
        return columns
    if has_elements(kind) and not types.is_map(kind):
        return _binary_codes(_list_codes(array, key.column), _valid(array), key)
    if is_bytes(kind):
        wide = types.is_large_string(kind) or types.is_large_binary(kind)
        return _binary_codes(array.cast(pa.large_binary() if wide else pa.binary()), _valid(array), key)
    return [(column, False) for column in _number_codes(array, key)]


def _number_codes(array: pa.Array, key: SortKey) -> list[NDArray[Any]]:
    numbers, bits = _numbers(array, key.column)
    valid = _valid(array)
    if key.descending:
        numbers = [~each for each in numbers]
    if bits > _SMALL_BITS:
        if valid is not None:
            numbers = [np.where(valid, each, np.uint64(0)) for each in numbers]
        return [_flag(valid, len(array), key), *numbers]
    # Nulls have their code also where this batch has none, because the column's other batches may have some.
    (code,) = (each & np.uint64((1 << bits) - 1) for each in numbers)
    code += np.uint64(1)
    null = np.uint64(0 if key.nulls_first else (1 << bits) + 1)
    return [code if valid is None else np.where(valid, code, null)]


def _binary_codes(
    column: pa.Array, valid: NDArray[np.bool_] | None, key: SortKey
) -> list[tuple[Column, bool]]:
    if valid is not None:
        column = compute().fill_null(column, pa.scalar(b"", column.type))
    return [(_flag(valid, len(column), key), False), (column, key.descending)]


def _flag(valid: NDArray[np.bool_] | None, rows: int, key: SortKey) -> NDArray[np.uint8]:
    """Of a null, less than that of a value, or greater."""
    if valid is None:
        return np.full(rows, 1, np.uint8)
    return np.where(valid, np.uint8(1), np.uint8(0 if key.nulls_first else 2))


def _valid(array: pa.Array) -> NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    return flags(array.is_valid())


def _numbers(array: pa.Array, name: str) -> tuple[list[NDArray[np.uint64]], int]:
    """Columns of unsigned integers in the order of the values, and how many bits the value has."""
    kind = array.type
    if types.is_boolean(kind):
        return [values(array.cast(pa.uint8()), np.uint8).astype(np.uint64)], 1
    if types.is_floating(kind):
        return [_float_codes(array)], int(kind.bit_width)
    if types.is_decimal(kind):
        low, high = decimal_halves(array).T
        if kind.precision <= 18:
            return [_order_signed(low, 64)], 64
        return [_order_signed(high, 64), np.ascontiguousarray(low).view(np.uint64)], 128
    if (
        types.is_signed_integer(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_time(kind)
    ):
        bits = int(kind.bit_width)
        return [_order_signed(values(array, np.dtype(f"i{bits // 8}")), bits)], bits
    raise TypeError(
        f"the column {name!r} contains {kind}: Spark sorts by no map, either; sort by a column made from it, for "
        "example a value of one key"
    )


def _order_signed(numbers: NDArray[Any], bits: int) -> NDArray[np.uint64]:
    lowest = np.uint64(1 << (bits - 1))
    if bits == 64:
        return np.ascontiguousarray(numbers).view(np.uint64) ^ lowest
    return (numbers.astype(np.int64) + np.int64(lowest)).view(np.uint64)


def _float_codes(array: pa.Array) -> NDArray[np.uint64]:
    width = array.type.byte_width
    bits = float_bits(values(array, np.dtype(f"u{width}")))
    sign = bits.dtype.type(1 << (8 * width - 1))
    return np.where(bits & sign, ~bits, bits | sign).astype(np.uint64)


def _list_codes(array: pa.Array, name: str) -> pa.Array:
    inner, bounds = elements(array)
    columns = [column for column, _ in _codes(inner, SortKey(f"{name}.element"))]
    if not all(isinstance(column, np.ndarray) for column in columns):
        raise TypeError(
            f"the column {name!r} contains {array.type}, a list whose elements have no fixed width: sort by a "
            "column made from it, for example an element, its length or its text"
        )
    pieces = [
        np.ascontiguousarray(column.astype(column.dtype.newbyteorder(">")))
        .view(np.uint8)
        .reshape(-1, column.itemsize)
        for column in columns
    ]
    # A list of nulls only has no codes; its length still counts.
    return byte_lists(array, bounds, np.hstack(pieces) if pieces else np.zeros((len(inner), 1), np.uint8))


def _together(columns: Sequence[Any]) -> Column:
    return np.concatenate(columns) if isinstance(columns[0], np.ndarray) else pa.concat_arrays(columns)


def _is_constant(column: Column) -> bool:
    if not isinstance(column, np.ndarray):
        return False
    return len(column) == 0 or bool(column[0] == column[-1] and column.min() == column.max())


def _neighbours(column: Column) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each row but the last: whether it is less, or greater, than the next one."""
    if isinstance(column, np.ndarray):
        return column[:-1] < column[1:], column[:-1] > column[1:]
    first, second = column[:-1], column[1:]
    return tuple(  # type: ignore[return-value]  # of two comparisons
        flags(compare(first, second)) for compare in (compute().less, compute().greater)
    )


def ranges_of(rows: SortCodes, boundaries: SortCodes) -> NDArray[np.int32]:
    """The range, 0 to the number of boundaries, of each row. The boundaries ascend."""
    codes = np.zeros(rows.rows, np.int64)
    bounds = np.zeros(boundaries.rows, np.int64)
    for column, other, descending in zip(rows.columns, boundaries.columns, rows.descending, strict=True):
        inner, at_bounds = _places(column, other, descending=descending)
        base = 2 * boundaries.rows + 1
        codes, bounds = codes * base + inner, bounds * base + at_bounds
        codes, bounds = _among(codes, bounds), _among(bounds, bounds)
    return np.searchsorted(bounds, codes, side="right").astype(np.int32)


def _places(column: Any, boundaries: Any, *, descending: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the rows' and of the boundaries' own values among the boundaries' values."""
    if isinstance(column, np.ndarray):
        return _among(column, boundaries), _among(boundaries, boundaries)
    wide = pa.large_binary()
    known = pa.array(sorted(set(boundaries.to_pylist())), wide)
    places = []
    for data in (column.cast(wide), boundaries.cast(wide)):
        low, high = (_search(known, data, side) for side in ("left", "right"))
        places.append(2 * len(known) - low - high if descending else low + high)
    return places[0], places[1]


def _search(known: Any, data: Any, side: Any) -> NDArray[np.int64]:
    if hasattr(compute(), "search_sorted"):
        return values(compute().search_sorted(known, data, side=side), np.uint64).astype(np.int64)
    # pyarrow 22 has no such function. Bytes of Python have the same order.
    one, other = (np.array([*each.to_pylist(), None], object)[:-1] for each in (known, data))
    return np.searchsorted(one, other, side=side).astype(np.int64)


def _among(numbers: NDArray[Any], boundaries: NDArray[Any]) -> NDArray[np.int64]:
    """Twice the position among the boundaries' distinct values, and one more at one of them."""
    known = np.unique(boundaries)
    low = np.searchsorted(known, numbers, side="left")
    return low + np.searchsorted(known, numbers, side="right")
