"""What the benchmarks of the Spark client compare: their checksum finds wrong rows, their data is what they say."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.benchmarks.__main__ import SUITES
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of

STAGES = {
    "numbers": (of.numbers, {"id": np.arange(100), "value": np.arange(100) * 0.5}),
    "named": (
        of.named,
        {
            "id": np.arange(100),
            "quantity": np.arange(100) % 7,
            "amount": np.arange(100) * 0.5,
            "name": data.names(pa.array(range(100))),
        },
    ),
    "vectors": (of.vectors, {"id": np.arange(100)}),
}


def digest(table: pa.Table) -> Any:
    return next(of.digest(iter(table.to_batches(max_chunksize=7)))).to_pylist()


def staged(name: str) -> pa.Table:
    stage, columns = STAGES[name]
    return pa.Table.from_batches(stage(iter(pa.table(columns).to_batches())))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(data, "HOME", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", STAGES)
def test_the_checksum_is_of_the_rows_and_not_of_their_order_or_batches(name: str) -> None:
    table = staged(name)
    mixed = table.take(np.random.default_rng(2).permutation(100))
    assert digest(mixed) == digest(table)


@pytest.mark.parametrize("name", STAGES)
def test_the_checksum_finds_a_value_in_another_row_and_a_row_that_is_there_twice(name: str) -> None:
    table = staged(name)
    others = np.arange(100)
    others[[3, 4]] = 4, 3
    twice = table.take(np.where(np.arange(100) == 5, 6, np.arange(100)))
    for column in table.column_names:
        values = table[column].combine_chunks().take(pa.array(others))
        moved = table.set_column(table.column_names.index(column), column, values)
        if not moved.equals(table):
            assert digest(moved) != digest(table), column
    assert digest(twice) != digest(table)


def test_the_parquet_files_have_each_id_once_also_when_files_have_not_equally_many(home: Path) -> None:
    path = data.named_parquet(101)
    assert sorted(parquet.read_table(path)["id"].to_pylist()) == list(range(101))
    assert len(list(path.glob("*.parquet"))) == data.FILES


def test_files_are_made_once_and_never_found_half_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(parquet, "write_table", fail)
        with pytest.raises(OSError, match="full"):
            data.named_parquet(10)
    path = data.named_parquet(10)
    assert parquet.read_table(path).num_rows == 10
    monkeypatch.setattr(parquet, "write_table", fail)
    assert data.named_parquet(10) == path


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_says_what_its_options_are(suite: str) -> None:
    module = importlib.import_module(f"tests.benchmarks.{suite}")
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
