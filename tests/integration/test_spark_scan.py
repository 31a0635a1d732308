"""Scans on local Spark and a real server: Spark's rows, in its partitions, read by the tasks themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import dataset as ds
from pyarrow import feather
from pyarrow import parquet as pq
from pyspark.errors import PySparkException

from flight_server.protocol import InvalidRequest, NotFound
from spark_client import ShuffleClient
from spark_client.scan import Scan
from tests.support.folder_layouts import (
    KINDS,
    LAYOUTS,
    REFUSED,
    TEXTS,
    Layout,
    random_texts,
    write_files,
    write_values,
)
from tests.support.scanning import read
from tests.support.server_process import ServerProcess
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(java_home: str) -> Iterator[SparkSession]:
    with local_session(sql__session__timeZone="Europe/Berlin", sql__timeType__enabled="true") as session:
        yield session


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    process = ServerProcess.start(http_port=0)
    yield process
    process.terminate()
    process.close()


@pytest.fixture
def client(server: ServerProcess, spark: SparkSession) -> Iterator[ShuffleClient]:
    with ShuffleClient(server.location) as found:
        yield found
    with ShuffleClient(server.location) as after:
        assert after.datasets() == []


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Spark writes: instants in INT96, nulls, and a folder for each day."""
    path = tmp_path_factory.mktemp("lake") / "events"
    spark.range(0, 5000, 1, 3).selectExpr(
        "id", "if(id % 7 = 0, null, id % 100) as user", "concat('name ', id % 11) as name",
        "timestamp_seconds(id * 86400 * 365) as at", "array(id, id + 1) as both", "int(id % 4) as day",
    ).write.partitionBy("day").parquet(str(path))  # fmt: skip
    return path


def rows(df: DataFrame) -> Counter[Any]:
    return Counter(tuple(map(str, row)) for row in df.collect())


def placed(df: DataFrame) -> Counter[Any]:
    return rows(df.selectExpr("spark_partition_id() as p", "id"))


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def test_a_scan_gives_the_rows_that_spark_reads(
    client: ShuffleClient, spark: SparkSession, lake: Path
) -> None:
    df = client.scan(lake).toDF()
    expected = spark.read.parquet(str(lake))
    assert df.schema == expected.schema
    assert rows(df) == rows(expected)


def test_an_exchange_straight_after_a_scan_places_rows_as_spark_does(
    client: ShuffleClient, spark: SparkSession, lake: Path
) -> None:
    df = client.scan(lake).exchange(5, "user", "day").toDF()
    assert placed(df) == placed(spark.read.parquet(str(lake)).repartition(5, "user", "day"))


def test_stages_before_and_after_an_exchange_see_what_the_filter_keeps(
    client: ShuffleClient, spark: SparkSession, lake: Path
) -> None:
    def count(table: pa.Table) -> pa.Table:
        return pa.table({"user": table["user"][:1], "rows": [table.num_rows]})

    keep = (pc.field("day") == 3) & (pc.field("id") > 1000)
    scan = client.scan(lake, columns=["user", "name"], filter=keep)
    counted = (
        scan.mapInArrow(same, "user long, name string")
        .exchange(3, "user")
        .applyInArrow(count, "user long, rows long")
    )
    expected = spark.read.parquet(str(lake)).where("day = 3 and id > 1000").groupBy("user").count()
    assert rows(counted.toDF()) == rows(expected)


def test_functions_get_batches_of_the_rows_that_were_asked_for(client: ShuffleClient, lake: Path) -> None:
    def sizes(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    found = client.scan(lake, batch_rows=64).mapInArrow(sizes, "rows long").toDF().collect()
    assert max(row["rows"] for row in found) == 64
    assert sum(row["rows"] for row in found) == 5000


def test_instants_can_be_filtered_by(client: ShuffleClient, lake: Path) -> None:
    bound = pa.scalar(0, pa.timestamp("us", "UTC"))
    assert client.scan(lake, columns=["id"], filter=pc.field("at") == bound).toDF().collect() == [(0,)]


def test_a_dataset_of_pyarrow_may_be_scanned(client: ShuffleClient, tmp_path: Path) -> None:
    table = pa.table({"id": range(100), "day": ["mon", "tue"] * 50})
    feather.write_feather(table, tmp_path / "x.feather", chunksize=10)
    schema = pa.schema([*table.schema, pa.field("later", pa.string())])
    dataset = ds.dataset(tmp_path, format="feather", schema=schema)
    df = client.scan(dataset, filter=pc.field("day") == "mon").exchange(2, "id").toDF()
    assert sorted(df.collect()) == [(number, "mon", None) for number in range(0, 100, 2)]


def test_a_scan_that_finds_nothing_gives_no_rows(client: ShuffleClient, lake: Path) -> None:
    scan = client.scan(lake, filter=pc.field("day") == 99)
    assert scan.toDF().collect() == []
    assert scan.mapInArrow(same, scan.leg.struct).exchange(3, "id").toDF().collect() == []


def test_a_file_that_changes_after_the_plan_fails_the_job_with_its_name(
    client: ShuffleClient, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "x.parquet")
    scan = client.scan(tmp_path)
    pq.write_table(pa.table({"id": range(99)}), tmp_path / "x.parquet")
    with pytest.raises(PySparkException, match=r"x\.parquet has changed since the scan was planned"):
        scan.toDF().collect()
    with pytest.raises(PySparkException, match=r"x\.parquet has changed since the scan was planned"):
        scan.exchange(2, "id").toDF()


def test_an_error_of_a_file_is_said_to_be_of_what_the_stages_read(
    client: ShuffleClient, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("id\nx\n")
    with pytest.raises(PySparkException, match=r"b\.csv: .*'x'(?s:.)*raised by what the stages read"):
        client.scan(tmp_path, schema="id long").mapInArrow(same, "id long").toDF().collect()


SAID = {
    "collated": "concat('aB', id) collate UTF8_LCASE",
    "collated_parts": "map(1, array(concat('aB', id) collate UNICODE_CI))",
    "days": "interval '3' day * id",
    "seconds": "make_dt_interval(cast(1 - id as int), 1, 2, 3.000004)",
    "intervals": "array(interval '3' day, null)",
    "instant": "timestamp'1969-12-31 23:59:59.999999' + make_dt_interval(cast(id * 9999 as int))",
    "local": "timestamp_ntz'0001-01-01 00:00:00.000001' + make_dt_interval(cast(id * 900000 as int))",
    "locals": "array(struct(timestamp_ntz'2020-03-29 02:30:00' as at))",
    "time": "time'23:59:59.999999' - make_dt_interval(0, cast(id as int))",
    "times": "map('k', time'01:02:03')",
    "date": "date_add(date'1582-10-15', cast(id * 900000 as int))",
    "long": "1577836800000000 + id",
    "longs": "array(1577836800000000)",
    "decimal": "cast(id as decimal(38, 18)) / 7",
}
"""Columns whose types Arrow does not show, and their neighbours."""


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_columns_have_the_types_that_sparks_footer_says(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, form: str
) -> None:
    path = str(tmp_path / form)
    columns = [f"{sql} as {name}" for name, sql in SAID.items()]
    if form == "parquet":
        columns.append("array(parse_json('1'), null) as variants")
    df = spark.range(0, 4, 1, 1).selectExpr("id", *columns)
    df.withMetadata("id", {"comment": "of a row"}).write.format(form).save(path)
    ours, expected = client.scan(path).toDF(), spark.read.format(form).load(path)
    assert ours.schema == expected.schema
    assert rows(ours) == rows(expected)


def test_vectors_are_those_of_sparks_machine_learning(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.ml.linalg import Vectors

    df = spark.createDataFrame([(1, Vectors.dense([1.0, 2.0])), (2, None)], ["id", "v"])
    df.write.parquet(str(tmp_path / "v"))
    found = client.scan(tmp_path / "v").toDF()
    assert found.schema == df.schema
    assert rows(found) == rows(df)


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (("parquet", "parse_json('1')"), "reads column 'v' as variant"),
        (("parquet", "interval '3' year"), "reads column 'v' as interval year"),
        (("parquet", "st_geomfromwkb(X'0101000000000000000000f03f0000000000000040')"), "'v' as geometry"),
        (("orc", "interval '3' year"), "reads column 'v' as interval year"),
        (("orc", "array(timestamp'2020-01-01 00:00:00')"), "reads column 'v' as array<timestamp>"),
    ],
)
def test_a_type_of_spark_that_arrow_does_not_have_is_refused(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, column: tuple[str, str], what: str
) -> None:
    (form, sql), path = column, tmp_path / "x"
    spark.range(1).selectExpr("id", f"{sql} as v").write.format(form).save(str(path))
    with pytest.raises(InvalidRequest, match=f"{what}.*leave it out with columns="):
        client.scan(path)
    assert client.scan(path, columns=["id"]).toDF().collect() == [(0,)]


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("date'1582-10-04'", "column 'v' has dates before 1582"),
        ("timestamp'1582-10-04 00:00:00'", "instants of ORC only from 1677"),
        ("timestamp'1880-10-04 00:00:00'", "column 'v' has .* instants before 1900"),
    ],
)
def test_what_arrow_reads_otherwise_from_orc_is_refused(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, sql: str, what: str
) -> None:
    path = tmp_path / "x"
    spark.range(1).selectExpr(f"{sql} as v").write.orc(str(path))
    with pytest.raises(PySparkException, match=what):
        client.scan(path).toDF().collect()


def shown(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows in any order; texts, so that NaN equals NaN and Python's dates do not matter."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns
    ]
    return sorted(zip(*(map(str, column.to_pylist()) for column in columns), strict=True))


def assert_as_spark(spark: SparkSession, paths: list[str], *, recursive: bool = False) -> None:
    scan = Scan.plan(spark, paths, format="parquet", recursive=recursive)
    expected = spark.read.parquet(*paths, recursiveFileLookup=recursive)
    assert scan.struct == expected.schema
    assert shown(read(scan.splits)) == shown(expected.toArrow())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_folders_and_patterns_give_the_files_and_columns_that_they_give_spark(
    spark: SparkSession, tmp_path: Path, layout: Layout
) -> None:
    assert_as_spark(spark, layout.write(tmp_path), recursive=layout.recursive)


@pytest.mark.parametrize("layout", REFUSED, ids=str)
def test_folders_and_patterns_that_spark_refuses_are_refused(
    spark: SparkSession, tmp_path: Path, layout: Layout
) -> None:
    paths = layout.write(tmp_path)
    with pytest.raises((PySparkException, Py4JJavaError)):
        spark.read.parquet(*paths)
    with pytest.raises((InvalidRequest, NotFound), match="scan: "):
        Scan.plan(spark, paths, format="parquet")


def test_values_of_folders_have_the_types_that_they_have_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    half = len(TEXTS) // 2
    for number, texts in enumerate((TEXTS[:half], TEXTS[half:])):
        assert_as_spark(spark, [write_values(tmp_path / str(number), [texts])])
    pairs = list(combinations(KINDS, 2))
    assert_as_spark(spark, [write_values(tmp_path / "pairs", list(zip(*pairs, strict=True)))])


@pytest.mark.parametrize("seed", range(3))
def test_random_values_of_folders_are_as_in_spark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    folders = [random_texts(random, 40) for _ in range(1 + seed)]
    assert_as_spark(spark, [write_values(tmp_path, folders)])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sources.partitionColumnTypeInference.enabled", "false"),
        ("timestampType", "TIMESTAMP_NTZ"),
        ("session.timeZone", "GMT+2"),
        ("caseSensitive", "true"),
    ],
)
def test_settings_of_spark_for_folders_hold(
    spark: SparkSession, tmp_path: Path, setting: str, value: str
) -> None:
    paths = [write_values(tmp_path / "values", [KINDS, ["2024-05-31 10:00:00.1"] * len(KINDS)])]
    write_files(tmp_path / "case", ["X=7/x"])
    before = spark.conf.get(f"spark.sql.{setting}") or ""
    spark.conf.set(f"spark.sql.{setting}", value)
    try:
        assert_as_spark(spark, paths)
        assert_as_spark(spark, [str(tmp_path / "case")])
    finally:
        spark.conf.set(f"spark.sql.{setting}", before)


def test_a_folders_column_replaces_an_instant_of_its_name(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 1 AS a, now() AS day").write.parquet(str(tmp_path / "x" / "day=2024-05-31"))
    assert_as_spark(spark, [str(tmp_path / "x")])


@pytest.mark.parametrize("form", ["csv", "json", "orc"])
def test_a_file_that_is_listed_twice_is_read_twice(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, form: str
) -> None:
    spark.range(3).coalesce(1).write.format(form).save(str(tmp_path / "x"), header=True)
    [path] = map(str, (tmp_path / "x").glob(f"*.{form}"))
    expected = spark.read.format(form).load([path, path], header=True)
    assert client.scan([path, path], schema="id long").toDF().count() == expected.count() == 6


def test_columns_of_folders_without_values_and_with_nan_reach_spark(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    path = write_values(tmp_path / "x", [["__HIVE_DEFAULT_PARTITION__", "NaN", "1e5"]])
    found, expected = client.scan(path).exchange(2, "c1").toDF(), spark.read.parquet(path)
    assert found.schema == expected.schema
    assert rows(found) == rows(expected)
