"""Joins and cogroups of pipelines give Spark's rows and schemas; what cannot work is refused where it is written."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.protocol import InvalidRequest
from spark_client import ShuffleClient
from spark_client.pipeline.plan import Pipeline
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin", "sql__shuffle__partitions": "2"}

HOWS = ("inner", "left", "right", "full", "semi", "anti")


@pytest.fixture
def client(empty_server: ServerProcess) -> Iterator[ShuffleClient]:
    with ShuffleClient(empty_server.location) as found:
        yield found
    with ShuffleClient(empty_server.location) as after:
        assert after.datasets() == [], "a closed client leaves no dataset"


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def choice(seed: int, *values: Any) -> Callable[[], Any]:
    numbers = random.Random(seed)
    return lambda: numbers.choice(values)


@pytest.fixture(scope="module")
def left(spark: SparkSession) -> DataFrame:
    key, name = choice(1, None, *range(12)), choice(2, None, "", "a", "b")
    rows = [(key(), name(), [number], {"x": number}, f"left {number}") for number in range(90)]
    return spark.createDataFrame(rows, "k int, s string, tags array<long>, point struct<x: int>, t string")


@pytest.fixture(scope="module")
def right(spark: SparkSession) -> DataFrame:
    key, name = choice(3, None, *range(6, 20)), choice(4, None, "", "b", "c")
    rows = [(name(), f"right {number}", key(), {"m": number}) for number in range(70)]
    return spark.createDataFrame(rows, "s string, u string, k long, counts map<string, int>")


def bag(df: DataFrame | Iterable[Any]) -> Counter[str]:
    rows = df if not hasattr(df, "collect") else df.collect()
    return Counter(str({name: _shown(value) for name, value in row.asDict().items()}) for row in rows)


def _shown(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.parametrize("how", HOWS)
def test_a_join_has_the_rows_and_the_schema_of_sparks(
    client: ShuffleClient, left: DataFrame, right: DataFrame, how: Any
) -> None:
    expected = left.join(right, ["k", "s"], how)
    rows = bag(expected)
    sides: list[Any] = [client.pipeline(right)]
    if how in ("left", "anti"):
        sides.append(client.broadcast(right))
    for side in sides:
        plan = client.pipeline(left).join(side, ["k", "s"], how)
        assert ("exchange" in repr(plan)) is (side is sides[0])
        assert plan.schema == expected.schema
        found = plan.toDF()
        assert found.schema == expected.schema
        assert bag(found) == rows


def test_a_join_may_be_between_other_steps(client: ShuffleClient, left: DataFrame, right: DataFrame) -> None:
    narrow = right.selectExpr("cast(k as int) as k", "u")
    joined = left.join(narrow, "k", "left").select("k", "u", "s", "t")
    one = (
        client.pipeline(left).mapInArrow(same, left.schema).repartition(5, "k").mapInArrow(same, left.schema)
    )
    two = client.pipeline(narrow).repartition(2, "k")
    plan = one.join(two, on="k", how="left_outer").select("k", "u", "s", "t").mapInArrow(same, joined.schema)
    assert repr(plan).count("(5, 'k')") == 2
    assert "repartition(2, 'k') → exchange(5, 'k'))" in repr(plan), "what is placed otherwise is sent again"
    assert bag(plan.repartition(2, "k").toDF()) == bag(joined)


def test_keys_of_different_names_stay_both(client: ShuffleClient, left: DataFrame, right: DataFrame) -> None:
    other = right.withColumnsRenamed({"k": "number", "s": "name"})
    plan = client.pipeline(left).join(client.pipeline(other), {"k": "number", "s": "name"}, "full")
    expected = left.join(other, [left.k == other.number, left.s == other.name], "full")
    found = plan.toDF()
    assert found.schema == expected.schema
    assert bag(found) == bag(expected)


KEYS: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "widths": ("tinyint", "int", [None, -1, 2, 3], [None, -1, 2, 255]),
    "a long and a double": ("long", "double", [None, 2**53 + 1, 0], [2.0**53, -0.0, math.nan]),
}


def test_keys_of_two_types_meet_as_in_spark(client: ShuffleClient, spark: SparkSession) -> None:
    found, expected = [], []
    for one_type, two_type, lefts, rights in KEYS.values():
        one = spark.createDataFrame(
            [(key, number) for number, key in enumerate(lefts)], f"k {one_type}, i int"
        )
        two = spark.createDataFrame(
            [(key, number) for number, key in enumerate(rights)], f"k {two_type}, j int"
        )
        plan = (
            client.pipeline(one)
            .repartition(3, "k")
            .join(client.pipeline(two).repartition(3, "k"), "k", "full")
        )
        found.append(plan.toDF())
        expected.append(one.join(two, "k", "full"))
    for name, one, two in zip(KEYS, found, expected, strict=True):
        assert one.schema == two.schema, name
        assert bag(one.select("i", "j")) == bag(two.select("i", "j")), name


def test_a_broadcast_table_may_have_types_that_spark_has_not(client: ShuffleClient, left: DataFrame) -> None:
    table = pa.table({
        "K": pa.array([1, 2, 2, None], pa.uint8()),
        "name": pa.array(["one", "two", "zwei", None], pa.string_view()),
        "kind": pa.array(["odd", "even", "even", None]).dictionary_encode(),
    })  # fmt: skip
    plan = client.pipeline(left.select("k")).join(client.broadcast(table), "k", "left")
    assert plan.schema.simpleString() == "struct<k:int,name:string,kind:string>"
    counts = Counter(row.k for row in left.select("k").collect())
    found = Counter((row.k, row.name, row.kind) for row in plan.toDF().collect())
    assert found[1, "one", "odd"] == counts[1]
    assert found[2, "two", "even"] == found[2, "zwei", "even"] == counts[2]
    assert found[3, None, None] == counts[3]


def totals(keys: tuple[Any, ...], left: Any, right: Any) -> Any:
    return pa.table({
        "k": pa.array([keys[0].as_py()], pa.int32()),
        "s": pa.array([keys[1].as_py()], pa.string()),
        "left": pa.array([left.num_rows], pa.int64()),
        "right": pa.array([right.num_rows], pa.int64()),
    })  # fmt: skip


def streamed_totals(
    keys: tuple[Any, ...], left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    yield from totals(
        keys, *(pa.table({"n": range(sum(map(len, side)))}) for side in (left, right))
    ).to_batches()


def test_a_cogroup_has_the_rows_of_sparks(client: ShuffleClient, left: DataFrame, right: DataFrame) -> None:
    schema = "k int, s string, left long, right long"
    narrow = right.selectExpr("u", "cast(k as int) as k", "s")
    expected = bag(left.groupBy("k", "s").cogroup(narrow.groupBy("k", "s")).applyInArrow(totals, schema))
    one = client.pipeline(left).repartition(3, "k", "s")
    for fn, other in ((totals, narrow), (streamed_totals, right)):
        two = client.pipeline(other).repartition(3, "k", "s")
        groups = one.groupBy("k", "s").cogroup(two.groupBy("k", "s"))
        assert bag(groups.applyInArrow(fn, schema).toDF()) == expected


def test_a_persisted_exchange_is_found_by_a_cogroup_whose_other_side_has_keys_of_another_type(
    client: ShuffleClient, left: DataFrame, right: DataFrame
) -> None:
    schema = "k int, s string, left long, right long"
    one, two = (client.pipeline(df).repartition(3, "k", "s") for df in (left, right))
    plan = one.groupBy("k", "s").cogroup(two.groupBy("k", "s")).applyInArrow(totals, schema)
    expected = bag(plan.toDF())
    one.persist()
    for _ in range(2):
        assert bag(plan.toDF()) == expected
    assert [each.is_reused for each in plan.statistics().exchanges if each.rows == 90] == [True, False]


def test_a_cogroup_of_pandas_has_the_rows_of_sparks(
    client: ShuffleClient, left: DataFrame, right: DataFrame
) -> None:
    def joined_texts(keys: tuple[Any, ...], left: Any, right: Any) -> Any:
        import pandas as pd

        assert {"tags", "point"} <= set(left.columns)
        texts = ",".join(sorted([*left["t"], *right["u"]]))
        return pd.DataFrame({"texts": [texts], "k": [keys[0]]}, dtype=object)

    narrow, schema = right.selectExpr("cast(k as int) as k", "u"), "k int, texts string"
    expected = left.groupBy("k").cogroup(narrow.groupBy("k")).applyInPandas(joined_texts, schema)
    one, two = client.pipeline(left).groupBy("k", numPartitions=2), client.pipeline(narrow).groupBy("k")
    assert bag(one.cogroup(two).applyInPandas(joined_texts, schema).toDF()) == bag(expected)


def test_a_key_that_a_step_after_the_exchange_computes_is_exchanged_again(
    client: ShuffleClient, spark: SparkSession
) -> None:
    rows = client.pipeline(spark.range(20)).repartition(3, "id")
    other = client.pipeline(spark.range(20)).repartition(3, "id")
    most = rows.select("id", at="id").groupBy("at").agg({"id": "max"})
    found = most.select(id=pc.add(pc.field("max(id)"), 5)).join(other, "id").toDF()
    assert sorted(row.id for row in found.collect()) == list(range(5, 20))


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (
            lambda one, two: one.join(two, "k", "outside"),
            r"how is asof or one of anti, full, .*, not 'outside'",
        ),
        (lambda one, two: one.join(two, "nothing"), "left side: no column 'nothing' after the DataFrame"),
        (
            lambda one, two: one.join(two, {"k": "nothing"}),
            "right side: no column 'nothing' after the DataFrame",
        ),
        (lambda one, two: one.join(two, []), "on is a column's name, several, or pairs"),
        (lambda one, two: one.join(two, one.leg), "on is a column's name, several, or pairs"),
        (
            lambda one, two: one.join(two, "k"),
            "both sides have a column 's'; rename one before, or give suffix=",
        ),
        (
            lambda one, two: one.join(two, {"k": "s"}),
            r"keys 'k' and 's': int32 and string are not compared; cast",
        ),
        (lambda one, two: one.join(two, ["k", "s"], numPartitions=0), "numPartitions is 1 to 100000, not 0"),
        (lambda one, _: one.join([1], "k"), "a Pipeline, or a Broadcast .*, not list"),
        (
            lambda one, _: one.join(one, "tags", suffix="_2"),
            "key 'tags': list.* are not compared; join by .* to_json",
        ),
        (
            lambda one, two: one.groupBy("k").cogroup(two.groupBy()),
            r"groupBy\('k'\) has 1 keys and groupBy\(\) 0",
        ),
        (lambda one, two: one.groupBy().cogroup(two.groupBy("k")), r"groupBy\(\) has no keys; name them"),
        (
            lambda one, two: one.groupBy("k", numPartitions=2).cogroup(two.groupBy("k", numPartitions=3)),
            "numPartitions is 2 on one side and 3 on the other",
        ),
        (
            lambda one, two: one.groupBy("k").cogroup(two.groupBy("s")).applyInArrow(totals, "k int"),
            r"stage 1 \(cogroup applyInArrow totals\): keys 'k' and 's': int32 and string are not compared",
        ),
        (
            lambda one, two: one.groupBy("k").cogroup(two.groupBy("k")).applyInArrow(same, "k int"),
            r"it takes \(left, right\) or \(keys, left, right\), not 1 arguments",
        ),
        (
            lambda one, two: one.groupBy("k").cogroup(two),
            r"the other side is groups, as in left\.groupBy\('k'\)\.cogroup\(right\.groupBy\('k'\)\), not Pipeline",
        ),
        (
            lambda one, two: one.groupBy("k").cogroup(two.groupBy("k")).applyInArrow(None, "k int"),
            r"stage 1 \(cogroup applyInArrow\): None is not a function",
        ),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(
    client: ShuffleClient,
    left: DataFrame,
    right: DataFrame,
    step: Callable[[Pipeline, Pipeline], object],
    what: str,
) -> None:
    with pytest.raises(InvalidRequest, match=what):
        step(client.pipeline(left), client.pipeline(right))


def test_a_function_of_one_iterator_and_one_table_is_refused(client: ShuffleClient, left: DataFrame) -> None:
    def mixed(left: Iterator[pa.RecordBatch], right: pa.Table) -> pa.Table:
        return right

    side = client.pipeline(left).groupBy("k", numPartitions=2)
    with pytest.raises(InvalidRequest, match="it takes two tables or two iterators"):
        side.cogroup(side).applyInArrow(mixed, "k int")


def test_a_broadcast_side_is_refused_where_its_rows_would_come_from_each_task(
    client: ShuffleClient, empty_server: ServerProcess, left: DataFrame
) -> None:
    table = client.broadcast(pa.table({"k": [1]}), name="numbers")
    for how in ("right", "full"):
        with pytest.raises(InvalidRequest, match="once for each task; give the right side as a pipeline"):
            client.pipeline(left).join(table, "k", how)
    with (
        ShuffleClient(empty_server.location) as other,
        pytest.raises(InvalidRequest, match="at whose close it ends"),
    ):
        other.pipeline(left).join(table, "k")
    with pytest.raises(InvalidRequest, match="leave out numPartitions="):
        client.pipeline(left).join(table, "k", numPartitions=3)
    with pytest.raises(InvalidRequest, match="right side: no column 'x' in broadcast 'numbers'; it has 'k'"):
        client.pipeline(left).join(table, {"k": "x"})
    interval = pa.table({"k": [1], "i": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(
        InvalidRequest, match=r"no type for column 'i' of type .*; leave it out of the broadcast"
    ):
        client.pipeline(left).join(client.broadcast(interval), "k")


def test_a_suffix_renames_only_what_the_left_has(
    client: ShuffleClient, left: DataFrame, right: DataFrame
) -> None:
    plan = client.pipeline(left).join(client.pipeline(right), "K", suffix="_right")
    assert plan.schema.names == ["k", "s", "tags", "point", "t", "s_right", "u", "counts"]
    named = client.pipeline(left.withColumnRenamed("t", "s_right"))
    with pytest.raises(InvalidRequest, match="both sides have a column 's_right'"):
        named.join(client.pipeline(right), "k", suffix="_right")


def test_a_pipeline_may_be_joined_with_itself(client: ShuffleClient, left: DataFrame) -> None:
    once = client.pipeline(left.select("k", "t")).repartition(3, "k")
    expected = left.select("k", "t").join(left.selectExpr("k", "t as t_2"), "k")
    assert bag(once.join(once, "k", suffix="_2").toDF()) == bag(expected)
