"""Whether rows are still in the partitions of their keys: equal values have one hash (see ``hashing``), so an exchange
puts them in one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.arrow import groupable, python_values, shown, widened

from .hashing import partition_ids


@dataclass(frozen=True)
class PlacedKeys:
    """The exchange before the groups; ``exchange`` is its text for messages."""

    exchange: str
    keys: pa.Schema
    partitions: int

    def check(self, keys: pa.RecordBatch, partition: int, stage: str, what: str = "groups") -> None:
        """Check that the exchange would send all of ``keys``, cast to its types, to ``partition``: otherwise a stage
        has changed a key, and its rows may be in several partitions. Raises InvalidRequest, also if a cast fails.
        """
        columns = []
        for column, field in zip(keys.columns, self.keys, strict=True):
            try:
                columns.append(widened(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidRequest(
                    f"{stage}: key {field.name!r} is {column.type}, and {self.exchange} has placed rows by "
                    f"{field.type}, which its values cannot be made again ({error}); {self._remedy(keys)}",
                    stage=stage,
                    partition=partition,
                ) from error
        # Numbers for names, because an exchange may name a key twice.
        names = [str(number) for number in range(len(columns))]
        ids = partition_ids(pa.RecordBatch.from_arrays(columns, names=names), names, self.partitions)
        wrong = np.flatnonzero(ids != partition)
        if len(wrong):
            first = int(wrong[0])
            row = [python_values(column.slice(first, 1))[0] for column in keys.columns]
            key = ", ".join(
                f"{name!r} = {shown(value)[:80]}" for name, value in zip(keys.schema.names, row, strict=True)
            )
            raise InvalidRequest(
                f"{stage}: {len(wrong)} of {len(ids)} {what} may be in parts: {key} is in partition {partition}, "
                f"and {self.exchange} places it in partition {ids[first]}; a stage after the exchange has "
                f"changed the key; {self._remedy(keys)}",
                stage=stage,
                partition=partition,
            )

    def _remedy(self, keys: pa.RecordBatch) -> str:
        names = ", ".join(map(repr, keys.schema.names))
        return f"exchange again after that stage: .exchange({self.partitions}, {names})"


def check_groupable(schema: pa.Schema, keys: Sequence[str], stage: str) -> None:
    """Raise InvalidRequest if a key's type contains a map."""
    for key in keys:
        if not groupable(schema.field(key).type):
            raise InvalidRequest(
                f"{stage}: cannot group by {key!r} of type {schema.field(key).type}: equal maps may differ in order; "
                "group by a column made from it, for example its sorted entries as a list, an element or its text",
                stage=stage,
                column=key,
            )
