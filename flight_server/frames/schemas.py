"""Schemas: each as its first producer sent it, held once for all datasets and counted in ``metadata``.

Later producers of a dataset must send an equal schema (metadata aside). Readers get the dataset's schema message with
every producer's dictionaries, so the dictionary ids must agree, too. pyarrow and, by default, others number them by
their place in the schema; with other numbers the producer's message must equal the dataset's byte for byte.

Text
    Names of columns and fields, time zones, and the keys of metadata must be UTF-8. Arrow's format demands it, but
    pyarrow does not check it and raises when asked for the name; readers in Rust and Java refuse such schemas or show
    other names. Metadata's *values* are not checked, because programs put bytes there; readers in Rust take only UTF-8.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from flight_server.memory import Budget, Reservation
from flight_server.protocol import InvalidRequest, ipc_framing

UNCOUNTED_BYTES = 1 << 10
"""A schema up to this size is part of ``DATASET_BYTES``."""


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether a column is dictionary-encoded, at any depth."""
    return any(_has(field.type, pa.types.is_dictionary) for field in schema)


def has_runs(schema: pa.Schema) -> bool:
    """Whether a column is run-end encoded, at any depth."""
    return any(_has(field.type, pa.types.is_run_end_encoded) for field in schema)


def _has(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    if is_kind(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has(kind.storage_type, is_kind)
    if pa.types.is_run_end_encoded(kind):
        return _has(kind.value_type, is_kind)
    return any(_has(kind.field(i).type, is_kind) for i in range(kind.num_fields))


@dataclass(frozen=True)
class SchemaMessage:
    """A schema as its IPC header. Arrow's object takes several times its memory and is not held."""

    header: bytes
    room: Reservation | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, schema: pa.Schema) -> SchemaMessage:
        return cls(ipc_framing.schema_header(schema.serialize().to_pybytes()))

    @property
    def schema(self) -> pa.Schema:
        """Arrow's object, made at each call in about 100 ns per byte of the header."""
        return pa.ipc.read_schema(pa.py_buffer(ipc_framing.encapsulate(self.header)))

    def canonical(self) -> bool:
        """Whether the dictionary ids are those that pyarrow assigns."""
        return self.header == SchemaMessage.of(self.schema).header

    def check_same(self, other: SchemaMessage, dataset: str) -> None:
        """Raise InvalidRequest, with the first difference, if a producer may not send ``other``."""
        if self.header == other.header:
            return
        if ipc_framing.is_little_endian(self.header) != ipc_framing.is_little_endian(other.header):
            raise InvalidRequest(
                f"the byte order of the batches differs from dataset {dataset!r}; swap it, or write to another "
                "dataset",
                dataset=dataset,
            )
        mine, theirs = self.schema, other.schema
        if not mine.equals(theirs, check_metadata=False):
            raise InvalidRequest(
                f"the schema differs from dataset {dataset!r}: {_difference(mine, theirs)}; "
                "cast the batches, or write to another dataset",
                dataset=dataset,
            )
        if has_dictionaries(mine) and not (self.canonical() and other.canonical()):
            raise InvalidRequest(
                f"the dictionary ids of the schema differ from those of dataset {dataset!r}; "
                "number them by their place in the schema, or send plain values",
                dataset=dataset,
            )


def _difference(expected: pa.Schema, actual: pa.Schema) -> str:
    if expected.names != actual.names:
        if len(expected) + len(actual) <= 20:
            return f"it has columns {actual.names}, the dataset has {expected.names}"
        if len(expected) != len(actual):
            return f"it has {len(actual)} columns, the dataset has {len(expected)}"
        pairs = enumerate(zip(expected.names, actual.names, strict=True))
        place, (mine, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
        return f"column {place} is {theirs!r}, in the dataset {mine!r}"
    for mine, theirs in zip(expected, actual, strict=True):
        if not mine.equals(theirs, check_metadata=False):
            return f"column {mine.name!r} is <{theirs}>, in the dataset <{mine}>"
    return "the columns differ"


def check_text(schema: pa.Schema) -> None:
    """Raise ValueError, with the column, if a text of the schema is not UTF-8."""
    _check_keys(schema.metadata, "the schema")
    for place in range(len(schema)):
        where = f"column {place}"
        try:
            for each in _with_children(schema.field(place)):
                _check_keys(each.metadata, where)
        except UnicodeDecodeError:
            raise ValueError(
                f"{where} of the schema has a name or a time zone that is not UTF-8 text: rename it"
            ) from None


def _with_children(one: pa.Field) -> Iterator[pa.Field]:
    """The field and those in it, their names and time zones decoded."""
    _ = one.name  # decodes it
    yield one
    yield from _in(one.type)


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


class Schemas:
    """The table of one server. It holds its entries weakly.

    A schema of more than ``UNCOUNTED_BYTES`` has a reservation while a dataset has it; a new dataset whose schema does
    not fit is refused. Datasets hold the ``SchemaMessage``, and this its reservation.
    """

    def __init__(self, budget: Budget) -> None:
        self.max_bytes = budget.max_schema_bytes
        self._metadata = budget.metadata
        self._held: weakref.WeakValueDictionary[bytes, SchemaMessage] = weakref.WeakValueDictionary()

    def hold(self, schema: SchemaMessage, dataset: str) -> SchemaMessage:
        """The shared object of this schema. Raises InvalidRequest: it is larger than ``max_bytes``; OutOfBudget:
        ``metadata`` has no room for it.
        """
        size_bytes = len(schema.header)
        if size_bytes > self.max_bytes:
            raise InvalidRequest.about(
                dataset,
                f": its schema has {size_bytes} bytes with its metadata, more than this server's limit of "
                f"{self.max_bytes}: take fewer columns or less metadata, or raise --max-schema",
                limit_bytes=self.max_bytes,
            )
        return self._held.get(schema.header) or self._new(schema, self.room(size_bytes, dataset))

    def recovered(self, schema: SchemaMessage) -> SchemaMessage:
        """The same for a dataset found at the start: never refused."""
        size_bytes = len(schema.header)
        room = self._metadata.pool.reserve(size_bytes) if size_bytes > UNCOUNTED_BYTES else None
        return self._held.get(schema.header) or self._new(schema, room)

    def room(self, size_bytes: int, dataset: str) -> Reservation | None:
        """A reservation for so much of a schema; None up to ``UNCOUNTED_BYTES``. Raises OutOfBudget."""
        if size_bytes <= UNCOUNTED_BYTES:
            return None
        return self._metadata.reserve(size_bytes, f"the schema of dataset {dataset!r}", dataset=dataset)

    def _new(self, schema: SchemaMessage, room: Reservation | None) -> SchemaMessage:
        held = self._held[schema.header] = SchemaMessage(schema.header, room)
        return held
