"""``pipeline.write``: Spark reads what tasks have written, and only of attempts that it accepted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from flight_server.protocol.errors import AlreadyExists, InvalidRequest, NotFound
from spark_client import Pipeline, Reading, ShuffleClient
from spark_client.pipeline import writer
from spark_client.writing import FileStage
from tests.support.failing_tasks import fails_first, first_time
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spark_rows import EVERY_TYPE
from tests.support.spark_status import jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
# Each task may fail once, so that Spark tries again.
SPARK_SETTINGS = {
    "master": "local[2, 2]",
    "sql__session__timeZone": "Europe/Berlin",
    "sql__timeType__enabled": "true",
    "sql__geospatial__enabled": "true",
}
REFUSED = {
    *("void", "variant", "geometry", "geography", "array of void", "array of variant", "map to variant"),
    *("struct", "struct of variant", "struct of nothing"),
}
"""Those with a part that Parquet does not hold; in ``struct`` it is a null."""
ROWS = 3000


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def rows_of(df: DataFrame) -> list[str]:
    """As texts, which also tell NaN."""
    return sorted(map(str, df.collect()))


def hidden(path: Path) -> set[str]:
    return {each.name for each in path.iterdir() if each.name.startswith(("_", "."))}


@pytest.fixture
def numbers(spark: SparkSession, client: ShuffleClient) -> Pipeline:
    return client.pipeline(spark.range(0, ROWS, 1, 3)).mapInArrow(same, "id long").repartition(4, "id")


def ids_in(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


def test_a_write_has_a_file_for_each_partition_and_a_marker(
    spark: SparkSession, numbers: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers.mapInArrow(same, "id long").write.parquet(tmp_path / "out")
    assert ids_in(spark, tmp_path / "out") == [*range(ROWS)]
    assert sorted(name.name[:10] for name in (tmp_path / "out").glob("*.snappy.parquet")) == [
        f"part-0000{number}" for number in range(4)
    ]
    assert hidden(tmp_path / "out") == {"_SUCCESS"}
    written = numbers.write
    written.parquet(str(tmp_path / "out"), "overwrite", compression="zstd")
    (first, *_) = sorted((tmp_path / "out").glob("*.zstd.parquet"))
    assert pq.ParquetFile(first).metadata.row_group(0).column(0).compression == "ZSTD"
    assert ids_in(spark, tmp_path / "out") == [*range(ROWS)]
    numbers.explain()
    assert "4 partitions, 3,000 rows" in capsys.readouterr().out
    assert numbers.statistics().exchanges[0].rows == ROWS


def test_files_in_the_order_of_their_names_are_in_the_order_of_the_rows(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    pipeline = client.pipeline(spark.range(0, ROWS, 1, 3).selectExpr("(id * 37) % 3000 as id"))
    pipeline.repartitionByRange(5, "id desc").sortWithinPartitions("id desc").write.parquet(tmp_path / "out")
    files = sorted((tmp_path / "out").glob("part-*"))
    ids = [id_ for file in files for id_ in pq.read_table(file)["id"].to_pylist()]
    assert ids == [*range(ROWS)][::-1]
    assert len(files) == 5


def test_spark_and_scan_read_every_type_as_it_was(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    kept = {name: sql for name, sql in EVERY_TYPE.items() if name not in REFUSED}
    df = spark.range(0, 5, 1, 2).selectExpr("id", *(f"{sql} as `{name}`" for name, sql in kept.items()))
    client.pipeline(df).write.parquet(tmp_path / "out")
    back = spark.read.parquet(str(tmp_path / "out"))
    assert back.dtypes == df.dtypes
    assert rows_of(back) == rows_of(df)


def test_a_type_that_parquet_does_not_hold_is_refused_before_any_task(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    for name in REFUSED:
        one = client.pipeline(spark.range(2).selectExpr("id", f"{EVERY_TYPE[name]} as v"))
        with pytest.raises(
            InvalidRequest, match=r"^write\.parquet: column 'v' is .*, which Parquet does not"
        ):
            one.write.parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


FOLDERS = {
    "text": "element_at(array('a/b c', 'ü=%', null, '', '007', '{[*]}?\"#', '2024-01-31'), int(id % 7) + 1)",
    "small": "if(id % 4 = 0, null, cast(id % 3 as tinyint))",
    "flag": "id % 2 = 0",
    "day": "if(id % 5 = 0, null, date_add(date'1999-12-31', int(id % 3)))",
    "at": "timestamp'2024-07-01 10:00:00.5' + make_dt_interval(0, int(id % 2) * 24 * 30)",
    "local": "timestamp_ntz'0001-01-01 00:00:00.000001'",
    "exact": "cast(id % 2 as decimal(9, 2)) / 4",
}


def test_folders_are_those_of_spark(spark: SparkSession, client: ShuffleClient, tmp_path: Path) -> None:
    columns = [f"{sql} as `{name}`" for name, sql in FOLDERS.items()]
    df = spark.range(0, 60, 1, 1).selectExpr("id", *columns, "id % 2 as `k=`")
    df.write.partitionBy(*FOLDERS, "k=").parquet(str(tmp_path / "spark"))
    client.pipeline(df).repartition(2).write.partitionBy(*FOLDERS, "k=").parquet(tmp_path / "ours")

    def folders(path: Path) -> list[str]:
        return sorted({str(file.parent.relative_to(path)) for file in path.rglob("*.parquet")})

    assert folders(tmp_path / "ours") == folders(tmp_path / "spark")
    ours, theirs = (spark.read.parquet(str(tmp_path / each)) for each in ("ours", "spark"))
    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)
    schema = df.schema
    ours, theirs = (spark.read.schema(schema).parquet(str(tmp_path / each)) for each in ("ours", "spark"))
    assert rows_of(ours) == rows_of(theirs)


def test_columns_that_name_no_folder_are_refused(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    df = spark.range(3).selectExpr("id", "double(id) as v", "array(id) as a")
    pipeline = client.pipeline(df)
    for name in ("v", "a"):
        with pytest.raises(InvalidRequest, match=f"column '{name}' is .*, which names no folder"):
            pipeline.write.parquet(tmp_path, partitionBy=name)
    with pytest.raises(InvalidRequest, match="all columns name folders, and no column is left for the files"):
        pipeline.select("id").write.parquet(tmp_path, partitionBy=["id"])
    with pytest.raises(InvalidRequest, match="partitionBy: 'id' is there twice"):
        pipeline.write.partitionBy("id", "id")
    with pytest.raises(InvalidRequest, match="partitionBy: no column 'k'"):
        pipeline.write.partitionBy("k")
    with pytest.raises(InvalidRequest, match=r"mode is one of error, .*, not 'replace'"):
        pipeline.write.parquet(tmp_path, "replace")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"compression is one of none, .*, not 'lzo'"):
        pipeline.select("id").write.parquet(tmp_path, compression="lzo")
    with pytest.raises(InvalidRequest, match="for other file systems give filesystem="):
        pipeline.select("id").write.parquet("nowhere://x/y")


def test_modes_are_those_of_spark(spark: SparkSession, numbers: Pipeline, tmp_path: Path) -> None:
    path, few = tmp_path / "out", numbers.filter(pc.field("id") < 10)
    few.write.parquet(path)
    with pytest.raises(AlreadyExists, match=r"has files; give mode='overwrite' to replace them"):
        few.write.parquet(path)
    few.write.mode("append").parquet(path)
    few.write.parquet(path, mode="ignore")
    assert ids_in(spark, path) == sorted([*range(10)] * 2)
    spark.range(5).write.mode("append").parquet(str(path))
    few.write.mode("overwrite").parquet(path)
    assert ids_in(spark, path) == [*range(10)]
    assert {name for name in hidden(path) if not name.endswith(".crc")} == {"_SUCCESS"}, "Spark's own stay"


@pytest.mark.parametrize("folders", [None, "k"])
def test_a_result_without_rows_keeps_its_columns(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path, folders: str | None
) -> None:
    df = spark.range(3).selectExpr("id", "string(id) as k")
    none = client.pipeline(df).repartition(3, "id").filter(pc.field("id") > 5)
    none.write.parquet(tmp_path / "out", partitionBy=folders)
    back = spark.read.parquet(str(tmp_path / "out"))
    assert [each.filter("k is not null").count() for each in (back, df)] == [0, 3]
    assert back.columns == ["id", "k"]
    assert dict(back.dtypes)["id"] == "bigint"


@pytest.mark.long
def test_parts_of_a_union_are_all_written(spark: SparkSession, numbers: Pipeline, tmp_path: Path) -> None:
    numbers.union(numbers.filter(pc.field("id") < 5)).write.parquet(tmp_path / "out")
    assert ids_in(spark, tmp_path / "out") == sorted([*range(ROWS), *range(5)])


def test_what_is_little_the_driver_writes(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "in.parquet")
    with ShuffleClient(server.location, reading=Reading()) as client:
        rows = client.scan(tmp_path / "in.parquet", spark=spark).filter(pc.field("id") < 4)
        before = jobs(spark)
        rows.write.parquet(tmp_path / "out")
        assert jobs(spark) == before
    assert ids_in(spark, tmp_path / "out") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "system", ["below a folder", pytest.param("of fsspec", marks=pytest.mark.long), "in memory"]
)
def test_other_file_systems(spark: SparkSession, numbers: Pipeline, tmp_path: Path, system: str) -> None:
    if system == "below a folder":
        numbers.write.parquet("out", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    else:
        fsspec = pytest.importorskip("fsspec")
        if system == "in memory":  # of each process
            with pytest.raises(
                NotFound, match="give a path on storage that the driver and all executors share"
            ):
                numbers.write.parquet("/out", filesystem=fsspec.filesystem("memory"))
            assert fsspec.filesystem("memory").find("/out") == []
            return
        numbers.write.parquet(str(tmp_path / "out"), filesystem=fsspec.filesystem("file"))
    assert ids_in(spark, tmp_path / "out") == [*range(ROWS)]


# Tasks that fail.


class DoomedStage(FileStage):
    """Its first task dies when it has closed its files, or reported them."""

    marker: Path
    when: str

    def run(self, batches: Iterator[Any], how: Any) -> Iterator[Any]:
        for report in super().run(batches, how):
            if self.when == "before its report" and first_time(self.marker):
                raise RuntimeError("first try")
            yield report
            if self.when == "after its report" and first_time(self.marker):
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("before the first byte", marks=pytest.mark.long),
        "in the middle",
        pytest.param("before its report", marks=pytest.mark.long),
        "after its report",
    ],
)
def test_a_task_that_fails_leaves_nothing_and_its_rows_are_there_once(
    spark: SparkSession, numbers: Pipeline, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "failed"

    def at_once(batches: Iterator[Any]) -> Iterator[Any]:
        if first_time(marker):
            raise RuntimeError("first try")
        yield from batches

    def stage(*arguments: Any) -> FileStage:
        made = DoomedStage(*arguments)
        object.__setattr__(made, "marker", marker)
        object.__setattr__(made, "when", when)
        return made

    if "report" in when:
        monkeypatch.setattr(writer, "FileStage", stage)
    elif when == "in the middle":
        numbers = numbers.mapInArrow(fails_first(marker, "exit"), "id long")
    else:
        numbers = numbers.mapInArrow(at_once, "id long")
    numbers.write.parquet(tmp_path / "out")
    assert marker.exists()
    assert ids_in(spark, tmp_path / "out") == [*range(ROWS)]
    assert hidden(tmp_path / "out") == {"_SUCCESS"}
    assert len(list((tmp_path / "out").glob("part-*"))) == 4


def test_a_job_that_fails_leaves_what_was_there(
    spark: SparkSession, numbers: Pipeline, tmp_path: Path
) -> None:
    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            raise RuntimeError("always")

    spark.range(5).write.parquet(str(tmp_path / "out"))
    with pytest.raises(Exception, match="always"):
        numbers.mapInArrow(fails, "id long").write.mode("overwrite").parquet(tmp_path / "out")
    assert ids_in(spark, tmp_path / "out") == [*range(5)]

    def left_over() -> set[str]:
        """Tasks that Spark has not ended yet may write once more; then the next write removes that."""
        numbers.write.mode("ignore").parquet(tmp_path / "out")
        return {name for name in hidden(tmp_path / "out") if not name.endswith(".crc")}

    eventually(left_over, {"_SUCCESS"})


# Tables.


def test_a_delta_table_has_the_rows_of_each_write(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    df = spark.range(0, 60, 1, 2).selectExpr("id", *(f"{sql} as {name}" for name, sql in FOLDERS.items()))
    pipeline = client.pipeline(df).mapInArrow(same, df.schema).repartition(3)
    path = tmp_path / "table"
    pipeline.write.delta(path, partitionBy=["text", "at"])
    pipeline.write.mode("append").delta(path)
    table = deltalake.DeltaTable(str(path))
    assert table.metadata().partition_columns == ["text", "at"]
    # An empty text is null in the names of partitions.
    others = [name for name in FOLDERS if name != "text"]
    nulls = df.selectExpr("id", "nullif(text, '') as text", *others)
    expected = sorted(rows_of(nulls) * 2)
    read = client.scan(table.to_pyarrow_dataset(), spark=spark).toDF().select(*df.columns)
    assert rows_of(read) == expected
    pipeline.filter(pc.field("id") < 5).write.delta(path, mode="overwrite")
    assert deltalake.DeltaTable(str(path)).to_pyarrow_table().num_rows == 5
    with pytest.raises(AlreadyExists, match="is there already"):
        pipeline.write.delta(path)


@pytest.mark.long
def test_an_iceberg_table_has_the_rows_of_each_write(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = catalogs.SqlCatalog("test", uri=f"sqlite:///{tmp_path}/db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("n")
    df = spark.range(0, 60, 1, 2).selectExpr("id", "string(id % 3) as k", f"{FOLDERS['at']} as at")
    schema = pa.schema([("id", pa.int64()), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    table = catalog.create_table("n.t", schema=schema)
    with table.update_spec() as spec:
        spec.add_identity("k")
    pipeline = client.pipeline(df).mapInArrow(same, df.schema).repartition(2)
    pipeline.write.iceberg(table)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(60)]
    pipeline.write.mode("append").iceberg(table)
    assert table.scan().to_arrow().num_rows == 120
    pipeline.filter(pc.field("id") < 5).write.iceberg(table, "overwrite")
    files = [task.file.file_path for task in table.scan().plan_files()]
    assert rows_of(spark.read.parquet(*files)) == rows_of(df.filter("id < 5"))
    with pytest.raises(AlreadyExists, match="is there already"):
        pipeline.write.iceberg(table)
    with pytest.raises(InvalidRequest, match="the table says its partitions itself"):
        pipeline.write.partitionBy("k").iceberg(table)
    from pyiceberg.utils.concurrent import ExecutorFactory

    if ExecutorFactory._instance is not None:
        ExecutorFactory._instance.shutdown()
        ExecutorFactory._instance = None
