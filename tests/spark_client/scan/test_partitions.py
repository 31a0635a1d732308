"""Columns of folders: which files they are of, their names, and their values beside those of the files."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet as pq

from flight_server.protocol.errors import InvalidRequest
from spark_client.scan.folder_values import NULL, FolderRules
from spark_client.scan.partitions import Partitions, folders_with_columns
from tests.support.scanning import read, splits_of

RULES = FolderRules()


def lake(directory: Path, *folders: str, **columns: Any) -> Path:
    for folder in folders:
        (directory / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [1], **columns}), directory / folder / "x.parquet")
    return directory


@pytest.mark.parametrize(
    ("folder", "pairs"),
    [
        ("k=1/j=x=y", (("k", "1"), ("j", "x=y"))),
        ("plain/k=1/below/it", (("k", "1"),)),
        ("k=1/plain/j=2", (("j", "2"),)),
        ("a%20day=%2F", (("a day", "%2F"),)),
        ("_k=1", (("_k", "1"),)),
    ],
)
def test_columns_are_those_of_the_last_folders_that_follow_each_other(
    folder: str, pairs: tuple[Any, ...]
) -> None:
    assert folders_with_columns("/lake", [f"/lake/{folder}"], RULES) == {f"/lake/{folder}": pairs}


@pytest.mark.parametrize(
    ("folders", "error"),
    [
        (["k=1", "backup"], "have files, but not both are in folders name=value"),
        (["one/k=1", "two/k=1"], "have files, but not both"),
        (["k=1", "j=1"], "give different columns"),
        (["k=1", "k=1/j=1"], "give different columns"),
        (["k=1/K=2"], "gives a column twice"),
        (["k="], "the folder 'k=' lacks a name or a value"),
        (["=1"], "the folder '=1' lacks a name or a value"),
    ],
)
def test_folders_that_do_not_agree_are_refused(folders: list[str], error: str) -> None:
    with pytest.raises(InvalidRequest, match=error):
        folders_with_columns("/lake", [f"/lake/{folder}" for folder in folders], RULES)


def test_names_of_folders_are_of_one_column_unless_case_counts() -> None:
    folders = ["/lake/K=1", "/lake/k=2"]
    found = folders_with_columns("/lake", folders, RULES)
    schema = pa.schema([("a", pa.string()), ("k", pa.string())])
    assert Partitions(found.values(), RULES).with_columns(schema).names == ["a", "K"]
    with pytest.raises(InvalidRequest, match="give different columns"):
        folders_with_columns("/lake", folders, FolderRules(case_sensitive=True))
    exact = Partitions([(("K", "1"),)], FolderRules(case_sensitive=True))
    assert exact.with_columns(schema).names == ["a", "k", "K"]


def test_values_and_names_are_read_without_their_escapes(tmp_path: Path) -> None:
    found = read(splits_of(lake(tmp_path, "a%20day=x%2Fy%3Dz", f"a%20day={NULL}")))
    assert sorted(found["a day"].to_pylist(), key=str) == [None, "x/y=z"]


def test_dates_and_large_numbers_can_be_filtered_by(tmp_path: Path) -> None:
    lake(tmp_path, "day=2024-05-30/k=1", "day=2024-05-31/k=3000000000", f"day={NULL}/k=2")
    keep = pc.field("day") > date(2024, 5, 30)
    splits = splits_of(tmp_path, filter=keep)
    assert read(splits).to_pylist() == [{"a": 1, "day": date(2024, 5, 31), "k": 3_000_000_000}]
    assert len(splits.pieces(0)) == 1


def test_numbers_of_twenty_digits_stay_apart(tmp_path: Path) -> None:
    lake(tmp_path, "id=12345678901234567890", "id=12345678901234567891")
    assert pc.count_distinct(read(splits_of(tmp_path))["id"]).as_py() == 2


@pytest.mark.parametrize("name", ["b", "B"])
def test_a_folders_value_replaces_the_column_of_its_name_in_the_file(tmp_path: Path, name: str) -> None:
    lake(tmp_path, f"{name}=x", f"{name}=y", b=[7], c=[True])
    found = read(splits_of(tmp_path))
    assert found.column_names == ["a", name, "c"]
    assert found[name].to_pylist() == ["x", "y"]
    assert read(splits_of(tmp_path, filter=pc.field(name) == "y")).num_rows == 1
