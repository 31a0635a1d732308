"""Order on local Spark and a real server: Spark's own sorts, ranges, groups in order, as-of joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client import ShuffleClient

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin", "sql__shuffle__partitions": "3"}


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    found = spark.range(0, 3000, 1, 4).selectExpr(
        "id",
        "cast(pmod(hash(id), 9) as int) as k",
        "case pmod(hash(id, 1), 8) when 0 then null when 1 then double('NaN') when 2 then -0D when 3 then 0D "
        "else pmod(hash(id, 2), 50) - 25 end as x",
        "if(pmod(hash(id, 3), 9) = 0, null, repeat(chr(pmod(hash(id, 4), 300)), pmod(hash(id), 3))) as s",
        "timestamp_seconds(pmod(hash(id, 5), 1000)) as t",
        "cast(pmod(hash(id, 6), 100) as decimal(25, 3)) / 7 as d",
        "if(id % 7 = 0, null, named_struct('a', nullif(pmod(hash(id, 7), 3), 0), 'b', pmod(hash(id, 8), 5) > 2)) as st",
        "array(pmod(hash(id, 9), 3), nullif(pmod(hash(id), 4), 1)) as l",
    )
    return found.cache()


def rows(df: DataFrame) -> list[tuple[int, int]]:
    from pyspark.sql import functions as sql

    return [(row.p, row.id) for row in df.select(sql.spark_partition_id().alias("p"), "id").collect()]


def ids(df: DataFrame) -> list[int]:
    return [row.id for row in df.select("id").collect()]


def in_spark(key: str) -> Column:
    from pyspark.sql import functions as sql

    name, *words = key.split()
    order = {
        "": "asc",
        "desc": "desc",
        "nulls last": "asc_nulls_last",
        "desc nulls first": "desc_nulls_first",
    }
    found: Column = getattr(sql.col(name), order[" ".join(words)])()
    return found


@pytest.mark.parametrize(
    "keys",
    [
        ["x", "s desc", "t"],
        ["l desc", "st", "s nulls last", "x desc nulls first", "d desc"],
    ],
    ids=" ".join,
)
def test_partitions_are_sorted_as_by_sort_within_partitions(
    client: ShuffleClient, events: DataFrame, keys: list[str]
) -> None:
    theirs = events.repartition(5, "k").sortWithinPartitions(*map(in_spark, keys), "id")
    expected = rows(theirs)
    plan = client.pipeline(events).repartition(5, "k").sortWithinPartitions(*keys, "id")
    assert rows(plan.toDF()) == expected
    if "t" in keys:
        assert plan.toArrow().column("id").to_pylist() == [row for _, row in expected]


@pytest.mark.parametrize("by", [["s desc", "id desc"], ["t"]], ids=" ".join)
def test_sampled_ranges_in_order_are_the_whole_in_order(
    client: ShuffleClient, events: DataFrame, by: list[str]
) -> None:
    pipeline = client.pipeline(events).mapInArrow(lambda batches: batches, events.schema)
    placed = pipeline.repartitionByRange(6, *by, seed=1).sortWithinPartitions(*by, "id")
    found = rows(placed.toDF())
    if "t" in by:
        assert found == rows(placed.toDF())
    assert [row for _, row in found] == ids(events.orderBy(*map(in_spark, by), "id"))
    sizes = np.bincount([partition for partition, _ in found], minlength=6)
    assert sizes.max() < 750, "500 each"


def test_groups_have_their_rows_in_order(client: ShuffleClient, events: DataFrame) -> None:
    def first(table: pa.Table) -> pa.Table:
        assert table.column("t").to_pylist() == sorted(table.column("t").to_pylist(), reverse=True)
        return table.slice(0, 1)

    plan = client.pipeline(events).repartition(4, "k").sortWithinPartitions("t desc", "id")
    latest = (
        plan.mapInArrow(lambda batches: batches, events.schema)
        .groupBy("k")
        .applyInArrow(first, events.schema)
        .toDF()
    )
    from pyspark.sql import functions as sql

    theirs = events.groupBy("k").agg(sql.max_by("id", sql.struct("t", sql.negative("id"))).alias("id"))
    assert sorted(ids(latest)) == sorted(ids(theirs))


def test_an_as_of_join_is_that_of_pandas(spark: SparkSession, client: ShuffleClient) -> None:
    rng = np.random.default_rng(4)

    def side(count: int, at: str, number: str) -> pd.DataFrame:
        times = pd.to_datetime(np.sort(rng.choice(100_000, count, replace=False)), unit="s")
        return pd.DataFrame({"k": rng.integers(0, 20, count), at: times, number: np.arange(count)})

    trades, quotes = side(900, "at", "trade"), side(600, "quoted", "quote")
    options: dict[str, Any] = {"direction": "nearest", "tolerance": pd.Timedelta(minutes=30)}
    expected = pd.merge_asof(trades, quotes, left_on="at", right_on="quoted", by="k", **options)
    left, right = (
        client.pipeline(spark.createDataFrame(pa.Table.from_pandas(data, preserve_index=False)))
        for data in (trades, quotes)
    )
    plan = left.join(right, on="K", how="asof", as_of=("AT", "quoted"), numPartitions=4, **options)
    assert repr(plan).endswith("→ stage 1 (asof join('K'))>")
    found = plan.toArrow()
    assert found.column_names == ["k", "at", "trade", "quoted", "quote"]
    matches = sorted(zip(found.column("trade").to_pylist(), found.column("quote").to_pylist(), strict=True))
    wanted = [
        (int(row.trade), None if pd.isna(row.quote) else int(row.quote)) for row in expected.itertuples()
    ]
    assert matches == wanted
    assert 100 < sum(quote is None for _, quote in matches) < 800
    late = pc.subtract(found.column("at"), found.column("quoted")).drop_null()
    assert pc.max(pc.abs(late.cast(pa.int64()))).as_py() <= 30 * 60 * 10**6


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, r"how='asof' needs as_of=, the column of the times"),
        ({"as_of": "nothing"}, "no column 'nothing'"),
        ({"as_of": "s"}, "'s' is string, and has no distances"),
        ({"as_of": "d"}, "cast them to a decimal of at most 18 digits, or to double"),
        ({"as_of": ("t", "x")}, "are not compared"),
        ({"as_of": "t", "direction": "up"}, "direction is one of backward, forward, nearest, not 'up'"),
        ({"as_of": "t", "tolerance": 5}, r"tolerance is a datetime\.timedelta, not 5"),
        ({"as_of": "id", "tolerance": -1}, "tolerance is a distance, 0 or more, not -1"),
        ({"as_of": "x", "tolerance": "1"}, "tolerance is a number, not '1'"),
        ({"as_of": "K"}, "as_of='K' is a key"),
        ({"as_of": "t", "how": "left"}, "are for how='asof', not 'left'"),
        ({"as_of": "t", "other": 5}, "a Broadcast unless how='asof', not int"),
        ({"as_of": "t"}, "both sides have a column 'id'"),
    ],
    ids=str,
)
def test_an_as_of_join_that_cannot_work_is_refused(
    client: ShuffleClient, events: DataFrame, options: dict[str, Any], what: str
) -> None:
    side = client.pipeline(events)
    arguments: dict[str, Any] = {"other": side, "on": "k", "how": "asof"} | options
    with pytest.raises(InvalidRequest, match=what):
        side.join(**arguments)
