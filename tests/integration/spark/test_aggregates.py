"""Aggregates, distinct, union, limit and count give what Spark's own methods give."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_client import ShuffleClient
from tests.support.spark_rows import content, everything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin"}

FUNCTIONS: dict[str, list[str]] = {
    "v": [
        "sum",
        "avg",
        "min",
        "max",
        "count",
        "stddev",
        "stddev_pop",
        "var_samp",
        "var_pop",
        "product",
        "median",
        "count_distinct",
    ],
    "d": ["sum", "avg", "min", "max", "stddev"],
    "wide": ["sum", "avg"],
    "f": ["sum", "avg", "min", "max"],
    "g": ["min", "max", "sum"],
    "s": ["min", "max", "count", "collect_list", "collect_set"],
    "day": ["min", "max"],
    "t": ["min", "max"],
    "b": ["bool_or", "bool_and", "min"],
    "step": ["min", "max"],
    "st": ["count", "collect_list"],
    "deep": ["min", "max"],
    "ar": ["min", "max"],
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return (
        spark.range(0, 3000, 1, 3)
        .selectExpr(
            "id",
            "cast(hash(id) % 7 as int) as k",
            "if(id % 11 = 0, null, concat('s', id % 5)) as s",
            "if(id % 13 = 0, null, hash(id, 1) * 1L) as v",
            "if(id % 7 = 3, null, cast(hash(id, 2) % 1000000 as decimal(12, 3)) / 7) as d0",
            "cast(hash(id, 3) as decimal(38, 10)) as wide",
            "if(id % 17 = 0, double('NaN'), if(id % 3 = 0, -0.0D, if(id % 5 = 0, null, id % 4 - 1.5D))) as f",
            "if(id % 2 = 0, 0.0f, float(-0.0)) as g",
            "date_add(date'2020-01-01', int(id % 100)) as day",
            "timestamp_seconds(id * 100000) as t",
            "if(id % 4 = 0, null, id % 3 = 0) as b",
            "interval '1' hour * id as step",
            "if(id % 19 = 0, null, named_struct('x', id % 3, 'y', float(-0.0))) as st",
            "array(if(id % 2 = 0, 0.0f, float(-0.0)), float('nan'), float(id % 3)) as ar",
            "map('a', id) as m",
        )
        .selectExpr(
            "* except (d0)",
            "cast(d0 as decimal(12, 3)) as d",
            "if(id % 23 = 0, null, named_struct('s', s, 'in', named_struct('f', f, 'days', array(day)))) as deep",
        )
    )


@pytest.mark.parametrize("by", [["st", "f"], []], ids=str)
def test_aggregates_have_sparks_values_names_and_types(
    client: ShuffleClient, rows: DataFrame, by: list[str]
) -> None:
    from pyspark.sql import functions as sql

    def theirs(function: str, column: str) -> Any:
        if function == "count_distinct":
            return sql.expr(f"count(distinct {column})")
        return sql.product(column) if function == "product" else sql.expr(f"{function}({column})")

    wanted: dict[str, Any] = {name: functions for name, functions in FUNCTIONS.items() if name not in by}
    expected = rows.groupBy(*by).agg(
        *(theirs(each, name) for name, functions in wanted.items() for each in functions),
        sql.count(sql.lit(1)),
    )
    found = client.pipeline(rows).groupBy(by, numPartitions=3).agg({**wanted, "*": "count"}).toDF()
    assert [(each.name, each.dataType, each.nullable) for each in found.schema] == [
        (each.name, each.dataType, each.nullable) for each in expected.schema
    ]
    assert content(found) == content(expected)


def test_different_values_of_one_or_several_columns_are_counted(
    client: ShuffleClient, rows: DataFrame
) -> None:
    from pyspark.sql import functions as sql

    pipeline, names = client.pipeline(rows), ["f", "s", "st", "ar", "b"]
    expected = rows.groupBy("k").agg(*(sql.count_distinct(name) for name in names))
    several = pipeline.groupBy("k").agg(dict.fromkeys(names, "count_distinct")).toDF()
    assert [row[:] for row in sorted(several.collect())] == [row[:] for row in sorted(expected.collect())]
    for name in ["f", "ar"]:
        alone = pipeline.agg({name: "count_distinct"}).toDF().collect()
        assert [row[:] for row in alone] == [row[:] for row in rows.agg(sql.count_distinct(name)).collect()]


def test_no_rows_are_one_row_without_keys_and_none_with_keys(client: ShuffleClient, rows: DataFrame) -> None:
    from pyspark.sql import functions as sql

    nothing = rows.where("k > 100")
    wanted: dict[str, Any] = {
        "v": ["count", "sum", "avg", "stddev", "median", "collect_list"],
        "s": ["min", "count_distinct"],
    }
    expected = nothing.agg(
        *(sql.expr(f"{each}(v)") for each in wanted["v"]), sql.expr("min(s)"), sql.expr("count(distinct s)")
    )
    assert client.pipeline(nothing).agg(wanted).toDF().collect() == expected.collect()
    assert client.pipeline(nothing).groupBy("k").agg(wanted).toDF().collect() == []
    assert client.pipeline(nothing).count() == 0


def test_distinct_rows_are_sparks(client: ShuffleClient, rows: DataFrame) -> None:
    some = ["k", "s", "f", "g", "st", "ar"]
    found = client.pipeline(rows).select(*some).distinct().toDF()
    assert found.schema == rows.select(*some).schema
    assert sorted(map(repr, found.collect())) == sorted(map(repr, rows.select(*some).distinct().collect()))
    kept = client.pipeline(rows).dropDuplicates(["S", "k"]).toDF()
    assert kept.schema == rows.schema
    assert {(row.s, row.k) for row in kept.collect()} == {(row.s, row.k) for row in rows.collect()}
    assert kept.count() == rows.dropDuplicates(["s", "k"]).count()
    assert set(map(repr, kept.collect())) <= set(map(repr, rows.collect()))


def test_a_union_has_sparks_rows_and_types(client: ShuffleClient, rows: DataFrame) -> None:
    one, other = ["k", "s", "d", "v", "g"], ["v", "s", "k", "wide", "f"]
    left, right = client.pipeline(rows).select(*one), client.pipeline(rows).repartition(2, "k").select(*other)
    expected = rows.select(*one[:3]).union(rows.select(*other[:3]))
    found = left.select(*one[:3]).union(right.select(*other[:3]))
    assert found.toDF().schema == expected.schema
    assert content(found.toDF()) == content(expected)
    assert found.repartition(3, "k").count() == 6000
    floats = left.select("v", "g").union(right.select(a="f", b="f")).toDF()
    theirs = rows.select("v", "g").union(rows.select("f", "f"))
    assert (floats.schema, content(floats)) == (theirs.schema, content(theirs))
    itself = left.union(left).groupBy("k").agg(n=("*", "count")).toDF()
    assert content(itself) == content(rows.union(rows).groupBy("k").count())


def test_sides_of_one_task_each_are_united_in_order(client: ShuffleClient, rows: DataFrame) -> None:
    # Spark runs both in one task.
    spark = rows.sparkSession
    low, high = (client.pipeline(spark.range(start, start + 5, 1, 1)) for start in (0, 5))
    assert low.union(high).toArrow()["id"].to_pylist() == list(range(10))
    assert low.union(high).union(low).repartition(2, "id").count() == 15


def test_a_limit_after_a_sort_gives_the_first_rows_in_order(client: ShuffleClient, rows: DataFrame) -> None:
    pipeline = client.pipeline(rows)
    expected = rows.orderBy(rows.v.desc(), "t").limit(25)
    for ordered in (
        pipeline.orderBy("v desc", "t"),
        pipeline.repartition(1).sortWithinPartitions("v desc", "t"),
    ):
        top = ordered.limit(25)
        assert repr(top).count("(1)") == 1
        assert list(map(repr, top.toDF().collect())) == list(map(repr, expected.collect()))


def test_a_limit_gives_so_many_rows_wherever_it_stands(
    client: ShuffleClient, rows: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = client.pipeline(rows)
    assert pipeline.limit(1234).toDF().count() == 1234
    assert pipeline.limit(0).toDF().collect() == []
    limited = pipeline.repartition(4, "k").limit(17).repartition(2)
    assert limited.count() == 17
    limited.explain()
    shown = capsys.readouterr().out
    assert len(limited.statistics().exchanges) == shown.count("written by ") > 0
    assert pipeline.limit(10_000).count() == 3000


def test_counts_are_sparks_and_need_no_last_exchange(client: ShuffleClient, rows: DataFrame) -> None:
    pipeline = client.pipeline(rows).filter(pc.field("k") > 2)
    assert (
        pipeline.count()
        == pipeline.repartition(3, "s").sortWithinPartitions("t").count()
        == rows.where("k > 2").count()
    )
    assert client.pipeline(rows).select("k").count() == 3000


def test_a_count_neither_runs_again_nor_drops_what_is_persisted(
    client: ShuffleClient, spark: SparkSession
) -> None:
    runs = spark.sparkContext.accumulator(0)

    def noting(batches: Iterator[Any]) -> Iterator[Any]:
        runs.add(1)
        yield from batches

    kept = (
        client.pipeline(spark.range(0, 100, 1, 1))
        .mapInArrow(noting, "id long")
        .repartition(2, "id")
        .persist()
    )
    assert kept.filter(pc.field("id") < 30).count() == 30
    assert kept.repartition(1).sortWithinPartitions("id").count() == kept.count() == 100
    assert [each.is_reused for each in kept.statistics().exchanges] == [True]
    assert runs.value == 1
    kept.unpersist()


def test_expressions_have_sparks_values_and_types(client: ShuffleClient, spark: SparkSession) -> None:
    df = everything(spark)
    small = pc.field("dec").cast(pa.decimal128(9, 4))
    found = (
        client.pipeline(df)
        .filter((pc.field("id") > 10) & pc.field("flag"))
        .select(
            "ID",
            "st",
            when="ts",
            cost=pc.multiply(small, pc.subtract(pc.scalar(Decimal(1)), small)),
            year=pc.year(pc.field("day")),
            text=pc.utf8_upper(pc.field("txt")),
        )
        .toDF()
    )
    expected = df.where("id > 10 and flag").selectExpr(
        "id",
        "st",
        "ts as when",
        "cast(dec * (1 - dec) as decimal(20, 8)) as cost",
        "bigint(year(day)) as year",
        "upper(txt) as text",
    )
    assert found.schema["st"] == df.schema["st"]
    assert [(each.name, each.dataType) for each in found.schema] == [
        (each.name, each.dataType) for each in expected.schema
    ]
    assert content(found) == content(expected)


def test_a_decimal_beside_a_double_is_the_nearest_double(client: ShuffleClient, spark: SparkSession) -> None:
    from pyspark.sql import functions as sql

    cents = "cast(id * 7919 % 100000000 as decimal(10, 0))"
    prices = spark.range(0, 20_000, 1, 2).selectExpr(
        "int(id % 5) as k", f"cast({cents} / 100 as decimal(10, 2)) as d"
    )
    doubles = prices.selectExpr("k", "double(d) as x")
    ours, theirs = client.pipeline(prices), client.pipeline(doubles)
    assert ours.join(theirs, on=[("d", "x"), ("k", "k")]).count() == 20_000
    assert ours.join(client.broadcast(doubles.select("x")), on=[("d", "x")], how="anti").count() == 0
    assert theirs.select("x").union(ours.select("d")).distinct().count() == 20_000
    timed = theirs.join(ours, on="k", how="asof", as_of=("x", "d")).filter(pc.field("d").is_valid())
    assert timed.count() == 20_000
    back = ours.join(theirs, on="k", how="asof", as_of=("d", "x"), direction="forward", tolerance=0)
    assert back.filter(pc.field("x").is_valid()).count() == 20_000
    few = prices.where("d > 300000 and d < 300100")
    found = client.pipeline(few).agg({"d": ["median", "product", "stddev"]}).toDF().collect()[0]
    expected = few.select(sql.median("d"), sql.product("d"), sql.stddev("d")).collect()[0]
    assert found[0] == expected[0]
    assert list(found[1:]) == pytest.approx(list(expected[1:]), rel=1e-12)
