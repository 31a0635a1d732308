"""The rows of a put, in the changelog's schema and with their counts; the keys of a delete.

Guarantee: a batch or table that a method returns has the declared columns, in their order and types, and for
:meth:`PutRows.counted` and :meth:`PutRows.retracted` a last column ``_diff: int64`` without nulls. Columns are taken by
name; casts are the safe ones of ``arrow.types``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.protocol import DIFF_COLUMN, InvalidRequest
from spark_client.arrow import Declared, array_over
from spark_client.lanes import Batch, as_reader

_DIFF = pa.field(DIFF_COLUMN, pa.int64(), nullable=False)


class PutRows:
    """Brings batches and tables into the schema of one changelog.

    Each method raises InvalidRequest for a missing, unknown or unfit column, and for a ``_diff`` that has nulls or is
    not of an integer type.

    Args:
        key: the columns of its key, none without one.
    """

    def __init__(self, dataset: str, schema: pa.Schema, key: Sequence[str] = ()) -> None:
        self._stage = f"changelog {dataset!r}"
        self._key = Declared(self._stage, pa.schema([schema.field(name) for name in key]), by_name=True)
        self._plain = Declared(self._stage, schema, by_name=True)
        self._counted = Declared(self._stage, with_diff(schema), by_name=True)

    def in_schema(self, rows: Any) -> Any:
        """With ``_diff`` only if the rows have it."""
        return self.counted(rows) if DIFF_COLUMN in rows.schema.names else self._plain.cast(rows)

    def batches(self, data: Any) -> list[Batch]:
        """The batches of data as for ``ShuffleClient.put``, each as :meth:`in_schema` makes it."""
        if isinstance(data, pa.RecordBatch):
            return [self.in_schema(data)]
        return [self.in_schema(batch) for batch in as_reader(data)]

    def keys(self, rows: Any) -> Any:
        """The columns of the key, of a batch or table that has these and no other."""
        self._check_key(rows.schema.names)
        return self._key.cast(rows)

    def listed_keys(self, data: Any) -> Any:
        """A table of keys, if they come as a list of dicts; else ``data``."""
        if not isinstance(data, list) or not all(isinstance(each, dict) for each in data):
            return data
        for each in data:
            self._check_key(list(each))
        try:
            return pa.Table.from_pylist(data, self._key.schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidRequest(
                f"{self._stage}: the keys do not fit their types, {self._shown_key}: {error}"
            ) from error

    def _check_key(self, names: Sequence[str]) -> None:
        key_names = self._key.schema.names
        if not key_names:
            raise InvalidRequest(
                f"{self._stage} has no keep rule with a key, by which its rows could be deleted: retract them"
            )
        if sorted(names) != sorted(key_names):
            raise InvalidRequest(
                f"{self._stage}: a delete takes the columns of the key and no other, {self._shown_key}; it was given "
                f"{', '.join(map(repr, names))}"
            )

    @property
    def _shown_key(self) -> str:
        return ", ".join(f"{field.name!r} ({field.type})" for field in self._key.schema)

    def joined(self, batches: list[Batch]) -> pa.Table:
        """Batches of :meth:`batches` as one table of one chunk, with ``_diff`` if any of them has it."""
        if len({batch.num_columns for batch in batches}) > 1:
            batches = [self.counted(batch) for batch in batches]
        return pa.Table.from_batches(batches).combine_chunks()

    def counted(self, rows: Any) -> Any:
        """With ``_diff``, 1 where the rows have none."""
        if DIFF_COLUMN not in rows.schema.names:
            return counted(self._plain.cast(rows), 1)
        kind = rows.schema.field(DIFF_COLUMN).type
        if not pa.types.is_integer(kind):
            raise InvalidRequest(
                f"{self._stage}: column {DIFF_COLUMN!r} is {kind}; it says how often a row is asserted or retracted, "
                "in an integer type",
                column=DIFF_COLUMN,
            )
        return self._counted.cast(rows)

    def retracted(self, rows: Any) -> Any:
        """With ``_diff`` -1 where the rows have none, else of the other sign."""
        if DIFF_COLUMN not in rows.schema.names:
            return counted(self._plain.cast(rows), -1)
        rows = self.counted(rows)
        diffs = pa.array(np.negative(rows.column(DIFF_COLUMN).to_numpy()))
        return rows.set_column(rows.num_columns - 1, _DIFF, diffs)


def counted(rows: Any, diff: int) -> Any:
    """The rows with a last column ``_diff``, the same for each."""
    # Not by Arrow's conversion, which imports pandas: in each Python process that Spark starts.
    return rows.append_column(_DIFF, array_over(np.full(rows.num_rows, diff, np.int64)))


def with_diff(schema: pa.Schema) -> pa.Schema:
    """The schema of a changelog's deltas."""
    return schema.append(_DIFF)
