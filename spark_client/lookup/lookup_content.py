"""The keys and values of a changelog that a lookup keeps on each host, as a value that is pickled into tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_client.arrow import Declared, Picker
from spark_client.hosts import Copies
from spark_client.joining import KeyForm, present

DIFF = "_diff"


class VersionSource(Protocol):
    """One generation of a changelog, at a server. Pickles."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str:
        """Unlike that of any other generation, changelog or server."""
        ...

    def snapshot(self, version: int, /) -> AbstractContextManager[Iterable[pa.RecordBatch]]:
        """The rows at ``version``, at least one batch. Raises ``Compacted``."""
        ...

    def deltas(self, after: int, version: int, /) -> AbstractContextManager[Iterable[pa.RecordBatch]]:
        """The changes after one version up to another, with a column ``_diff``, at least one batch. Raises
        ``Compacted``.
        """
        ...

    def pin(self, name: str, /, *, releases: str | None = None) -> int:
        """The version that the pin of this name holds; for a new one it is the newest. The pin ``releases`` ends.

        Raises ``Compacted`` if the pin has ended, and its version is gone.
        """
        ...


@dataclass(frozen=True)
class LookupContent:
    """The keys and values of a changelog that a lookup needs.

    Args:
        keys: the names of the key columns.
        forms: of each key, see ``join_keys``.
        declared: the keys and then the values, as Spark takes them.
        application: the driver's name in its hosts' files.
    """

    source: VersionSource
    keys: tuple[str, ...]
    forms: tuple[KeyForm, ...]
    declared: Declared
    application: str
    copies: Copies

    @cached_property
    def digest(self) -> str:
        """The same for equal contents, 20 hexadecimal digits."""
        text = repr((self.source.identity, self.keys, self.forms, self.declared.schema.to_string()))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @cached_property
    def values(self) -> pa.Schema:
        return pa.schema(list(self.declared.schema)[len(self.keys) :])

    @cached_property
    def layer_schema(self) -> pa.Schema:
        """The schema of a layer's batches. Its values may all be null: a layer says so of a key that is gone."""
        keys = [pa.field(f"key {number}", form.stored) for number, form in enumerate(self.forms)]
        return pa.schema([*keys, *(pa.field(field.name, field.type) for field in self.values)])

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the changelog as rows of a layer, without those with a null key, which equal nothing; a column
        ``_diff`` stays the last one. Raises InvalidRequest: a value does not fit its type in Spark.
        """
        kept = present([batch.column(key) for key in self.keys])
        if kept is not None:
            batch = Picker(batch).take(np.flatnonzero(kept))
        cast = self.declared.cast(batch.select(self.declared.schema.names))
        columns = [form.normal(column) for form, column in zip(self.forms, cast.columns, strict=False)]
        columns += cast.columns[len(self.keys) :]
        schema = self.layer_schema
        if DIFF in batch.schema.names:
            schema = schema.append(pa.field(DIFF, pa.int64()))
            columns.append(batch.column(DIFF).cast(pa.int64()))
        return pa.RecordBatch.from_arrays(columns, schema=schema)
