"""Layout: which columns of a changelog's rows are its key and its order, and how a producer's batch becomes rows."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import pyarrow as pa

from flight_server.keys import Hashes, compute, is_comparable, is_nested, is_plain, key_hashes, plain
from flight_server.protocol import (
    DIFF_COLUMN,
    HASH_COLUMN,
    RESERVED_COLUMNS,
    VERSION_COLUMN,
    BadFrame,
    InvalidRequest,
    KeepRule,
)

SIMPLE_COLUMNS = 64
FEW_ROWS = 256
FEW_BYTES = 64 << 10


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values of this one are kept: dictionaries, views and run-end encodings by their values."""
    if is_encoded(kind):
        return stored_type(kind.value_type)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    return kind


def is_encoded(kind: pa.DataType) -> bool:
    """Whether values of this type may take far more bytes once they are decoded for keeping."""
    return bool(pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind))


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


class Layout:
    """The columns of one changelog.

    Args:
        schema: as declared. ``_diff`` is left out, and values are kept in their :func:`stored_type`.

    Raises:
        InvalidRequest: there is no column; one has a reserved name, occurs twice, or has a type whose values cannot be
            compared; or ``keep`` names one that is not there.
    """

    def __init__(self, schema: pa.Schema, keep: KeepRule | None) -> None:
        fields = [field.with_type(stored_type(field.type)) for field in schema if field.name != DIFF_COLUMN]
        self.schema = pa.schema(fields, metadata=schema.metadata)
        names = self.schema.names
        places = {name: number for number, name in enumerate(names)}
        times = Counter(names)
        if not names:
            raise InvalidRequest("a changelog's schema has at least one column")
        for field in self.schema:
            if field.name in RESERVED_COLUMNS:
                raise InvalidRequest(f"a changelog's schema has no column {field.name!r}: rename it")
            if times[field.name] > 1:
                raise InvalidRequest(f"a changelog's columns differ in name, but {field.name!r} occurs twice")
            if not is_comparable(field.type):
                raise InvalidRequest(
                    f"column {field.name!r} has type {field.type}, whose values a changelog cannot compare: cast it"
                )
        for name in [] if keep is None else keep.columns:
            if name not in places:
                raise InvalidRequest(f"keep: there is no column {name!r}; the columns are {', '.join(names)}")
        # Without a rule every row is its own key.
        self.key = list(range(len(names))) if keep is None else [places[name] for name in keep.key]
        order = () if keep is None else keep.order_by
        self.order = [(places[each.column], each.smallest_first) for each in order]
        # A delete names these; without columns nothing can be deleted by key.
        self.key_schema = pa.schema([] if keep is None else [self.schema.field(name) for name in keep.key])

    @cached_property
    def is_simple(self) -> bool:
        """Whether a few hundred rows are sorted in about a millisecond: it has at most ``SIMPLE_COLUMNS`` columns, none
        of lists or structs.
        """
        return len(self.schema) <= SIMPLE_COLUMNS and not any(is_nested(field.type) for field in self.schema)

    def are_few(self, rows: int, size_bytes: int) -> bool:
        """Whether so many are sorted or encoded in the event loop: a thread would take about as long to begin."""
        return rows <= FEW_ROWS and size_bytes <= FEW_BYTES and self.is_simple

    @cached_property
    def row_bits(self) -> int | None:
        """What the columns of each row take; None if rows differ. Arrow takes 10 µs to sum up a batch's buffers."""
        if not all(is_plain(field.type) for field in self.schema):
            return None
        return int(sum(field.type.bit_width + field.nullable for field in self.schema))

    @cached_property
    def keys_differ_in_hash(self) -> bool:
        """Whether different keys have different hashes, unless one is null."""
        return len(self.key) == 1 and is_plain(self.schema.field(self.key[0]).type)

    @cached_property
    def block_schema(self) -> pa.Schema:
        """The columns of a block."""
        schema = self.schema.remove_metadata()
        for name, kind in (
            (HASH_COLUMN, pa.uint64()),
            (VERSION_COLUMN, pa.int64()),
            (DIFF_COLUMN, pa.int64()),
        ):
            schema = schema.append(pa.field(name, kind, nullable=False))
        return schema

    @cached_property
    def delta_schema(self) -> pa.Schema:
        return self.schema.append(pa.field(DIFF_COLUMN, pa.int64(), nullable=False))

    def hashes(self, rows: pa.RecordBatch) -> Hashes:
        return key_hashes([rows.column(number) for number in self.key], rows.num_rows)

    def check_producer(self, schema: pa.Schema, dataset: str) -> None:
        """Raise InvalidRequest unless a producer's schema is the changelog's, with or without ``_diff``."""
        number = schema.get_field_index(DIFF_COLUMN)
        if number >= 0 and not pa.types.is_integer(diff := schema.field(number).type):
            raise InvalidRequest(
                f"dataset {dataset!r}: column {DIFF_COLUMN!r} has type {diff}; it must be an integer type, above zero "
                "for rows that are asserted and below zero for rows that are retracted",
                dataset=dataset,
            )
        rows = schema if number < 0 else schema.remove(number)
        if not _same_columns(rows, self.schema):
            raise InvalidRequest(
                f"dataset {dataset!r}: the put's columns are {_types_text(rows)}, and the changelog's "
                f"{_types_text(self.schema)} (and {DIFF_COLUMN!r}, if the put retracts rows); cast or rename them",
                dataset=dataset,
            )

    def check_deleter(self, schema: pa.Schema, dataset: str) -> None:
        """Raise InvalidRequest unless a producer's schema is the key of the changelog."""
        if not len(self.key_schema):
            raise InvalidRequest(
                f"dataset {dataset!r} has no keep rule with a 'key', by which its rows could be deleted: retract them, "
                f"with -1 in column {DIFF_COLUMN!r}",
                dataset=dataset,
            )
        if DIFF_COLUMN in schema.names:
            raise InvalidRequest(
                f"dataset {dataset!r}: a delete has no column {DIFF_COLUMN!r}: it takes all rows of its keys; leave "
                "the column out, or retract rows instead",
                dataset=dataset,
            )
        if not _same_columns(schema, self.key_schema):
            raise InvalidRequest(
                f"dataset {dataset!r}: the columns of the delete are {_types_text(schema)}, and the changelog's key is "
                f"{_types_text(self.key_schema)}; give these columns alone, or cast or rename them",
                dataset=dataset,
            )

    def rows(self, batch: pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """The declared columns of a producer's batch, in their stored types, or those of ``key_schema``. It has passed
        ``check_producer`` or ``check_deleter``.
        """
        schema = self.schema if schema is None else schema
        if batch.schema.equals(schema, check_metadata=True):
            return batch
        places = {name: number for number, name in enumerate(batch.schema.names)}
        columns = []
        for field in schema:
            column = batch.column(places[field.name])
            columns.append(column if column.type == field.type else _to_stored(column, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def check_nulls(self, rows: pa.RecordBatch, dataset: str) -> None:
        """Raise BadFrame if one of the declared columns, or a nested field, has a null and is declared without."""
        for number, field in enumerate(rows.schema):
            if field.nullable and not is_nested(field.type):
                continue
            name = _null_in(rows.column(number), field)
            if name is not None:
                raise BadFrame(
                    f"dataset {dataset!r}: {name} has nulls, and the changelog's schema declares it without; "
                    "fill them, or declare the changelog with a nullable field",
                    dataset=dataset,
                )


def _to_stored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    while column.type != stored_type(column.type):
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        elif isinstance(column, pa.RunEndEncodedArray):
            column = compute().run_end_decode(column)
        else:
            column = column.cast(kind)
    return column


def _null_in(values: pa.Array, field: pa.Field) -> str | None:
    """The name of the field, or of a field in it, that has a null against its declaration."""
    if not field.nullable and values.null_count:
        return f"field {field.name!r}"
    values = plain(values)
    if _has_strict(values.type):
        for part, nested in _parts(values.drop_null()):  # values under a null count for nothing
            name = _null_in(part, nested)
            if name is not None:
                return f"{name} of {field.name!r}"
    return None


def _has_strict(kind: pa.DataType) -> bool:
    children = [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(not child.nullable or _has_strict(child.type) for child in children)


def _parts(values: pa.Array) -> list[tuple[pa.Array, pa.Field]]:
    """The nested values of an array without nulls, with their fields."""
    kind = values.type
    if pa.types.is_struct(kind):
        return list(zip(values.flatten(), kind.fields, strict=True))
    if pa.types.is_map(kind):
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        fields = [(values.keys, kind.key_field), (values.items, kind.item_field)]
        return [(part.slice(start, end - start), field) for part, field in fields]
    return [(values.flatten(), kind.value_field)]


def _same_columns(schema: pa.Schema, stored: pa.Schema) -> bool:
    """Whether a producer's columns are these, in any order."""
    types = {field.name: stored_type(field.type) for field in schema}
    return len(types) == len(schema) and types == {field.name: field.type for field in stored}


def _types_text(schema: pa.Schema) -> str:
    names = [f"{field.name}: {field.type}" for field in schema]
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
