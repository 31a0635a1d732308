"""Folders in a scan, beside what Spark reads from the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql.types import StringType

from spark_client import ShuffleClient
from spark_client.scan import Scan
from spark_client.scan.folder_values import NULL, unescaped
from tests.support.scanning import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin", "sql__timeType__enabled": "true"}

_WORDS = """
1 -2 007 +5 -0 2147483647 2147483648 -2147483648 -2147483649 9223372036854775807 -9223372036854775808
1.5 .5 -0.0 1e-5 10e-1 NaN +NaN -Infinity inf 1L 0x10 1_000 true null x é a%20b %31 %2B5 . - e5
2024-05-31 2024-5-31 2024-02-30 1500-02-29 1582-10-10 0001-01-01 9999-12-31 2024-05 20240531 2024-05-31T
2024-05-31T10:00:00 2024%2D05%2D31 24:00:00 10:00
"""
EXACT = [
    *_WORDS.split(),
    "2024-05-31 10:00:00",
    "2024-05-31 10%3A00%3A00.1",
    "2024-05-31 10%3A00%3A00.12",
    "2024-05-31 10%3A00",
    "2024-05-31 24%3A00%3A00",
    "2024-03-31 02%3A30%3A00",  # left out by clocks in Berlin
    "2024-10-27 02%3A30%3A00",  # shown twice
    "1850-01-01 00%3A00%3A00",
    "2024-05-31 10%3A00%3A00Z",
    " 2024-05-31",
    "%201",
]
"""Texts that have Spark's type."""
OTHERS = [
    *f"9223372036854775808 {'9' * 38} 1{'0' * 38} 1e5 1E+5 1e38 1. 0e5 1e400 1d 1.5F 0x1p3 ٣ 10:00:00".split(),
    " 1",
    "1.5 ",
]
"""Texts that are decimals, times or odd numbers in Spark, and stay texts."""
KINDS = [
    NULL,
    "5",
    "3000000000",
    "1.5",
    "2024-05-31",
    "2024-05-31 10%3A00%3A00",
    "text",
    "1e5",
    "10%3A00%3A00",
]
"""One text of each type; the last two are not read as Spark does."""


def written(base: Path, folders: Sequence[Sequence[str]]) -> str:
    """A file for each of ``folders``, whose values are of the columns ``c0``, ``c1``, …"""
    for number, values in enumerate(folders):
        path = base.joinpath(*(f"c{index}={value}" for index, value in enumerate(values)))
        path.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [number]}), path / f"{number}.parquet")
    return str(base)


def column(table: pa.Table, name: str) -> list[str]:
    """Its values in the order of the files, as texts: NaN equals NaN."""
    values = table.sort_by("a")[name]
    return list(
        map(str, (values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values).to_pylist())
    )


def differing(spark: SparkSession, base: Path, folders: Sequence[Sequence[str]]) -> Iterator[str]:
    """The columns that are texts here, and have another type in Spark; all others are checked to be Spark's."""
    path = written(base, folders)
    scan, expected = Scan.plan(spark, path), spark.read.parquet(path)
    ours, theirs = read(scan.splits), expected.toArrow()
    assert scan.struct.names == expected.schema.names
    for field in expected.schema:
        if scan.struct[field.name].dataType == field.dataType:
            assert column(ours, field.name) == column(theirs, field.name)
            continue
        assert scan.struct[field.name].dataType == StringType(), field
        texts = [values[int(field.name[1:])] for values in folders]
        assert column(ours, field.name) == [str(None if text == NULL else unescaped(text)) for text in texts]
        yield field.name


def test_values_of_folders_have_the_types_that_they_have_in_spark_or_are_texts(
    spark: SparkSession, tmp_path: Path
) -> None:
    half = len(EXACT) // 2
    assert [
        *differing(spark, tmp_path / "1", [EXACT[:half]]),
        *differing(spark, tmp_path / "2", [EXACT[half:]]),
    ] == []
    assert len([*differing(spark, tmp_path / "others", [OTHERS])]) == len(OTHERS)
    pairs = list(combinations(KINDS[:-2], 2))
    assert [*differing(spark, tmp_path / "pairs", list(zip(*pairs, strict=True)))] == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sources.partitionColumnTypeInference.enabled", "false"),
        ("timestampType", "TIMESTAMP_NTZ"),
        ("session.timeZone", "GMT+2"),
    ],
)
def test_settings_of_spark_for_folders_hold(
    spark: SparkSession, tmp_path: Path, setting: str, value: str
) -> None:
    folders = [KINDS[:-2], ["2024-05-31 10:00:00.1"] * len(KINDS[:-2])]
    before = spark.conf.get(f"spark.sql.{setting}") or ""
    spark.conf.set(f"spark.sql.{setting}", value)
    try:
        assert [*differing(spark, tmp_path, folders)] == []
    finally:
        spark.conf.set(f"spark.sql.{setting}", before)


def test_a_schema_says_the_types_of_folders_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = written(tmp_path, [["01", "2024-05-31", "5", NULL], ["2", "2024-05-31 10%3A00%3A00", "6", "1e5"]])
    schema = "a long, c0 string, c1 timestamp, c2 double, c3 string"
    scan, expected = Scan.plan(spark, path, schema=schema), spark.read.schema(schema).parquet(path)
    assert scan.struct == expected.schema
    for name in scan.struct.names:
        assert column(read(scan.splits), name) == column(expected.toArrow(), name)


@pytest.mark.parametrize(
    "files",
    [
        ["x", "_x", ".x", "_SUCCESS"],
        ["_k=1/x", "_k=2/_j", "_SUCCESS"],
        ["k=a=b/x", "k=%41%C3%A9/x", "k=%4/x"],
        ["a%20b=1/x"],
        ["b=x/x", "b=y/x"],
        [f"k={NULL}/j={NULL}/x", f"k={NULL}/j=1/x"],
    ],
    ids=str,
)
def test_files_and_columns_of_a_directory_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, files: list[str]
) -> None:
    for number, name in enumerate(files):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        pq.write_table(pa.table({"a": [number], "b": [True]}), tmp_path / f"{name}.parquet")
    scan, expected = Scan.plan(spark, str(tmp_path)), spark.read.parquet(str(tmp_path))
    assert scan.struct == expected.schema
    for name in scan.struct.names:
        assert column(read(scan.splits), name) == column(expected.toArrow(), name)


def test_a_folders_column_replaces_an_instant_of_its_name(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 1 AS a, now() AS day").write.parquet(str(tmp_path / "x" / "day=2024-05-31"))
    assert Scan.plan(spark, tmp_path / "x").struct == spark.read.parquet(str(tmp_path / "x")).schema


def test_columns_of_folders_without_values_and_with_nan_reach_spark(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    path = written(tmp_path / "x", [[NULL, "NaN", "5"]])
    found, expected = client.scan(path).repartition(2, "c1").toDF(), spark.read.parquet(path)
    assert found.schema == expected.schema
    rows: list[list[Any]] = [
        [str(value) for row in df.collect() for value in row] for df in (found, expected)
    ]
    assert rows[0] == rows[1]
