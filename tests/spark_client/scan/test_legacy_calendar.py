"""Dates of the Julian calendar in files of an old Spark are errors, and all others are read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet as pq

from flight_server.protocol.errors import InvalidRequest
from tests.support.scanning import read, splits_of

OLD, NEW = date(1582, 10, 14), date(1582, 10, 15)
ZONED = pa.timestamp("us", "UTC")
LEGACY = {"org.apache.spark.version": "4.1.0", "org.apache.spark.legacyDateTime": ""}


def written(path: Path, said: dict[str, str], **columns: Any) -> Path:
    table = pa.table({"id": [1], **columns})
    pq.write_table(table.replace_schema_metadata(said), path / "x.parquet")
    return path


@pytest.mark.parametrize(
    "column",
    [
        [OLD],
        pa.array([[NEW, OLD]]),
        pa.array([{"inner": {"d": OLD}}]),
        pa.array([[("k", OLD)]], pa.map_(pa.string(), pa.date32())),
        pa.array([datetime(1899, 12, 31, tzinfo=UTC)], ZONED),
    ],
    ids=["date", "list", "struct", "map", "instant"],
)
def test_an_old_date_is_an_error_that_names_file_and_column(tmp_path: Path, column: Any) -> None:
    written(tmp_path, LEGACY, d=column)
    with pytest.raises(InvalidRequest, match=r"x\.parquet: column 'd' has dates before 1582.*spark\.read"):
        read(splits_of(tmp_path))
    only_id = pa.schema([("id", pa.int64())])
    assert read(splits_of(tmp_path, names=["id"], schema=only_id)).num_rows == 1


def test_dates_that_both_calendars_share_are_read(tmp_path: Path) -> None:
    columns = {
        "d": [NEW],
        "t": pa.array([datetime(1900, 1, 1, tzinfo=UTC)], ZONED),
        "local": pa.array(["1200-01-01"]).cast(pa.timestamp("us")),
        "none": pa.array([None], pa.date32()),
    }
    assert read(splits_of(written(tmp_path, LEGACY, **columns)))["d"].to_pylist() == [NEW]


@pytest.mark.parametrize(
    ("said", "legacy"),
    [
        ({}, False),
        ({"org.apache.spark.version": "4.1.0"}, False),
        ({"org.apache.spark.version": "3.1.2-SNAPSHOT"}, False),
        ({"org.apache.spark.version": "2.4.8"}, True),
        ({"org.apache.spark.version": "4.1.0", "org.apache.spark.legacyINT96": ""}, True),
    ],
)
def test_the_files_metadata_say_which_calendar_it_is(
    tmp_path: Path, said: dict[str, str], legacy: bool
) -> None:
    splits = splits_of(written(tmp_path, said, d=[OLD]))
    if not legacy:
        assert read(splits)["d"].to_pylist() == [OLD]
        return
    with pytest.raises(InvalidRequest, match="before 1582"):
        read(splits)


def test_statistics_in_that_calendar_prune_nothing(tmp_path: Path) -> None:
    written(tmp_path, LEGACY, d=[date(1200, 1, 8)])
    # In Spark it is the 1st of January, which this filter keeps.
    with pytest.raises(InvalidRequest, match="before 1582"):
        read(splits_of(tmp_path, filter=pc.field("d") < date(1200, 1, 5)))
