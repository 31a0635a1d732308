"""What a lookup keeps on each host: the keys and values of one generation of a changelog, and how the server gives and
pins its versions; as values that are pickled into tasks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from flight_server.protocol import Unavailable, Versions
from spark_client.arrow import Declared, Picker
from spark_client.changelogs import NamedHold, VersionBatches
from spark_client.connection import retrying
from spark_client.executors import owner_of_task
from spark_client.hosts import Copies
from spark_client.joining import KeyForm, present
from spark_client.merge import DatasetRef

DIFF = "_diff"
PIN_SECONDS = 24 * 3600.0
"""The lease of a pin: a query that is stopped for less can replay its last micro-batch."""


@dataclass(frozen=True)
class ChangelogSource:
    """One generation of a changelog, at a server. Pickles."""

    ref: DatasetRef

    @property
    def name(self) -> str:
        return self.ref.dataset

    @property
    def identity(self) -> str:
        """Unlike that of any other generation, changelog or server."""
        ref = self.ref
        return f"{ref.server.location} {ref.dataset} {ref.generation}"

    def snapshot(self, version: int) -> VersionBatches:
        """The rows at ``version``, at least one batch. Raises ``Compacted``."""
        return VersionBatches(self.ref, Versions(version))

    def deltas(self, after: int, version: int) -> VersionBatches:
        """The changes after one version up to another, with a column ``_diff``, at least one batch. Raises
        ``Compacted``.
        """
        return VersionBatches(self.ref, Versions(version, after))

    def pin(self, name: str, *, releases: str | None = None) -> int:
        """The version that the pin of this name holds; for a new one it is the newest. The pin ``releases`` ends.

        Raises ``Compacted`` if the pin has ended, and its version is gone.
        """
        hold = NamedHold(self.ref, name, PIN_SECONDS, owner_of_task())
        timeouts = self.ref.server.timeouts
        return retrying(timeouts, lambda: hold.renew(releases=releases, once=True), (Unavailable,)).version


@dataclass(frozen=True)
class LookupContent:
    """The keys and values of a changelog that a lookup needs.

    Args:
        keys: the names of the key columns.
        forms: of each key, see ``join_keys``.
        declared: the keys and then the values, as Spark takes them.
        application: the driver's name in its hosts' files.
    """

    source: ChangelogSource
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
