"""Folders, patterns and lists of paths in a scan, beside what Spark reads from the same."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import dataset as ds
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin", "sql__timeType__enabled": "true"}


@pytest.fixture(autouse=True)
def names_without_endings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_client.scan.discovery._form", lambda _: ds.ParquetFileFormat())


def rows(df: DataFrame) -> Counter[Any]:
    return Counter(tuple(map(str, row)) for row in df.collect())


def shown(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows in any order; texts, so that NaN equals NaN and Python's dates do not matter."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns
    ]
    return sorted(zip(*(map(str, column.to_pylist()) for column in columns), strict=True))


def assert_as_spark(spark: SparkSession, paths: list[str], *, recursive: bool = False) -> None:
    scan = Scan.plan(spark, paths, recursive=recursive)
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
        Scan.plan(spark, paths)


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


def test_columns_of_folders_without_values_and_with_nan_reach_spark(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    path = write_values(tmp_path / "x", [["__HIVE_DEFAULT_PARTITION__", "NaN", "1e5"]])
    found, expected = client.scan(path).exchange(2, "c1").toDF(), spark.read.parquet(path)
    assert found.schema == expected.schema
    assert rows(found) == rows(expected)
