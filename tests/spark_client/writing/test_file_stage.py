"""The stage that writes files: one for each folder, in row groups of bounded size, and none of a task that fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql.types import (
    DayTimeIntervalType,
    DoubleType,
    LongType,
    StringType,
    StructType,
)

from flight_server.protocol.errors import InvalidRequest
from spark_client.steps import Pass, reports_of
from spark_client.writing import FileStage, Place, WrittenFile, file_stage, layout_of
from spark_client.writing.file_stage import run_starts
from spark_client.writing.folders import folder_of, texts_of

STRUCT = StructType().add("k", StringType()).add("id", LongType())


def stage_at(path: Path, folders: tuple[str, ...] = (), *, keeps_folders: bool = False) -> FileStage:
    layout = layout_of(STRUCT, folders, "a test", compression="snappy", keeps_folders=keeps_folders)
    return FileStage(Place(fs.LocalFileSystem(), str(path)), "staged", layout)


def batches(keys: Sequence[str | None], rows: int) -> Iterator[Any]:
    ids = pa.array(range(len(keys)), pa.int64())
    table = pa.table({"k": pa.array(keys, pa.string()), "id": ids})
    yield from table.to_batches(max_chunksize=rows)


def files_of(stage: FileStage, rows: Iterator[Any]) -> list[WrittenFile]:
    reports = list(stage.run(rows, Pass()))
    return [WrittenFile.of(each) for batch in reports for each in reports_of(batch.column(0).to_pylist())]


def test_a_partition_without_rows_has_no_file(tmp_path: Path) -> None:
    assert list(stage_at(tmp_path).run(iter([]), Pass())) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rows", "size_bytes", "most"), [(100, 1 << 30, 107), (1 << 30, 2000, 160)])
def test_row_groups_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, size_bytes: int, most: int
) -> None:
    monkeypatch.setattr(file_stage, "GROUP_ROWS", rows)
    monkeypatch.setattr(file_stage, "GROUP_BYTES", size_bytes)
    stage = stage_at(tmp_path)
    (file,) = files_of(stage, batches(["x"] * 1000, 7))
    written = pq.ParquetFile(tmp_path / "staged" / file.name)
    groups = [written.metadata.row_group(number).num_rows for number in range(written.num_row_groups)]
    assert sum(groups) == file.rows == 1000
    assert 50 <= max(groups) <= most
    assert written.read()["id"].to_pylist() == [*range(1000)]
    assert file.size_bytes == (tmp_path / "staged" / file.name).stat().st_size


def test_each_folder_has_a_file_and_one_is_open_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_files, most = 0, 0
    begin, end = file_stage._OpenFile.__init__, file_stage._OpenFile.end

    def began(self: Any, *arguments: Any) -> None:
        nonlocal open_files, most
        open_files += 1
        most = max(most, open_files)
        begin(self, *arguments)

    def ended(self: Any) -> Any:
        nonlocal open_files
        open_files -= 1
        return end(self)

    monkeypatch.setattr(file_stage._OpenFile, "__init__", began)
    monkeypatch.setattr(file_stage._OpenFile, "end", ended)
    keys = sorted(f"{number % 50:02}/" for number in range(1000))
    files = files_of(stage_at(tmp_path, ("k",)), batches(keys, 7))
    assert [file.folder for file in files] == [f"k={number:02}%2F" for number in range(50)]
    assert [file.texts for file in files] == [(f"{number:02}/",) for number in range(50)]
    assert {file.rows for file in files} == {20}
    assert most == 1
    assert pq.read_schema(tmp_path / "staged" / files[0].name).names == ["id"]


def test_null_and_the_empty_text_have_one_folder_and_a_file_each(tmp_path: Path) -> None:
    files = files_of(stage_at(tmp_path, ("k",), keeps_folders=True), batches([None, None, "", "a"], 2))
    assert [(file.folder, file.texts, file.rows) for file in files] == [
        ("k=__HIVE_DEFAULT_PARTITION__", (None,), 2),
        ("k=__HIVE_DEFAULT_PARTITION__", (None,), 1),
        ("k=a", ("a",), 1),
    ]
    assert pq.read_table(tmp_path / "staged" / files[1].name)["k"].to_pylist() == [""]


def test_runs_of_several_columns_begin_where_one_of_them_changes() -> None:
    first = pa.array([1, 1, 1, None, None, 2])
    second = pa.array(["a", "b", "b", "b", "b", "b"])
    assert run_starts([first, second]) == [0, 1, 3, 5]
    assert run_starts([first.slice(1, 2), second.slice(1, 2)]) == [0]


@pytest.mark.parametrize("after", [0, 3])
def test_a_task_that_fails_removes_the_file_that_it_has_open(tmp_path: Path, after: int) -> None:
    def failing() -> Iterator[Any]:
        for number, batch in enumerate(batches(["x"] * 70, 7)):
            if number == after:
                raise RuntimeError("no more")
            yield batch

    with pytest.raises(RuntimeError, match="no more"):
        list(stage_at(tmp_path).run(failing(), Pass()))
    assert list(tmp_path.glob("staged/*")) == []


def test_a_footer_has_sparks_schema_and_files_have_utc(tmp_path: Path) -> None:
    struct = StructType().add("at", "timestamp").add("step", DayTimeIntervalType())
    layout = layout_of(struct, (), "a test", compression="none")
    stage = FileStage(Place(fs.LocalFileSystem(), str(tmp_path)), "staged", layout)
    times = pa.array([1], pa.timestamp("us", "Europe/Berlin"))
    (file,) = files_of(
        stage, iter([pa.record_batch({"at": times, "step": pa.array([5], pa.duration("us"))})])
    )
    schema = pq.read_schema(tmp_path / "staged" / file.name)
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    assert json.loads(schema.metadata[b"org.apache.spark.sql.parquet.row.metadata"]) == json.loads(
        struct.json()
    )


def test_columns_of_folders_have_texts() -> None:
    struct = StructType().add("id", LongType()).add("v", DoubleType())
    with pytest.raises(InvalidRequest, match="column 'v' is double, which names no folder"):
        layout_of(struct, ("v",), "a test", compression="snappy")
    with pytest.raises(InvalidRequest, match="all columns name folders"):
        layout_of(StructType().add("id", LongType()), ("id",), "a test", compression="snappy")
    with pytest.raises(InvalidRequest, match="the pipeline has no columns"):
        layout_of(StructType(), (), "a test", compression="snappy")
    days = pa.array([2932896, 2932897], pa.int32())
    far = [
        *days.cast(pa.date32()),
        *pc.multiply(days.cast(pa.int64()), 86_400_000_000).cast(pa.timestamp("us")),
    ]
    assert [*texts_of(far, "UTC")] == [
        *("9999-12-31", "+10000-01-01", "9999-12-31 00:00:00", "+10000-01-01 00:00:00")
    ]
    assert folder_of(["a=b", "c"], ["1", None]) == "a%3Db=1/c=__HIVE_DEFAULT_PARTITION__"
