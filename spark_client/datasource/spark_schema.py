"""The schema that Spark gives a dataset, and the exact Arrow schema that Spark takes for it.

Guarantee: every batch that :class:`SparkSchema` casts has the schema ``to_arrow_schema(struct, timezone="UTC")``,
which Spark compares with the first batch only: it would misread a later one that differs. A dataset whose type Spark
cannot hold is refused on the driver, by an error that names the column and the cast that helps.

Cast
    Dictionary, run-end and text view encodings, large and fixed-size layouts, times of another unit or zone, date64,
    narrower decimals, extension types to their storage; ``uint8``, ``uint16``, ``uint32`` and ``float16`` to the next
    wider type that Spark has. All casts are safe ones (``arrow.types``): a value that would lose digits, such as a
    timestamp with nanoseconds, is an error in the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest, did_you_mean
from spark_client.arrow import Declared
from spark_client.jobs import utc_arrow_schema
from spark_client.pyspark_parts import from_arrow_schema, from_arrow_type

_MAX_DIGITS = 38


class _NoType(Exception):
    """Spark has no type for it; the text is the remedy."""


def spark_struct(schema: pa.Schema, dataset: str, columns: Sequence[str] | None = None) -> StructType:
    """Spark's schema of a dataset, or of these columns in this order. Raises InvalidRequest: a column that the dataset
    does not have, a name that appears twice, or a type that Spark cannot hold.
    """
    names = _checked_names(schema, dataset, columns)
    fields = []
    for field in (schema.field(name) for name in names):
        try:
            type_ = _plain(field.type)
        except _NoType as error:
            raise InvalidRequest(
                f"dataset {dataset!r}: Spark has no type for column {field.name!r} of type {field.type}; {error}, or "
                "leave the column out by the option 'columns'",
                dataset=dataset,
                column=field.name,
            ) from None
        fields.append(pa.field(field.name, type_, field.nullable))
    return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)


@dataclass(frozen=True)
class SparkSchema:
    """Casts a dataset's batches in a task."""

    declared: Declared

    @classmethod
    def of(cls, schema: pa.Schema, dataset: str, struct: StructType) -> SparkSchema:
        """For a dataset that has ``schema`` and is read as ``struct``, which names its columns. Raises InvalidRequest:
        the dataset does not have these columns, or not in types that can be cast to these.
        """
        _checked_names(schema, dataset, struct.names)
        made = cls(Declared(f"dataset {dataset!r}", utc_arrow_schema(struct)))
        # Refused here, not in a task.
        made.cast(pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema))
        return made

    def cast(self, batch: Any) -> Any:
        """The batch as Spark takes it. Raises InvalidRequest: a value does not fit."""
        return self.declared.cast(batch.select(self.declared.schema.names))


def _checked_names(schema: pa.Schema, dataset: str, columns: Sequence[str] | None) -> Sequence[str]:
    names = schema.names if columns is None else columns
    if not names:
        raise InvalidRequest(
            f"dataset {dataset!r} has no columns, and Spark cannot read such a one", dataset=dataset
        )
    counts = Counter(schema.names)
    for name in names:
        count = counts[name]
        if not count:
            raise InvalidRequest(
                f"dataset {dataset!r} has no column {name!r}; it has {', '.join(map(repr, schema.names))}"
                f"{did_you_mean(name, schema.names)}",
                dataset=dataset,
                column=name,
            )
        if count > 1:
            raise InvalidRequest(
                f"dataset {dataset!r} has {count} columns {name!r}: rename one and write it again, or leave them out "
                "by the option 'columns'",
                dataset=dataset,
                column=name,
            )
    return names


_SAME_VALUES: tuple[tuple[Callable[[Any], bool], Any], ...] = (
    (lambda t: pa.types.is_large_string(t) or pa.types.is_string_view(t), pa.string()),
    (lambda t: pa.types.is_large_binary(t) or pa.types.is_binary_view(t), pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_time, pa.time64("ns")),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_float16, pa.float32()),
)
_HELPS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (pa.types.is_uint64, "cast it before the put to int64, or to decimal128(20, 0)"),
    (pa.types.is_interval, "make it duration('us') before the put"),
    (pa.types.is_union, "make it a struct with a nullable field for each member before the put"),
    # pyarrow 26 makes invalid offsets when it casts one.
    (lambda t: pa.types.is_list_view(t) or pa.types.is_large_list_view(t), "put it as a list"),
)


def _plain(type_: Any) -> Any:
    """The type in Spark's layout. Raises _NoType."""
    types = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return _plain(type_.storage_type)
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_):
        return _plain(type_.value_type)
    if types.is_struct(type_):
        return _plain_struct(type_)
    if types.is_map(type_):
        value = pa.field("value", _plain(type_.item_type), type_.item_field.nullable)
        return pa.map_(pa.field("key", _plain(type_.key_type), nullable=False), value)
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return pa.list_(pa.field("element", _plain(type_.value_type), type_.value_field.nullable))
    if types.is_decimal(type_):
        return _plain_decimal(type_)
    for belongs, plain in _SAME_VALUES:
        if belongs(type_):
            return plain
    for belongs, helps in _HELPS:
        if belongs(type_):
            raise _NoType(helps)
    try:
        from_arrow_type(type_, prefer_timestamp_ntz=True)
    except PySparkTypeError as error:
        raise _NoType("cast it to string before the put") from error
    return type_


def _plain_struct(type_: Any) -> Any:
    try:
        own = from_arrow_type(type_, prefer_timestamp_ntz=True)
    except PySparkTypeError:  # for a field, which is made plain below, or refused there
        own = None
    if own is not None and not isinstance(own, StructType):
        return type_  # a variant, a geometry: Spark knows it by its fields' metadata
    names = [field.name for field in type_]
    if len(set(names)) < len(names):
        raise _NoType("rename the fields of a struct that have one name before the put")
    return pa.struct([pa.field(field.name, _plain(field.type), field.nullable) for field in type_])


def _plain_decimal(type_: Any) -> Any:
    if type_.precision > _MAX_DIGITS or not 0 <= type_.scale <= type_.precision:
        digits = max(0, min(type_.scale, _MAX_DIGITS))
        raise _NoType(f"cast it before the put to decimal128({_MAX_DIGITS}, {digits}), or to double")
    return pa.decimal128(type_.precision, type_.scale)
