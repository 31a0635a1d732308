"""Scans on local Spark and a real server: Spark's rows, in its partitions, read by the tasks themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset as ds
from pyarrow import feather
from pyarrow import parquet as pq
from pyspark.errors import PySparkException

from flight_server.protocol import InvalidRequest
from spark_client import ShuffleClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin", "sql__timeType__enabled": "true"}


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


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def test_a_scan_gives_the_rows_that_spark_reads(
    client: ShuffleClient, spark: SparkSession, lake: Path
) -> None:
    df = client.scan(lake).toDF()
    expected = spark.read.parquet(str(lake))
    assert df.schema == expected.schema
    assert rows(df) == rows(expected)


def test_a_function_gets_no_more_rows_at_once_than_the_session_s_limit(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    limit = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    pq.write_table(pa.table({"id": range(3 * limit)}), tmp_path / "ids.parquet")

    def sizes(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int64())})

    found = client.scan(tmp_path).mapInArrow(sizes, "rows long").repartition(1).toArrow()
    assert found.column("rows").to_pylist() == [limit] * 3


def test_stages_before_and_after_an_exchange_see_what_the_filter_keeps(
    client: ShuffleClient, spark: SparkSession, lake: Path
) -> None:
    def count(table: pa.Table) -> pa.Table:
        return pa.table({"user": table["user"][:1], "rows": [table.num_rows]})

    keep = (pc.field("day") == 3) & (pc.field("id") > 1000)
    scan = client.scan(lake, columns=["user", "name"], filter=keep)
    counted = (
        scan.mapInArrow(same, "user long, name string")
        .repartition(3, "user")
        .groupBy("user")
        .applyInArrow(count, "user long, rows long")
    )
    expected = spark.read.parquet(str(lake)).where("day = 3 and id > 1000").groupBy("user").count()
    assert rows(counted.toDF()) == rows(expected)


def test_instants_can_be_filtered_by(client: ShuffleClient, lake: Path) -> None:
    bound = pa.scalar(0, pa.timestamp("us", "UTC"))
    assert client.scan(lake, columns=["id"], filter=pc.field("at") == bound).toDF().collect() == [(0,)]


def test_a_dataset_of_pyarrow_may_be_scanned(client: ShuffleClient, tmp_path: Path) -> None:
    table = pa.table({"id": range(100), "day": ["mon", "tue"] * 50})
    feather.write_feather(table, tmp_path / "x.feather", chunksize=10)
    schema = pa.schema([*table.schema, pa.field("later", pa.string())])
    dataset = ds.dataset(tmp_path, format="feather", schema=schema)
    df = client.scan(dataset, filter=pc.field("day") == "mon").repartition(2, "id").toDF()
    assert sorted(df.collect()) == [(number, "mon", None) for number in range(0, 100, 2)]


def test_a_scan_that_finds_nothing_gives_no_rows(client: ShuffleClient, lake: Path) -> None:
    scan = client.scan(lake, filter=pc.field("day") == 99)
    assert scan.toDF().collect() == []
    assert scan.mapInArrow(same, scan.leg.struct).repartition(3, "id").toDF().collect() == []


def test_an_error_of_a_file_is_said_to_be_of_what_the_stages_read(
    client: ShuffleClient, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1 << 40]}), tmp_path / "b.parquet")
    with pytest.raises(PySparkException, match=r"b\.parquet: (?s:.)*raised by what the stages read"):
        client.scan(tmp_path).mapInArrow(same, "id int").toDF().collect()


TYPES = {
    "instant": "timestamp'1969-12-31 23:59:59.999999' + make_dt_interval(cast(id * 9999 as int))",
    "local": "timestamp_ntz'0001-01-01 00:00:00.000001' + make_dt_interval(cast(id * 900000 as int))",
    "locals": "array(struct(timestamp_ntz'2020-03-29 02:30:00' as at))",
    "time": "time'23:59:59.999999' - make_dt_interval(0, cast(id as int))",
    "times": "map('k', time'01:02:03')",
    "date": "date_add(date'1582-10-15', cast(id * 900000 as int))",
    "long": "1577836800000000 + id",
    "longs": "array(1577836800000000)",
    "small": "named_struct('b', cast(id as byte), 's', cast(id as short), 'f', cast(id as float))",
    "decimal": "cast(id as decimal(38, 18)) / 7",
    "few": "cast(id as decimal(7, 2))",
    "bytes": "map('k', cast('x' as binary))",
    "chars": "cast('ab' as varchar(5))",
}


def test_columns_that_spark_wrote_have_its_types(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "x")
    columns = [f"{sql} as {name}" for name, sql in TYPES.items()]
    spark.range(0, 4, 1, 1).selectExpr("id", *columns).write.parquet(path)
    ours, expected = client.scan(path).toDF(), spark.read.parquet(path)
    assert ours.schema == expected.schema
    assert rows(ours) == rows(expected)


def test_vectors_of_sparks_machine_learning_are_refused(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.ml.linalg import Vectors

    df = spark.createDataFrame([(1, Vectors.dense([1.0, 2.0])), (2, None)], ["id", "v"])
    df.write.parquet(str(tmp_path / "v"))
    with pytest.raises(InvalidRequest, match=r"reads column 'v' as .*VectorUDT.*leave it out with columns="):
        client.scan(tmp_path / "v")


REFUSED = {
    "parse_json('1')": "variant",
    "interval '3' year": "interval year",
    "array(interval '3' day)": ".*interval day",
    "map(1, array('aB' collate UNICODE_CI))": ".*UNICODE_CI",
    "st_geomfromwkb(X'0101000000000000000000f03f0000000000000040')": "geometry",
}


def test_a_type_of_spark_that_arrow_does_not_have_is_refused(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    columns = (f"{sql} as v{number}" for number, sql in enumerate(REFUSED))
    spark.range(1).selectExpr("id", *columns).write.parquet(str(tmp_path / "x"))
    for number, kind in enumerate(REFUSED.values()):
        with pytest.raises(InvalidRequest, match=f"'v{number}' as {kind}.*leave it out with columns="):
            client.scan(tmp_path / "x", columns=["id", f"v{number}"])
    assert client.scan(tmp_path / "x", columns=["id"]).toDF().collect() == [(0,)]


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drifting")
    pq.write_table(pa.table({"id": [1], "a": pa.array([1], pa.int32())}), path / "1.parquet")
    pq.write_table(pa.table({"id": [2], "b": ["x"]}), path / "2.parquet")
    return path


def test_files_that_differ_in_columns_are_refused(client: ShuffleClient, drifting: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"2\.parquet has no column 'a', .*; name the columns .* schema=:"
    ):
        client.scan(drifting)


def test_a_schema_names_columns_and_types_that_files_may_lack(client: ShuffleClient, drifting: Path) -> None:
    scan = client.scan(drifting, schema="b string, a long, z array<date>", filter=pc.field("a") == 1)
    assert scan.toDF().collect() == [(None, 1, None)]
    assert client.scan(drifting, schema="a long").count() == 2


CHAR = "__CHAR_VARCHAR_TYPE_STRING"


def test_collations_and_chars_are_compared_by_spark_alone(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    text = "if(id % 2 = 0, 'aB', 'AB') collate UTF8_LCASE as l"
    collated = spark.range(4).selectExpr("id", text)
    collated.write.parquet(str(tmp_path / "x"))
    pipeline, ab = client.pipeline(collated), pc.field("l") == "AB"
    unsound: Callable[[], object]
    for unsound in (
        lambda: pipeline.select(x=pc.field("l")).distinct(),
        lambda: pipeline.select(x=pc.utf8_lower(pc.field("l"))),
        lambda: pipeline.filter(ab),
        lambda: client.scan(tmp_path / "x"),
    ):
        with pytest.raises(InvalidRequest, match="UTF8_LCASE"):
            unsound()
    assert client.scan(tmp_path / "x", schema="id long, l string", filter=ab).count() == 2
    spark.sql(f"create table five (id int, c char(5)) using parquet location '{tmp_path}/five'")
    spark.sql("insert into five values (1, 'ab')")
    five = spark.table("five")
    three = five.selectExpr("id", "rpad('ab', 3, ' ') as c").withMetadata("c", {CHAR: "char(3)"})
    assert five.join(three, "c").count() == five.where("c = 'ab'").count() == 1
    chars = client.pipeline(five)
    for unsound in (
        lambda: chars.filter(pc.field("c") == "ab"),
        lambda: chars.join(client.pipeline(three), "c", suffix="_r"),
        lambda: chars.join(client.broadcast(three), "c", suffix="_r"),
    ):
        with pytest.raises(InvalidRequest, match=r"'c' is char\(5\)"):
            unsound()
    assert chars.select(x=pc.field("c")).repartition(2, "x").toDF().where("x = 'ab'").count() == 1
    spark.sql("drop table five")
