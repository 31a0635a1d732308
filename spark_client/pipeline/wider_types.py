"""The type of a union's column: Spark's common type of both sides' columns, where every value has it.

Numbers widen among each other: integers to wider ones, integers and decimals to a decimal that holds both, either to
``double`` beside a float. Intervals of days to seconds widen to one that has the units of both. A date widens to a
timestamp only by a cast that the user writes, because it depends on the session's time zone. Nested types widen part by
part; a part may be null if it may be on either side.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_DIGITS = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}
_MAX_DIGITS = 38


def wider(left: DataType, right: DataType) -> DataType | None:
    """The common type; None if there is none."""
    if left == right or isinstance(right, NullType):
        return left
    if isinstance(left, NullType):
        return right
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        element = wider(left.elementType, right.elementType)
        nulls = left.containsNull or right.containsNull
        return None if element is None else ArrayType(element, nulls)
    if isinstance(left, MapType) and isinstance(right, MapType):
        key, value = wider(left.keyType, right.keyType), wider(left.valueType, right.valueType)
        nulls = left.valueContainsNull or right.valueContainsNull
        return None if key is None or value is None else MapType(key, value, nulls)
    if isinstance(left, StructType) and isinstance(right, StructType):
        return _struct(left, right)
    if isinstance(left, DayTimeIntervalType) and isinstance(right, DayTimeIntervalType):
        # The units by their numbers, days first.
        return DayTimeIntervalType(min(left.startField, right.startField), max(left.endField, right.endField))
    return _number(left, right)


def _struct(left: StructType, right: StructType) -> StructType | None:
    if left.names != right.names:
        return None
    fields = []
    for one, other in zip(left, right, strict=True):
        kind = wider(one.dataType, other.dataType)
        if kind is None:
            return None
        fields.append(StructField(one.name, kind, one.nullable or other.nullable, one.metadata))
    return StructType(fields)


def _number(left: DataType, right: DataType) -> DataType | None:
    numbers = (*_INTEGERS, DecimalType, FloatType, DoubleType)
    if not isinstance(left, numbers) or not isinstance(right, numbers):
        return None
    if isinstance(left, FloatType | DoubleType) or isinstance(right, FloatType | DoubleType):
        return DoubleType()
    if isinstance(left, _INTEGERS) and isinstance(right, _INTEGERS):
        return max((left, right), key=lambda kind: _DIGITS[type(kind)])
    (digits, scale), (other_digits, other_scale) = _decimal(left), _decimal(right)
    most = max(scale, other_scale)
    both = max(digits - scale, other_digits - other_scale) + most
    return DecimalType(both, most) if both <= _MAX_DIGITS else None


def _decimal(kind: DataType) -> tuple[int, int]:
    if isinstance(kind, DecimalType):
        return kind.precision, kind.scale
    return _DIGITS[type(kind)], 0  # type: ignore[index]  # an integer
