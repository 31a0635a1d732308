"""The text in a schema: names of columns and fields, time zones, and the keys of metadata must be UTF-8.

Arrow's format demands it, but pyarrow does not check it and raises when asked for the name; readers in Rust and Java
refuse such schemas or show other names. Metadata's *values* are not checked, because programs put bytes there; readers
in Rust take only UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa


def check_text(schema: pa.Schema) -> None:
    """Raise ValueError, with the column, if a text of the schema is not UTF-8."""
    _check_keys(schema.metadata, "the schema")
    for place in range(len(schema)):
        where = f"column {place}"
        try:
            for field in _with_children(schema.field(place)):
                _check_keys(field.metadata, where)
        except UnicodeDecodeError:
            raise ValueError(
                f"{where} of the schema has a name or a time zone that is not UTF-8 text: rename it"
            ) from None


def _with_children(field: pa.Field) -> Iterator[pa.Field]:
    """The field and those in it, their names and time zones decoded."""
    _ = field.name  # decodes it
    yield field
    yield from _in(field.type)


def _in(kind: pa.DataType) -> Iterator[pa.Field]:
    if isinstance(kind, pa.BaseExtensionType):
        _ = kind.extension_name  # decodes it
        yield from _in(kind.storage_type)
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        yield from _in(kind.value_type)
    elif pa.types.is_timestamp(kind):
        _ = kind.tz  # decodes it
    for number in range(kind.num_fields):
        yield from _with_children(kind.field(number))


def _check_keys(metadata: Mapping[bytes, bytes] | None, where: str) -> None:
    try:
        for key in metadata or ():
            key.decode()
    except UnicodeDecodeError:
        raise ValueError(f"a metadata key of {where} is not UTF-8 text: leave it out") from None
