"""Columns of folders: the types of their values, as Spark finds them."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet as pq

from spark_client.scan.partitions import NULL, partition_schema
from tests.support.scanning import read, splits_of


def lake(directory: Path, *folders: str, **columns: Any) -> Path:
    for folder in folders:
        (directory / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [1], **columns}), directory / folder / "x.parquet")
    return directory


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2", "007"], pa.int32()),
        (["2147483647", "-2147483648"], pa.int32()),
        (["2147483648"], pa.int64()),
        (["-9223372036854775808"], pa.int64()),
        (["9223372036854775808"], pa.string()),
        (["1", "2.5"], pa.float64()),
        (["2024-05-31", NULL], pa.date32()),
        (["2024-02-30"], pa.string()),
        (["2024-05"], pa.string()),
        (["1", "x"], pa.string()),
        (["1_000"], pa.string()),
        (["2024-05-31", "5"], pa.string()),
        ([NULL], pa.string()),
    ],
)
def test_values_of_one_kind_give_a_column_its_type(values: list[str], kind: pa.DataType) -> None:
    paths = [f"/lake/k={value}/{number}.parquet" for number, value in enumerate(values)]
    assert partition_schema("/lake", paths) == pa.schema([("k", kind)])


def test_values_and_names_are_read_without_their_escapes(tmp_path: Path) -> None:
    found = read(splits_of(lake(tmp_path, "a%20day=x%2Fy%3Dz", f"a%20day={NULL}")))
    assert sorted(found["a day"].to_pylist(), key=str) == [None, "x/y=z"]


def test_dates_and_large_numbers_can_be_filtered_by(tmp_path: Path) -> None:
    lake(tmp_path, "day=2024-05-30/k=1", "day=2024-05-31/k=3000000000", f"day={NULL}/k=2")
    keep = pc.field("day") > date(2024, 5, 30)
    splits = splits_of(tmp_path, filter=keep)
    assert read(splits).to_pylist() == [{"a": 1, "day": date(2024, 5, 31), "k": 3_000_000_000}]
    assert len(splits.pieces(0)) == 1


def test_a_folders_value_replaces_the_column_of_its_name_in_the_file(tmp_path: Path) -> None:
    lake(tmp_path, "b=x", "b=y", b=[7], c=[True])
    found = read(splits_of(tmp_path))
    assert found.column_names == ["a", "b", "c"]
    assert found["b"].to_pylist() == ["x", "y"]
    assert read(splits_of(tmp_path, filter=pc.field("b") == "y")).num_rows == 1
