"""What a task reads of a file, and the errors that name the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv, feather, orc
from pyarrow import dataset as ds
from pyarrow import parquet as pq

from flight_server.protocol.errors import FlightShuffleError, InvalidRequest, NotFound, PartitionFailed
from tests.support.scanning import read, splits_of

TABLE = pa.table({"a": range(1000), "s": [str(number) for number in range(1000)]})
WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=300),
    "feather": lambda table, path: feather.write_feather(table, path, chunksize=300),
}

for_each_format = pytest.mark.parametrize("form", WRITERS)


def written(table: pa.Table, directory: Path, form: str, name: str = "x") -> Path:
    path = directory / f"{name}.{form}"
    WRITERS[form](table, path)
    return path


@for_each_format
def test_batches_are_the_columns_that_were_asked_for_and_the_rows_that_the_filter_keeps(
    tmp_path: Path, form: str
) -> None:
    written(TABLE, tmp_path, form)
    splits = splits_of(tmp_path, names=["s"], filter=pc.field("a") >= 990)
    assert read(splits).to_pydict() == {"s": [str(n) for n in range(990, 1000)]}


def test_batches_have_at_most_the_rows_that_were_asked_for(tmp_path: Path) -> None:
    written(TABLE, tmp_path, "parquet")
    sizes = [batch.num_rows for batch in splits_of(tmp_path, batch_rows=70).read(0)]
    assert max(sizes) == 70
    assert sum(sizes) == 1000


def test_a_large_row_group_is_not_held_as_a_whole(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": np.arange(4_000_000)}), tmp_path / "x.parquet", row_group_size=4_000_000,
                   use_dictionary=False, compression="none")  # fmt: skip
    splits = splits_of(tmp_path, batch_rows=10_000)
    before_bytes = pa.total_allocated_bytes()
    rows = 0
    for batch in splits.read(0):
        assert batch["n"][0].as_py() == rows
        rows += batch.num_rows
        assert pa.total_allocated_bytes() - before_bytes < 16 << 20
    assert rows == 4_000_000


def test_batches_of_wide_rows_are_bounded_in_bytes(tmp_path: Path) -> None:
    ends = np.arange(101, dtype=np.int32) * 50_000
    wide = pa.table({"v": pa.ListArray.from_arrays(pa.array(ends), np.zeros(100 * 50_000))})
    pq.write_table(wide, tmp_path / "x.parquet", use_dictionary=False, compression="none")
    batches = list(splits_of(tmp_path).read(0))
    assert sum(batch.num_rows for batch in batches) == 100
    assert len(batches) > 3


@for_each_format
def test_values_of_the_folders_are_columns_also_where_they_are_null(tmp_path: Path, form: str) -> None:
    for folder in ("day=1", "day=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / folder).mkdir()
        written(TABLE.slice(0, 2), tmp_path / folder, form)
    found = read(splits_of(tmp_path))
    assert found["day"].to_pylist() == [1, 1, None, None]
    assert found["day"].type == pa.int32()
    only_the_folders = splits_of(tmp_path, names=["day"], schema=pa.schema([("day", pa.int32())]))
    assert read(only_the_folders)["day"].to_pylist() == [1, 1, None, None]


def test_int96_is_read_without_loss_far_from_now(tmp_path: Path) -> None:
    instants = pa.array(["9999-01-01", "0001-01-01"]).cast(pa.timestamp("us"))
    table = pa.table(
        {"t": instants, "l": pa.array([[instants[0].as_py()], None], pa.list_(pa.timestamp("us")))}
    )
    pq.write_table(table, tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    utc = pa.timestamp("us", "UTC")
    schema = pa.schema([("t", utc), ("l", pa.list_(pa.field("element", utc)))])
    found = read(splits_of(tmp_path, schema=schema))
    assert found["t"].cast(pa.timestamp("us")).combine_chunks() == instants
    assert found["l"][0][0].as_py().year == 9999


ONE = TABLE.select(["a"])
PAIRS = {
    "missing": (TABLE, ONE, "has no column 's', but the first file has; name the columns"),
    "more": (ONE, TABLE, "has a column 's', but the first file has not; name the columns"),
    "twice": (ONE, pa.table([TABLE["a"]] * 2, names=["a", "a"]), "has column 'a' twice"),
    "kind": (
        TABLE,
        TABLE.set_column(0, "a", TABLE["s"]),
        "has column 'a' as (large_)?string, but the first file as int64",
    ),
    "rounded": (
        pa.table({"a": pa.array([0.5], pa.float32())}),
        pa.table({"a": [1 / 3]}),
        "has column 'a' as double, but the first file as float",
    ),
}
"""A first file, a second one, and what is said of it."""


@for_each_format
@pytest.mark.parametrize("pair", PAIRS)
def test_a_file_with_other_columns_than_the_first_is_an_error_that_names_it(
    tmp_path: Path, form: str, pair: str
) -> None:
    first, second, error = PAIRS[pair]
    written(first, tmp_path, form, "a")
    written(second, tmp_path, form, "b")
    with pytest.raises(InvalidRequest, match=rf"/b\.{form} {error}"):
        read(splits_of(tmp_path))
    if pair in ("missing", "more"):
        assert read(splits_of(tmp_path, names=["a"], schema=ONE.schema)).num_rows == 2000


@for_each_format
def test_in_a_dataset_with_a_schema_a_missing_column_is_null(tmp_path: Path, form: str) -> None:
    written(TABLE.select(["a"]), tmp_path, form)
    kind = {"feather": "ipc"}.get(form, form)
    dataset = ds.dataset(tmp_path, format=kind, schema=TABLE.schema)
    found = read(splits_of(dataset, lenient=True))
    assert found["s"].null_count == 1000
    assert found["a"] == TABLE["a"]


def test_a_column_of_another_width_is_cast_and_a_value_that_does_not_fit_is_named(tmp_path: Path) -> None:
    small = pa.schema([("a", pa.int32()), ("s", pa.string())])
    written(TABLE.cast(small), tmp_path, "parquet", "a")
    later = written(TABLE, tmp_path, "parquet", "b")
    assert read(splits_of(tmp_path))["a"].to_pylist() == 2 * list(range(1000))
    pq.write_table(pa.table({"a": [1 << 40], "s": ["x"]}), later)
    with pytest.raises(
        InvalidRequest, match=r"b\.parquet: column 'a' is int64 and does not fit .* int32 .*give schema="
    ):
        read(splits_of(tmp_path))


def test_a_filter_that_fails_for_a_row_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    written(TABLE, tmp_path, "parquet")
    splits = splits_of(tmp_path, filter=pc.divide(pc.scalar(10), pc.field("a")) > 1)
    with pytest.raises(InvalidRequest, match=r"scan: filter .*divide by zero, for a row of .*x\.parquet"):
        read(splits)


@for_each_format
@pytest.mark.parametrize("rows", [999, 1001])
def test_a_file_that_was_written_again_since_the_plan_is_an_error(
    tmp_path: Path, form: str, rows: int
) -> None:
    written(TABLE, tmp_path, form)
    splits = splits_of(tmp_path)
    written(pa.concat_tables([TABLE, TABLE]).slice(0, rows), tmp_path, form)
    with pytest.raises(
        PartitionFailed, match=rf"/x\.{form} has changed since the scan was planned: .* call scan"
    ):
        read(splits)


def test_a_file_that_was_written_again_with_as_many_rows_is_an_error(tmp_path: Path) -> None:
    written(TABLE, tmp_path, "parquet")
    splits = splits_of(tmp_path)
    written(TABLE.set_column(1, "s", pa.array(["x" * 100] * 1000)), tmp_path, "parquet")
    with pytest.raises(PartitionFailed, match=r"x\.parquet has changed .* bytes in row group 0 were planned"):
        read(splits)


@for_each_format
def test_a_file_that_is_gone_is_an_error_that_names_the_host(tmp_path: Path, form: str) -> None:
    path = written(TABLE, tmp_path, form)
    splits = splits_of(tmp_path)
    path.unlink()
    with pytest.raises((NotFound, PartitionFailed), match=rf"/x\.{form} (is not on|has changed)"):
        read(splits)


def test_damaged_pages_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = written(TABLE, tmp_path, "parquet")
    splits = splits_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[4:600] = bytes(596)
    path.write_bytes(data)
    with pytest.raises(FlightShuffleError, match=r"/x\.parquet is damaged, or not as the scan reads it"):
        read(splits)


@pytest.mark.parametrize("form", ["csv", "orc"])
def test_a_dataset_of_another_format_is_read_by_pyarrow_with_its_options_and_types(
    tmp_path: Path, form: str
) -> None:
    options = ds.CsvFileFormat(csv.ParseOptions(delimiter=";")) if form == "csv" else ds.OrcFileFormat()
    kept = pa.schema([("s", pa.string()), ("day", pa.int32()), ("later", pa.string())])
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        path = tmp_path / f"day={day}" / f"x.{form}"
        if form == "csv":
            csv.write_csv(TABLE.slice(0, 500 * day), path, csv.WriteOptions(delimiter=";"))
        else:
            orc.write_table(TABLE.slice(0, 500 * day), path)
    dataset = ds.dataset(
        tmp_path, pa.schema([("a", pa.int64()), *kept]), options, partitioning=ds.partitioning(flavor="hive")
    )
    splits = splits_of(dataset, names=kept.names, lenient=True, filter=(pc.field("a") >= 499))
    assert read(splits) == dataset.to_table(columns=kept.names, filter=pc.field("a") >= 499)
    assert read(splits).num_rows == 502
    path.write_bytes(b"a;s\n1;2\n")
    with pytest.raises(PartitionFailed, match=rf"x\.{form} has changed since .* bytes were planned"):
        read(splits)


def test_a_value_of_csv_that_is_not_of_the_datasets_type_is_an_error_that_names_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.csv").write_text("a\n1.5\n")
    with pytest.raises(PartitionFailed, match=r"b\.csv is damaged, or not as the scan reads it: .*'1\.5'"):
        read(splits_of(ds.dataset(tmp_path, format="csv"), lenient=True))
