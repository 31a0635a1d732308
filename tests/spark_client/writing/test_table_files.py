"""Writes to tables of Delta and Iceberg: what the table's own package reads, and what a killed driver leaves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from flight_server.protocol.errors import AlreadyExists, Conflict, InvalidRequest
from spark_client.steps import Pass, reports_of
from spark_client.writing import DeltaFiles, FileStage, IcebergFiles, WrittenFile
from spark_client.writing.folder_write import HIDDEN, FolderWrite
from spark_client.writing.table_files import TableFiles
from tests.spark_client.writing.test_folder_write import die

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

STRUCT = StructType().add("id", "long").add("k", "string").add("at", "timestamp")
ROWS = [(1, "a/b c", 0), (2, None, 1), (3, "", 2), (4, "a/b c", 3)]
MORE = [(5, "ü", 4)]


class Tables:
    """Tables of one package below a folder, each by its name."""

    def files(self, name: str, mode: str, folders: tuple[str, ...] = ()) -> tuple[TableFiles, Any]:
        raise NotImplementedError

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError


def sorted_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    rows = [(row["id"], row["k"], row["at"]) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: int(row[0]))


class DeltaTables(Tables):
    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self, name: str, mode: str, folders: tuple[str, ...] = ()) -> tuple[TableFiles, Any]:
        return DeltaFiles.of(self.path / name, mode, "write.delta", None).prepared(STRUCT, folders, "snappy")

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        from deltalake import DeltaTable

        return sorted_rows(DeltaTable(str(self.path / name)).to_pyarrow_table())


class IcebergTables(Tables):
    def __init__(self, path: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self.catalog = SqlCatalog("test", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}/lake")
        self.catalog.create_namespace_if_not_exists("n")

    def files(self, name: str, mode: str, folders: tuple[str, ...] = ()) -> tuple[TableFiles, Any]:
        from spark_client.jobs import utc_arrow_schema

        if not self.catalog.table_exists(f"n.{name}"):
            made = self.catalog.create_table(f"n.{name}", schema=utc_arrow_schema(STRUCT))
            with made.update_spec() as spec:
                for each in folders:
                    spec.add_identity(each)
        files = IcebergFiles.of(self.catalog.load_table(f"n.{name}"), mode, "write.iceberg")
        return files, files.layout(STRUCT, "snappy")

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return sorted_rows(self.catalog.load_table(f"n.{name}").scan().to_arrow())


@pytest.fixture(autouse=True)
def no_threads_of_pyiceberg() -> Iterator[None]:
    """It keeps those of its pool until the process ends."""
    yield
    from pyiceberg.utils.concurrent import ExecutorFactory

    if ExecutorFactory._instance is not None:
        ExecutorFactory._instance.shutdown()
        ExecutorFactory._instance = None


@pytest.fixture(params=[DeltaTables, IcebergTables])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    made: Tables = request.param(tmp_path)
    return made


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    ids, keys, seconds = zip(*rows, strict=True)
    times = pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "Europe/Berlin"))
    return pa.record_batch({"id": pa.array(ids), "k": pa.array(keys, pa.string()), "at": times})


def staged(
    files: TableFiles, layout: Any, write: Any, rows: list[tuple[Any, ...]]
) -> tuple[FileStage, list[WrittenFile]]:
    stage = FileStage(files.place, files.folder(write), layout)
    in_order = sorted(rows, key=lambda row: (row[1] is not None, row[1]))
    reports = stage.run(iter([batch_of(in_order)]), Pass()) if rows else iter(())
    texts = [text for batch in reports for text in batch.column(0).to_pylist()]
    return stage, [*map(WrittenFile.of, reports_of(texts))]


def written(
    tables: Tables, name: str, mode: str, rows: list[tuple[Any, ...]], folders: tuple[str, ...] = ()
) -> None:
    files, layout = tables.files(name, mode, folders)
    with files.staged() as write:
        if files.is_wanted():
            files.commit(write, *staged(files, layout, write, rows))


def expected(*rows: tuple[Any, ...], empty: str | None = "") -> list[tuple[Any, ...]]:
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return sorted(
        (id_, empty if key == "" else key, start + dt.timedelta(seconds=second)) for id_, key, second in rows
    )


@pytest.mark.parametrize("folders", [(), ("k",)])
def test_appends_and_overwrites_are_read_by_the_package(tables: Tables, folders: tuple[str, ...]) -> None:
    # As in Spark, and by the protocol of Delta, an empty text is no name of a partition.
    empty = None if folders and isinstance(tables, DeltaTables) else ""
    written(tables, "t", "append", ROWS, folders)
    assert tables.rows("t") == expected(*ROWS, empty=empty)
    written(tables, "t", "append", MORE)
    assert tables.rows("t") == expected(*ROWS, *MORE, empty=empty)
    with pytest.raises(AlreadyExists, match="is there already; give mode='overwrite'"):
        written(tables, "t", "error", MORE)
    written(tables, "t", "ignore", MORE)
    written(tables, "t", "overwrite", MORE)
    assert tables.rows("t") == expected(*MORE)
    written(tables, "t", "overwrite", [])
    assert tables.rows("t") == []
    written(tables, "t", "append", [])
    assert tables.rows("t") == []


def test_writes_at_once(tables: Tables) -> None:
    written(tables, "t", "append", ROWS)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda id_: written(tables, "t", "append", [(id_, "x", 0)]), range(10, 14)))
    assert [row[0] for row in tables.rows("t")] == [1, 2, 3, 4, 10, 11, 12, 13]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda id_: written(tables, "t", "overwrite", [(id_, "x", 0)] * 2), range(10, 14)))
    ids = [row[0] for row in tables.rows("t")]
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_another_writers_commit_in_between_is_met(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tables, "t", "append", ROWS)
    files, layout = tables.files("t", "overwrite")
    seen: list[Any] = []
    with files.staged() as write:
        stage, made = staged(files, layout, write, MORE)
        add = type(files).add

        def late(self: Any, *arguments: Any) -> None:
            seen.append(arguments)
            if len(seen) < 3:
                raise files.conflicts()[0]("late")
            add(self, *arguments)

        monkeypatch.setattr(type(files), "add", late)
        files.commit(write, stage, made)
    assert tables.rows("t") == expected(*MORE)
    monkeypatch.setattr(type(files), "add", lambda *_: (_ for _ in ()).throw(files.conflicts()[0]("late")))
    with pytest.raises(Conflict, match="have committed first, 5 times: late"):
        written(tables, "t", "append", MORE)
    monkeypatch.undo()
    assert tables.rows("t") == expected(*MORE)


def on_disk(files: TableFiles) -> list[str]:
    return [
        path.name for path in Path(files.place.folder).rglob("*.parquet") if "_delta_log" not in path.parts
    ]


@pytest.mark.parametrize("where", ["before", "after the journal", "after the commit", "at its end"])
def test_a_driver_that_is_killed_leaves_files_that_the_next_write_removes_or_keeps(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    written(tables, "t", "append", ROWS)
    files, layout = tables.files("t", "append")
    write = files.staged().__enter__()
    stage, made = staged(files, layout, write, MORE)
    staged(files, layout, write, MORE)  # of an attempt that was not accepted
    before = len(on_disk(files))
    assert before == 3

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    if where != "before":
        name = "add" if where == "after the journal" else "_keep_only"
        end = FolderWrite.end_commit
        if where == "at its end":
            monkeypatch.setattr(FolderWrite, "end_commit", lambda self: killed(end(self)))
        else:
            monkeypatch.setattr(type(files), name, killed)
        with suppress(KeyboardInterrupt):
            files.commit(write, stage, made)
        monkeypatch.undo()
    die(write)
    committed = where in ("after the commit", "at its end")
    rows = [*ROWS, *MORE] if committed else ROWS
    assert tables.rows("t") == expected(*rows)
    written(tables, "t", "ignore", [])
    assert tables.rows("t") == expected(*rows)
    assert len(on_disk(files)) == (2 if committed else 1)
    assert not Path(files.place.folder, HIDDEN).exists()


@pytest.mark.parametrize("name", [".DS_Store", ".nfs00000012", "data"])
def test_a_stray_file_costs_a_table_nothing(tables: Tables, name: str) -> None:
    written(tables, "t", "append", ROWS)
    files, _ = tables.files("t", "append")
    stray = Path(files.place.folder, HIDDEN, name)
    stray.parent.mkdir()
    stray.touch()
    written(tables, "t", "append", MORE)
    assert tables.rows("t") == expected(*ROWS, *MORE)
    assert stray.exists()


def test_a_file_of_a_task_that_outlives_its_write_is_not_read_and_goes_with_a_vacuum(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    tables = DeltaTables(tmp_path)
    files, layout = tables.files("t", "append")
    with files.staged() as write:
        files.commit(write, *staged(files, layout, write, ROWS))
    _, late = staged(files, layout, write, ROWS)
    written(tables, "t", "append", MORE)
    assert tables.rows("t") == expected(*ROWS, *MORE)
    table = DeltaTable(str(tmp_path / "t"))
    assert table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True) == [
        f"{write.id}/{each.name}" for each in late
    ]
    assert tables.rows("t") == expected(*ROWS, *MORE)


def test_columns_of_a_delta_table_that_are_not_the_pipelines_are_refused(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    def refused(table: pa.Table, match: str, folders: tuple[str, ...] = (), **options: Any) -> None:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        write_deltalake(str(path), table, **options)
        if "constraint" in match:
            DeltaTable(str(path)).alter.add_constraint({"positive": "id > 0"})
        with pytest.raises(InvalidRequest, match=match):
            DeltaFiles.of(path, "append", "write.delta", None).prepared(STRUCT, folders, "snappy")

    same = batch_of(ROWS).cast(
        pa.schema([("id", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    )
    table = pa.Table.from_batches([same])
    refused(table.drop_columns("k"), r"column 'k' is .*string.*, and .* has no such column")
    refused(table.append_column("z", table["id"]), "has a column 'z', and the pipeline has not")
    refused(
        table.set_column(0, "id", pa.array([1] * 4, pa.int32())), r"column 'id' is .*long.*integer.* there"
    )
    refused(table, r"has delta\.constraints\.positive, which files of tasks would not keep")
    refused(table, "is partitioned by .*'k'.*, and keeps that", ("id",), partition_by=["k"])
    interval = StructType().add("id", "long").add("v", "interval day to second")
    with pytest.raises(InvalidRequest, match=r"column 'v' is duration\[us\], which Delta does not have"):
        DeltaFiles.of(tmp_path / "new", "append", "write.delta", None).prepared(interval, (), "snappy")


def test_nulls_that_a_table_does_not_allow_are_an_error_of_the_task(tmp_path: Path) -> None:
    from deltalake import DeltaTable, Schema

    schema = pa.schema(
        [("id", pa.int64()), pa.field("k", pa.string(), nullable=False), ("at", pa.timestamp("us", "UTC"))]
    )
    DeltaTable.create(str(tmp_path / "t"), Schema.from_arrow(schema))
    tables = DeltaTables(tmp_path)
    with pytest.raises(InvalidRequest, match="column 'k' has nulls but is declared NOT NULL"):
        written(tables, "t", "append", ROWS)
    written(tables, "t", "append", MORE)
    assert tables.rows("t") == expected(*MORE)


@pytest.mark.parametrize("key", [None, ""])
def test_a_partition_that_may_not_be_null_is_checked_before_the_commit(
    tmp_path: Path, key: str | None
) -> None:
    from deltalake import DeltaTable, Schema

    column = pa.field("k", pa.string(), nullable=False)
    schema = pa.schema([("id", pa.int64()), column, ("at", pa.timestamp("us", "UTC"))])
    DeltaTable.create(str(tmp_path / "t"), Schema.from_arrow(schema), partition_by=["k"])
    tables = DeltaTables(tmp_path)
    with pytest.raises(InvalidRequest, match="column 'k' has nulls or empty texts, which are one"):
        written(tables, "t", "append", [(1, key, 0)])
    written(tables, "t", "append", MORE)
    assert tables.rows("t") == expected(*MORE)


def test_what_a_delta_table_does_not_keep_is_refused_before_the_job(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    tables = DeltaTables(tmp_path)
    written(tables, "t", "append", ROWS)
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(InvalidRequest, match=r"has delta\.appendOnly, and so no overwrite"):
        tables.files("t", "overwrite")
    written(tables, "t", "append", MORE)
    exact = StructType().add("id", "long").add("v", "decimal(9,2)")
    with pytest.raises(InvalidRequest, match="which deltalake does not always read back"):
        DeltaFiles.of(tmp_path / "new", "append", "write.delta", None).prepared(exact, ("v",), "snappy")


def test_what_an_iceberg_table_does_not_take_is_refused(tmp_path: Path) -> None:
    from pyiceberg.transforms import BucketTransform

    tables = IcebergTables(tmp_path)
    files, _ = tables.files("t", "append")
    assert isinstance(files, IcebergFiles)
    for struct, match in (
        (StructType().add("id", "long"), r"only n\.t has a column 'at'"),
        (StructType([*STRUCT.fields]).add("z", "integer"), "only the pipeline has a column 'z'"),
        (
            StructType().add("id", "string").add("k", "string").add("at", "timestamp"),
            "'id' is string, and n.t has long",
        ),
    ):
        with pytest.raises(InvalidRequest, match=match):
            files.layout(struct, "snappy")
    with files.table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
    with pytest.raises(InvalidRequest, match=r"is partitioned by bucket, a bucket\[4\] of a column"):
        IcebergFiles.of(files.table, "append", "write.iceberg").layout(STRUCT, "snappy")
    with pytest.raises(InvalidRequest, match=r"takes a table of pyiceberg, as catalog\.load_table"):
        IcebergFiles.of("n.t", "append", "write.iceberg")


def test_a_missing_package_says_what_to_install() -> None:
    from spark_client.writing.table_files import imported

    with pytest.raises(ImportError, match="no package nowhere: pip install nowhere, or the extra 'delta'"):
        imported("nowhere.at.all", "delta")
