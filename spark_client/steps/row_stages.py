"""Stages that look at no value: some rows of all, how many there are, and the same rows under other names and types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_client.arrow import Declared, array_over, widened

from .one_pass import Pass


@dataclass(frozen=True)
class LimitStage:
    """The first ``rows`` rows that come. Later rows are not read: the generators before it are closed.

    ``divisible`` is for a limit that another one follows, where any of the rows will do.
    """

    rows: int
    declared: Declared
    divisible: bool

    ours = True

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - the face of a stage
        left = self.rows
        try:
            while left:
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch.slice(0, left)
                left -= min(left, batch.num_rows)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


@dataclass(frozen=True)
class CountStage:
    """How many rows there are, in one row."""

    declared: Declared

    divisible = True
    ours = True

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - as above
        rows = sum(batch.num_rows for batch in batches)
        column = array_over(np.array([rows], np.int64))
        yield pa.RecordBatch.from_arrays([column], schema=self.declared.schema)


@dataclass(frozen=True)
class AlignStage:
    """The columns, by their positions, with the names and types of ``declared``, which hold every value."""

    declared: Declared

    divisible = True
    ours = True

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - as above
        schema = self.declared.schema
        for batch in batches:
            columns = [
                widened(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)
            ]
            yield self.declared.cast(pa.RecordBatch.from_arrays(columns, names=schema.names))
