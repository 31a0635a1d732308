"""Runs a query both ways, and compares: exactly, but for floats.

A mean is a decimal with six digits after the point here, as in Spark, and a double in DuckDB: it must be the double's
nearest decimal. Rows that the query leaves in no order, because their columns of ``order by`` are equal, are compared
in an order of all columns.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from spark_client.pipeline import Pipeline
from tests.tpch.data import TABLES
from tests.tpch.tables import Tables

RELATIVE = 1e-9


@dataclass(frozen=True)
class Query:
    """One of the 22: its text for a scale factor, and its pipeline."""

    name: str
    text: str
    pipeline: Callable[[Tables], Pipeline]

    def sql(self, scale: float) -> str:
        """The text; one query has a constant that depends on the scale factor."""
        return self.text.replace("{fraction}", f"{Decimal('0.0001') / Decimal(str(scale)):f}")

    @property
    def order(self) -> list[str]:
        """The columns by which the answer is sorted; none where it is one row."""
        _, _, last = self.text.partition("\norder by ")
        return [each.split()[0] for each in last.partition("\n")[0].split(",") if each]


def _query(name: str) -> Query:
    module = importlib.import_module(f"tests.tpch.{name}")
    return Query(name, module.SQL, getattr(module, name))


QUERIES = [_query(f"q{number:02}") for number in range(1, 23)]


@contextmanager
def database(folder: Path) -> Iterator[Any]:
    """DuckDB over the files."""
    with duckdb.connect() as connection:
        for table in TABLES:
            connection.execute(f"create view {table} as from '{folder}/{table}.parquet'")
        yield connection


def differences(found: pa.Table, expected: pa.Table, order: Sequence[str] = ()) -> list[str]:
    """What is not the same: columns by their names, rows in their order, values. Rows that are next to each other and
    equal in the columns of ``order`` may be in any.
    """
    if sorted(found.column_names) != sorted(expected.column_names):
        return [f"columns {found.column_names}, expected {expected.column_names}"]
    if len(found) != len(expected):
        return [f"{len(found)} rows, expected {len(expected)}"]
    if order:
        found, expected = (_ties_sorted(table, order, expected.column_names) for table in (found, expected))
    return [
        f"row {row}, {name}: {mine!r}, expected {theirs!r}"
        for name in expected.column_names
        for row, (mine, theirs) in enumerate(
            zip(found[name].to_pylist(), expected[name].to_pylist(), strict=True)
        )
        if not same(mine, theirs)
    ]


def _ties_sorted(table: pa.Table, order: Sequence[str], names: Sequence[str]) -> pa.Table:
    """The rows, those of equal columns of ``order`` by all columns."""
    keys = list(zip(*(table[name].to_pylist() for name in order), strict=True))
    runs = accumulate((mine != before for mine, before in pairwise(keys)), initial=0)
    numbered = table.append_column("run", pa.array(list(runs)[: len(table)], pa.int64()))
    return numbered.sort_by([(name, "ascending") for name in ("run", *names)]).drop_columns(["run"])


def same(mine: Any, theirs: Any) -> bool:
    """Whether two values are equal, as the module says."""
    if isinstance(mine, Decimal) and isinstance(theirs, float):
        return mine == Decimal(theirs).quantize(mine, ROUND_HALF_UP)
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=RELATIVE)
    return bool(mine == theirs)
