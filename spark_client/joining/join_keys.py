"""Join keys in one form on both sides, so that equal bits are equal keys.

Guarantee: two keys are in :meth:`KeyForm.normal` equal exactly where Spark's join (ANSI mode, its default) finds
them equal: -0.0 equals 0.0, every NaN equals every NaN, integers of different widths compare as values, strings by
their bytes. A null equals nothing: :func:`present` says which rows have no null in any key.

Types that differ are compared in the wider one, as Spark does it by implicit casts: integers in ``bigint``, an integer
or decimal and a float in ``double``, decimals and integers in a decimal that holds both. Other pairs, and types that
have no order of their own (lists, maps, structs), are refused by an error that names the cast.

The keys of a batch's rows come with a 64-bit hash of each row (:class:`Keys`). Equal keys have equal hashes. Unequal
keys may have equal ones, too, unless ``Keys.exact``: then nothing needs to be compared after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import flags, float_bits, row_hashes, same
from flight_server.protocol import InvalidRequest
from spark_client.arrow import array_over, values, widened

_MAX_DIGITS = 38
_LONG_DIGITS = 20
"""The digits of the decimal that Spark makes of a ``bigint``."""

_SMALL_DIGITS = {1: 3, 2: 5, 4: 10, 8: _LONG_DIGITS}
"""The digits of the decimal that Spark makes of an integer, by its width in bytes."""


@dataclass(frozen=True)
class KeyForm:
    """The common form of one key: the Arrow type in which both sides are compared, and whether it is a number's bits.

    Args:
        compared: the type to which both sides are cast.
        stored: the type of the normal form: ``int64``, ``binary`` or a decimal.
    """

    compared: pa.DataType
    stored: pa.DataType

    @classmethod
    def of(cls, left: pa.DataType, right: pa.DataType, where: str) -> KeyForm:
        """The form for a pair of types. Raises InvalidRequest: Spark does not compare them, or not without a cast that
        only the user can choose.
        """
        compared = _common(_plain(left), _plain(right))
        if compared is None:
            remedy = "cast one to the other's type"
            if types.is_nested(left) or types.is_nested(right):
                remedy = (
                    "join by columns of its parts, or by a text of it, which to_json makes in Spark before"
                )
            elif left == right:
                remedy = "cast both to a type that a join compares, such as bigint, date or string"
            raise InvalidRequest(f"{where}: {left} and {right} are not compared; {remedy}")
        if types.is_string(compared) or types.is_binary(compared):
            return cls(compared, pa.binary())
        if types.is_decimal(compared):
            return cls(compared, compared)
        return cls(compared, pa.int64())

    def normal(self, column: pa.Array) -> pa.Array:
        """A column without nulls, of a type for which this form was made, in the normal form."""
        column = widened(column, self.compared)
        if types.is_float64(self.compared):
            return array_over(float_bits(values(column, np.uint64)).view(np.int64))
        if self.stored != pa.int64():
            return column.cast(self.stored)
        return (
            column.view(pa.int64())
            if column.type.bit_width == 64
            else column.cast(pa.int32()).cast(pa.int64())
        )


def present(columns: Sequence[pa.Array]) -> NDArray[np.bool_] | None:
    """Which rows have no null in these columns; None for all."""
    every: NDArray[np.bool_] | None = None
    for column in columns:
        if column.null_count:
            valid = flags(column.is_valid())
            every = valid if every is None else every & valid
    return every


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of text or bytes with narrow offsets; any other as it is."""
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    for alike in (types.is_signed_integer, types.is_boolean, types.is_date32, types.is_floating):
        if alike(left) and alike(right):
            return {types.is_signed_integer: pa.int64(), types.is_floating: pa.float64()}.get(alike, left)
    numbers: tuple[Callable[[Any], bool], ...] = (
        types.is_signed_integer,
        types.is_decimal,
        types.is_floating,
    )
    if all(any(is_number(kind) for is_number in numbers) for kind in (left, right)):
        if types.is_floating(left) or types.is_floating(right):
            return pa.float64()
        return _common_decimal(left, right)
    if types.is_string(left) or types.is_binary(left):
        return left if left == right else None
    if types.is_timestamp(left) and types.is_timestamp(right):
        if (left.tz is None) is not (right.tz is None):
            return None
        return pa.timestamp("us", "UTC" if left.tz is not None else None)
    if types.is_time64(left) and left == right:
        return left
    if types.is_duration(left) and types.is_duration(right):
        return pa.duration("us")
    return None


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    (digits, scale), (other_digits, other_scale) = _digits(left), _digits(right)
    most = max(scale, other_scale)
    precision = max(digits - scale, other_digits - other_scale) + most
    # Spark rounds where no decimal holds both; a rounded key would be another key.
    return pa.decimal128(precision, most) if precision <= _MAX_DIGITS else None


def _digits(kind: pa.DataType) -> tuple[int, int]:
    return (kind.precision, kind.scale) if types.is_decimal(kind) else (_SMALL_DIGITS[kind.byte_width], 0)


Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Keys:
    """Keys in their normal form, without nulls. ``known_hashes`` are their hashes, where they are not those of
    ``row_hashes``, which are computed when first asked for: what is found without them need not wait for them.
    """

    columns: tuple[pa.Array, ...]
    known_hashes: NDArray[np.uint64] | None = None
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
        return row_hashes(self.columns, len(self)) if self.known_hashes is None else self.known_hashes

    @property
    def numbers(self) -> NDArray[np.int64] | None:
        return values(self.columns[0], np.int64) if self.exact and self.columns else None

    def take(self, positions: Positions) -> Keys:
        at = array_over(positions)
        return Keys(tuple(column.take(at) for column in self.columns), self.hashes[positions], self.exact)

    def same(self, others: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """For each row, whether the other keys' columns have the same there."""
        equal = np.ones(len(self), np.bool_)
        for ours, theirs in zip(self.columns, others, strict=True):
            equal &= same(ours, theirs)
        return equal


@dataclass(frozen=True)
class MatchKeys:
    """The key columns of one side, and the form of each. A null matches nothing."""

    names: tuple[str, ...]
    forms: tuple[KeyForm, ...]

    def of(self, batch: pa.RecordBatch) -> tuple[Keys, Positions | None]:
        """The keys of the rows that can match, and the positions of these rows; None for all rows."""
        columns = [batch.column(name) for name in self.names]
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
        hashes = row_hashes([array_over(np.arange(batch.num_rows))], batch.num_rows)
        hashes[rows] = keys.hashes
        return hashes
