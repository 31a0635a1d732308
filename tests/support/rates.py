"""Exchange rates: what the tests of changelogs put, and what they expect to read.

Limits: rows are compared in Python, so for thousands of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spark_client.changelogs.version_follower import Follower

RATES = pa.schema([("currency", pa.string()), ("time", pa.int64()), ("rate", pa.float64())])
BY: dict[str, Any] = {"key": ["currency"], "order_by": "time"}
LATEST = {"rule": "latest", "key": ["currency"], "order_by": ["time"]}
LANES = ["bulk", "grpc"]
MOST_LANES = ["bulk", pytest.param("grpc", marks=pytest.mark.long)]
"""Where another test shows the same promise over gRPC."""
WAIT_SECONDS = 60.0
Row = tuple[Any, ...]


def rates_of(*rows: Row) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [(), (), ()]
    return pa.table(
        [pa.array(list(column), field.type) for column, field in zip(columns, RATES, strict=True)],
        schema=RATES,
    )


def rows_of(table: pa.Table) -> list[Row]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def folded(rows: Counter[Row], changes: pa.Table) -> Counter[Row]:
    """A snapshot's rows with changes applied."""
    out = Counter(rows)
    for *row, diff in zip(*(column.to_pylist() for column in changes.columns), strict=True):
        out[tuple(row)] += diff
    assert all(count >= 0 for count in out.values()), out
    return +out


def counted(table: pa.Table) -> Counter[Row]:
    return Counter(rows_of(table))


def next_of(follower: Follower, version: int) -> list[pa.Table]:
    """The tables of the changes up to this version, which may come as one."""
    found = []
    while True:
        change = next(follower)
        found.append(change.table)
        assert change.version <= version
        if change.version == version:
            return found
