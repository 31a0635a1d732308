"""The data source ``flight`` on local Spark and a real server: batch writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.spark_source import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin"}


def ids(df: DataFrame) -> list[int]:
    return sorted(row.id for row in df.collect())


def test_what_is_written_is_read_again_in_every_type(tables: Tables, client: ShuffleClient) -> None:
    df = tables.spark.range(0, 1000, 1, 3).selectExpr(
        "id",
        "if(id % 11 = 0, null, cast(id % 7 as tinyint)) as k",
        "if(id % 13 = 0, null, concat('name-', id % 5)) as `a.s`",
        "cast(id as decimal(12, 2)) / 4 as d",
        "timestamp_seconds(id * 1000) as t",
        "cast(timestamp_seconds(id) as timestamp_ntz) as n",
        "date_add(date'2020-01-01', cast(id as int)) as day",
        "array(id, id + 1) as a",
        "named_struct('x', cast(id as double), 'y', cast(cast(id as string) as binary)) as st",
        "map(cast(id as string), id) as m",
        "make_dt_interval(1, 2, 3, id) as i",
        "parse_json('{\"a\": 1}') as v",
        "cast(null as void) as nothing",
    )
    tables.save(df, "d", "overwrite")
    again = tables.load("d")
    assert again.dtypes == df.dtypes
    assert sorted(map(str, again.collect())) == sorted(map(str, df.collect()))
    (info,) = client.datasets("d")
    assert (info.partitions, info.rows) == (3, 1000)
    assert client.get("d", ordered=True).read_all()["id"].to_pylist() == list(range(1000))


def test_append_and_overwrite(tables: Tables, client: ShuffleClient) -> None:
    tables.save(tables.spark.range(3), "d")
    tables.save(tables.spark.range(3, 5), "d")
    assert ids(tables.load("d")) == [0, 1, 2, 3, 4]
    old = tables.load("d")
    tables.save(old.selectExpr("id * 10 as id"), "d", "overwrite")
    assert ids(tables.load("d")) == [0, 10, 20, 30, 40], "a dataset may be overwritten from itself"
    with pytest.raises(Exception, match="'d' was replaced after this DataFrame was made: load it again"):
        old.count()
    tables.save(tables.spark.range(0), "d", "overwrite")
    assert tables.load("d").count() == 0
    assert tables.load("d").dtypes == [("id", "bigint")]


def test_an_append_is_cast_to_what_is_there(tables: Tables, client: ShuffleClient) -> None:
    client.put("d", pa.table({"id": pa.array([1], pa.uint16()), "s": pa.array(["a"], pa.large_string())}))
    tables.save(tables.spark.sql("select 'b' as s, 2 as id"), "d")
    assert client.get("d", ordered=True).read_all().to_pylist() == [{"id": 1, "s": "a"}, {"id": 2, "s": "b"}]
    with pytest.raises(Exception, match="missing 's'"):
        tables.save(tables.spark.range(1), "d")
    with pytest.raises(
        Exception, match="column 'id' is int32 and does not fit the declared uint16 without loss"
    ):
        tables.save(tables.spark.sql("select 'b' as s, -1 as id"), "d")
    assert client.get("d").read_all().num_rows == 2


def test_a_dataset_that_exists_is_an_error_or_left_alone(tables: Tables, client: ShuffleClient) -> None:
    tables.save(tables.spark.range(1), "d", exists="error")
    tables.save(tables.spark.range(9), "d", exists="ignore")
    with pytest.raises(Exception, match="dataset 'd' exists: choose another name"):
        tables.save(tables.spark.range(9), "d", exists="error")
    with pytest.raises(Exception, match="goes with mode 'append'"):
        tables.save(tables.spark.range(9), "d", "overwrite", exists="error")
    assert ids(tables.load("d")) == [0]
    tables.save(tables.spark.range(2), "e", exists="ignore")
    assert ids(tables.load("e")) == [0, 1]


def test_a_job_that_fails_changes_nothing_and_leaves_nothing(tables: Tables, client: ShuffleClient) -> None:
    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 1:
            raise RuntimeError("my own failure")

    df = tables.spark.range(0, 100_000, 1, 4).mapInArrow(fails, "id long")
    tables.save(tables.spark.range(3), "d")
    for mode in ("append", "overwrite"):
        with pytest.raises(Exception, match="my own failure"):
            tables.save(df, "d", mode)
    assert ids(tables.load("d")) == [0, 1, 2]


def test_a_write_that_cannot_be_is_refused_before_the_job_runs(
    tables: Tables, client: ShuffleClient, tmp_path: Path
) -> None:
    def runs(batches: Iterator[Any]) -> Iterator[Any]:
        (tmp_path / "ran").touch()
        yield from batches

    df = tables.spark.range(1).mapInArrow(runs, "id long")
    client.put("d", pa.table({"id": [1]}))
    for options, said in (
        ({"exists": "error"}, "dataset 'd' exists"),
        ({"durable": "true"}, "cannot be durable"),
        ({"columns": "id"}, "no option 'columns'"),
        ({"lane": "fast"}, "'auto', 'grpc' or 'bulk'"),
    ):
        with pytest.raises(Exception, match=said):
            tables.save(df, "e" if "durable" in options else "d", **options)
    with pytest.raises(Exception, match="has no columns to write"):
        tables.save(df.select(), "e", "overwrite")
    assert not (tmp_path / "ran").exists()
