"""Scans of which a pipeline needs fewer columns, or fewer rows: what is read of the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet as pq
from pyarrow.compute import field

from flight_server.protocol.errors import FlightShuffleError, PartitionFailed
from spark_client.pipeline.base import leg_of_scan
from spark_client.scan import Scan
from tests.support.plan_model import SESSION

ROWS = pa.table(
    {
        "id": pa.array(range(1000), pa.int64()),
        "text": pa.array([f"{number:0200}" for number in range(1000)], pa.string()),
        "f": pa.array([float("nan") if number % 7 == 0 else number for number in range(1000)], pa.float64()),
        "list": pa.array([[number] * 3 for number in range(1000)], pa.list_(pa.int64())),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for day in range(3):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(ROWS, tmp_path / f"day={day}" / "x.parquet", row_group_size=100)
    return tmp_path


def read(scan: Scan) -> pa.Table:
    batches = [batch for number in range(len(scan.splits)) for batch in scan.splits.read(number)]
    return pa.Table.from_batches(batches, scan.declared.schema)


def pieces(scan: Scan) -> int:
    return sum(len(scan.splits.pieces(number)) for number in range(len(scan.splits)))


def test_a_scan_with_fewer_columns_reads_these_alone(folder: Path) -> None:
    whole = Scan.plan(SESSION, folder)
    narrow = whole.with_columns(SESSION, ["id", "day"])
    assert read(narrow).equals(read(whole).select(["id", "day"]))
    assert narrow.struct.names == ["id", "day"]
    assert str(narrow).endswith(", 2 of 5 columns: 'id', 'day'")
    assert pieces(narrow) == pieces(whole) == 30
    assert len(narrow.splits) < len(whole.splits) / 3, "it is a small part of the bytes"
    assert narrow.driver_bytes is not None
    assert whole.driver_bytes is not None
    assert narrow.driver_bytes < whole.driver_bytes / 3
    assert narrow.rows == whole.rows


def test_a_filter_leaves_out_row_groups_and_folders(folder: Path) -> None:
    whole = Scan.plan(SESSION, folder)
    condition = (field("id") >= 550) & (field("day") == 1)
    filtered = whole.with_filter(SESSION, condition, "stage 1 (filter)")
    assert filtered is not None
    assert read(filtered).drop("f").equals(read(whole).drop("f").filter(condition))
    assert pieces(filtered) == 5
    assert str(filtered).endswith(", with stage 1 (filter)")
    assert filtered.kept < 1
    narrow = filtered.with_columns(SESSION, ["f"])
    assert narrow.splits.reading.columns.declared.schema.names == ["id", "f", "day"], (
        "the filter's are read, too"
    )
    assert read(narrow).num_rows == 450


def test_a_filter_is_added_to_that_of_the_scan(folder: Path) -> None:
    own = Scan.plan(SESSION, folder, columns=["text", "f"], filter=field("id") < 500)
    both = own.with_filter(SESSION, pc.is_nan(field("f")), "nan")
    assert both is not None
    assert read(both).num_rows == 3 * 72
    assert own.with_filter(SESSION, field("f") / 2 > 3, "may fail") is None
    assert Scan.plan(SESSION, folder).with_filter(SESSION, field("f") / 2 > 3, "may fail") is not None


def test_statistics_without_nan_leave_out_no_row_group(folder: Path) -> None:
    whole = Scan.plan(SESSION, folder)
    odd = whole.with_filter(SESSION, field("f") != 5.0, "not")
    assert odd is not None
    assert read(odd).num_rows == 3 * 999


def test_a_file_that_has_changed_since_the_plan_is_an_error(folder: Path) -> None:
    whole = Scan.plan(SESSION, folder)
    pq.write_table(ROWS.slice(0, 950), folder / "day=1" / "x.parquet", row_group_size=100)
    filtered = whole.with_filter(SESSION, field("id") >= 550, "late")
    assert filtered is not None
    with pytest.raises(PartitionFailed, match="has changed since the scan was planned"):
        read(filtered)
    (folder / "day=1" / "x.parquet").unlink()
    gone = whole.with_filter(SESSION, field("id") >= 550, "late")
    assert gone is not None
    with pytest.raises(FlightShuffleError, match="is not on"):
        read(gone)


def test_a_file_that_is_given_twice_is_read_twice(folder: Path) -> None:
    path = folder / "day=0" / "x.parquet"
    twice = Scan.plan(SESSION, [path, path])
    filtered = twice.with_filter(SESSION, field("id") < 50, "few")
    assert filtered is not None
    assert pieces(filtered) == 2
    assert read(filtered.with_columns(SESSION, ["f"])).num_rows == 100


def test_the_input_of_a_plan_narrows_its_scan(folder: Path) -> None:
    leg = leg_of_scan(SESSION, Scan.plan(SESSION, folder, filter=field("day") == 0))
    (part,) = leg.parts
    origin: Any = part.origin
    assert origin.schema == leg.schema
    narrow = origin.with_columns(["id"])
    assert narrow.schema.names == ["id"]
    assert narrow.label.endswith("1 of 5 columns: 'id'")
    assert origin.with_filter(field("id") + 1 > 5, "may fail") is None
