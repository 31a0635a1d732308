"""Random programs of many steps give Spark's rows: each step is applied to a pipeline and to a DataFrame.

The data have nulls, NaN and -0.0, duplicates, one key with half of all rows, and nested columns; one table in four has
no rows. Every step but the last keeps the columns, so that any may follow any. The last one is an aggregate, sorted and
cut, or all rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet as pq

from spark_client import Pipeline, ShuffleClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__analyzer__failAmbiguousSelfJoin": "false"}

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.int32()),
        ("s", pa.string()),
        ("d", pa.decimal128(10, 2)),
        ("x", pa.float64()),
        ("a", pa.list_(pa.int64())),
        ("n", pa.struct([("u", pa.string()), ("v", pa.list_(pa.float64()))])),
    ]
)
NAMES = SCHEMA.names
DDL = "id long, k int, s string, d decimal(10, 2), x double, a array<long>, n struct<u: string, v: array<double>>"
PROGRAMS = 10
FLOATS = [0.0, -0.0, 1.5, -2.25, math.nan, math.inf, None]


def table(chance: random.Random, rows: int) -> pa.Table:
    def row(number: int) -> dict[str, Any]:
        return {
            "id": number // 2,
            "k": 7 if chance.random() < 0.5 else chance.choice([*range(20), None]),
            "s": chance.choice(["", "a", "b", "ä", "a" * 40, None]),
            "d": chance.choice([None, Decimal(chance.randrange(-(10**5), 10**5)) / 100]),
            "x": chance.choice(FLOATS),
            "a": chance.choice([None, [], [None], [chance.randrange(3), 5]]),
            "n": chance.choice([None, {"u": None, "v": None}, {"u": "u", "v": [chance.choice(FLOATS)]}]),
        }

    return pa.Table.from_pylist([row(number) for number in range(rows)], SCHEMA)


@dataclass(frozen=True)
class Rows:
    """The same rows both ways."""

    ours: Pipeline
    theirs: DataFrame


Step = Callable[[Rows, Rows], Rows]


def odd(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(pc.bit_wise_and(batch["id"], 1), 1))


def mapped(rows: Rows, other: Rows) -> Rows:
    return Rows(rows.ours.mapInArrow(odd, DDL), rows.theirs.mapInArrow(odd, DDL))


def filtered(rows: Rows, other: Rows) -> Rows:
    keep = (pc.field("k") > 3) | pc.field("s").is_null()
    return Rows(rows.ours.filter(keep), rows.theirs.filter("k > 3 or s is null"))


def computed(rows: Rows, other: Rows) -> Rows:
    ours = rows.ours.select(*NAMES[1:], id=pc.field("id") + 1).select(*NAMES)
    return Rows(ours, rows.theirs.selectExpr("id + 1 as id", *NAMES[1:]))


def exchanged(rows: Rows, other: Rows) -> Rows:
    return Rows(rows.ours.exchange(3, "s", "k"), rows.theirs.repartition(3, "s", "k"))


def sorted_within(rows: Rows, other: Rows) -> Rows:
    return Rows(rows.ours.exchange(2, "k", sort=["x desc", "id", "s"]), rows.theirs)


def united(rows: Rows, other: Rows) -> Rows:
    return Rows(rows.ours.union(other.ours), rows.theirs.union(other.theirs))


def distinct(rows: Rows, other: Rows) -> Rows:
    return Rows(rows.ours.distinct(), rows.theirs.distinct())


def joined(how: str) -> Step:
    def step(rows: Rows, other: Rows) -> Rows:
        mine = other.ours.select("k", "s", other_d="d", other_n="n")
        theirs = other.theirs.selectExpr("k", "s", "d as other_d", "n as other_n")
        keys = ["s", "k"]
        both = Rows(rows.ours.join(mine, on=keys, how=how), rows.theirs.join(theirs, keys, how))
        if how in ("semi", "anti"):
            return Rows(both.ours.select(*NAMES), both.theirs.select(*NAMES))
        kept = [name for name in NAMES if name not in ("d", "n")]
        ours = both.ours.select(*kept, d="other_d", n="other_n").select(*NAMES)
        return Rows(ours, both.theirs.selectExpr(*kept, "other_d as d", "other_n as n").select(*NAMES))

    step.__name__ = f"joined_{how}"
    return step


def first_of_group(group: pa.Table) -> pa.Table:
    return group.take(pc.sort_indices(group, [(name, "ascending") for name in ("id", "s", "d")])[:1]).select(
        ["id", "k"]
    )


def grouped(rows: Rows, other: Rows) -> Rows:
    """A row of each group, and null in what two rows of it may differ in."""
    ours = rows.ours.exchange(3, "k").applyInArrow(first_of_group, "id long, k int")
    theirs = rows.theirs.groupBy("k").applyInArrow(first_of_group, "id long, k int")
    return Rows(ours.mapInArrow(with_nulls, DDL), theirs.mapInArrow(with_nulls, DDL))


def with_nulls(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        nulls = [pa.nulls(len(batch), field.type) for field in SCHEMA][2:]
        yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=SCHEMA)


def common(left: pa.Table, right: pa.Table) -> pa.Table:
    return left if len(right) else left[:0]


def cogrouped(rows: Rows, other: Rows) -> Rows:
    ours = rows.ours.exchange(3, "k").cogroup(other.ours.exchange(3, "k"))
    theirs = rows.theirs.groupBy("k").cogroup(other.theirs.groupBy("k"))
    return Rows(ours.applyInArrow(common, DDL), theirs.applyInArrow(common, DDL))


STEPS: list[Step] = [
    mapped,
    filtered,
    computed,
    exchanged,
    sorted_within,
    united,
    distinct,
    grouped,
    cogrouped,
    *map(joined, ("inner", "left", "right", "full", "semi", "anti")),
]


def aggregated(rows: Rows) -> tuple[list[Any], list[Any]]:
    """The first groups in order; sums of floats are left out, as they depend on the order of addition."""
    ours = (
        rows.ours.aggregate(
            by=["k", "s"],
            rows=("*", "count"),
            ids=("id", "sum"),
            d=("d", "sum"),
            mean=("d", "avg"),
            low=("x", "min"),
            high=("x", "max"),
            kinds=("d", "count_distinct"),
        )
        .exchange(1, sort=["k desc", "s"])
        .limit(25)
    )
    theirs = (
        rows.theirs.groupBy("k", "s")
        .agg(
            *(
                _expression(text)
                for text in (
                    "count(1) as rows",
                    "sum(id) as ids",
                    "sum(d) as d",
                    "avg(d) as mean",
                    "min(x) as low",
                    "max(x) as high",
                    "count(distinct d) as kinds",
                )
            )
        )
        .orderBy(_expression("k").desc(), "s")
        .limit(25)
    )
    return plain(ours.toDF()), plain(theirs)


def _expression(text: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.expr(text)


def plain(df: Any) -> list[Any]:
    """Rows that are equal if Spark takes them for equal: NaN is NaN, and -0.0 is 0.0."""

    def value(given: Any) -> Any:
        if isinstance(given, float):
            return "NaN" if math.isnan(given) else given + 0.0
        if isinstance(given, list | tuple):
            return tuple(map(value, given))
        return given

    return [value(row) for row in df.collect()]


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_program_gives_sparks_rows(
    client: ShuffleClient, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    inputs = []
    for name in ("left", "right"):
        path = str(tmp_path / f"{name}.parquet")
        pq.write_table(table(chance, chance.choice([0, 60, 300, 300])), path, row_group_size=50)
        theirs = spark.read.parquet(path)
        inputs.append(Rows(client.scan(path) if chance.random() < 0.7 else client.pipeline(theirs), theirs))
    rows, other = inputs
    program = []
    for step in chance.sample(STEPS, 4):
        program.append(step.__name__)
        rows = step(rows, other)
    if chance.random() < 0.5:
        found, expected = aggregated(rows)
        assert found == expected, program
    else:
        found, expected = plain(rows.ours.toDF()), plain(rows.theirs)
        assert sorted(map(repr, found)) == sorted(map(repr, expected)), program


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
    found = client.pipeline(few).aggregate({"d": ["median", "product", "stddev"]}).toDF().collect()[0]
    expected = few.select(sql.median("d"), sql.product("d"), sql.stddev("d")).collect()[0]
    assert found[0] == expected[0]
    assert list(found[1:]) == pytest.approx(list(expected[1:]), rel=1e-12)
