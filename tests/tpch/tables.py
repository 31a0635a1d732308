"""What the queries start from: the tables, and what half of them compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.compute import field, scalar

from spark_client import ShuffleClient
from spark_client.broadcast import Broadcast
from spark_client.pipeline import Pipeline

ONE = scalar(Decimal(1))
REVENUE = field("l_extendedprice") * (ONE - field("l_discount"))
# Of the type of REVENUE, as if_else wants it.
NO_REVENUE = scalar(pa.scalar(Decimal(0), pa.decimal128(32, 4)))


@dataclass(frozen=True)
class Tables:
    """The tables at a scale factor, in a folder of Parquet files."""

    shuffle: ShuffleClient
    folder: Path
    scale: float

    def scan(self, table: str, columns: Sequence[str], filter: Any = None) -> Pipeline:  # noqa: A002 - pyarrow's name
        """A pipeline over a table: its rows are read by Spark's tasks."""
        return self.shuffle.scan(self.folder / f"{table}.parquet", columns=columns, filter=filter)

    def broadcast(self, rows: Pipeline) -> Broadcast | Pipeline:
        """The rows of a pipeline, held by every task that joins them."""
        return self.shuffle.broadcast(rows)


class WholeTables(Tables):
    """The tables for queries that are not planned by hand: all columns are read, filters are steps, and joins plain."""

    def scan(self, table: str, columns: Sequence[str], filter: Any = None) -> Pipeline:  # noqa: A002 - as above
        rows = self.shuffle.scan(self.folder / f"{table}.parquet")
        return rows if filter is None else rows.filter(filter)

    def broadcast(self, rows: Pipeline) -> Broadcast | Pipeline:
        return rows
