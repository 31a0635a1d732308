"""SchemaMessage: a dataset's schema as its first producer sent it, and which schemas later producers may send.

Later producers of a dataset must send an equal schema (metadata aside). Readers get the dataset's schema message with
every producer's dictionaries, so the dictionary ids must agree, too. pyarrow and, by default, others number them by
their place in the schema; with other numbers the producer's message must equal the dataset's byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from flight_server.memory import Reservation
from flight_server.protocol import InvalidRequest, ipc_framing


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether a column is dictionary-encoded, at any depth."""
    return any(_has(field.type, pa.types.is_dictionary) for field in schema)


def has_runs(schema: pa.Schema) -> bool:
    """Whether a column is run-end encoded, at any depth."""
    return any(_has(field.type, pa.types.is_run_end_encoded) for field in schema)


def _has(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    if wanted(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has(kind.storage_type, wanted)
    if pa.types.is_run_end_encoded(kind):
        return _has(kind.value_type, wanted)
    return any(_has(kind.field(i).type, wanted) for i in range(kind.num_fields))


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


def _difference(wanted: pa.Schema, given: pa.Schema) -> str:
    if wanted.names != given.names:
        if len(wanted) + len(given) <= 20:
            return f"it has columns {given.names}, the dataset has {wanted.names}"
        if len(wanted) != len(given):
            return f"it has {len(given)} columns, the dataset has {len(wanted)}"
        pairs = enumerate(zip(wanted.names, given.names, strict=True))
        place, (mine, theirs) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
        return f"column {place} is {theirs!r}, in the dataset {mine!r}"
    for mine, theirs in zip(wanted, given, strict=True):
        if not mine.equals(theirs, check_metadata=False):
            return f"column {mine.name!r} is <{theirs}>, in the dataset <{mine}>"
    return "the columns differ"
