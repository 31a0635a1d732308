"""Filters: the columns that they need, and what may be pruned by the statistics of row groups."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet as pq

from spark_client.scan.filters import statistics_tell
from tests.support.scanning import read, splits_of

X, SCHEMA = pc.field("x"), pa.schema([("i", pa.int64()), ("x", pa.float64()), ("s", pa.string())])


@pytest.mark.parametrize(
    "keep",
    [
        X != 5,
        ~(X < 10),
        ~(X == 5),
        pc.is_nan(X),
        ~X.isin([5.0]),
        X.isin([math.nan]),
        X.is_null(nan_is_null=True),
        (X < 10) == pc.scalar(False),
        (pc.field("i") >= 0) & (X != 5),
    ],
    ids=str,
)
@pytest.mark.parametrize("others", [[5.0, 5.0], [4.0, 6.0]])
def test_a_row_with_nan_is_kept_by_every_filter_that_it_fulfils(
    tmp_path: Path, keep: Any, others: list[float]
) -> None:
    table = pa.table({"i": [0, 1, 2], "x": [others[0], math.nan, others[1]]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert 1 in table.filter(keep)["i"].to_pylist()
    assert read(splits_of(tmp_path, filter=keep))["i"] == table.filter(keep)["i"]


@pytest.mark.parametrize("name", ["delay >= 15", "is_valid(x)", "(a == b) and (c", "x > 1"])
def test_a_name_that_looks_like_a_comparison_is_none(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({name: [5.0, math.nan, 5.0], "i": [0, 1, 2]}), tmp_path / "x.parquet")
    assert read(splits_of(tmp_path, filter=pc.field(name) != 5.0))["i"].to_pylist() == [1]


def test_a_name_hides_no_comparison() -> None:
    schema = pa.schema([("x != (", pa.float64())])
    assert statistics_tell((pc.field("x != (") > 1) & pc.field("x != (").is_valid(), schema)


def test_comparisons_of_floats_still_prune(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [float(n) for n in range(100)]}), tmp_path / "x.parquet", row_group_size=10)
    splits = splits_of(tmp_path, filter=((X > 12) & (X <= 15)) | (X == 77))
    assert [piece.unit for piece in splits.pieces(0)] == [1, 7]


def test_what_is_no_comparison_prunes_only_columns_without_floats() -> None:
    assert statistics_tell(~(pc.field("i") == 5) & pc.field("s").isin(["a"]), SCHEMA)
    assert statistics_tell((X > 1) & (pc.field("s") == 'a "(!= or b') & X.is_valid(), SCHEMA)
    assert not statistics_tell((X > 1) & ~(pc.field("s") == "a"), SCHEMA)
