"""Filter, select, aggregates, distinct, union, limit: what cannot work is an error where it is written; no job runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as sql

from flight_server.protocol.errors import InvalidRequest
from spark_client import ShuffleClient
from spark_client.pipeline.plan import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DDL = (
    "id long, name string, m map<string,int>, d decimal(38,4), flag boolean, Two long, two int, "
    "c string collate UNICODE, nothing void"
)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], DDL)


@pytest.fixture
def pipeline(rows: DataFrame, client: ShuffleClient) -> Pipeline:
    return client.pipeline(rows)


def exchange_count(plan: Pipeline) -> int:
    return len(re.findall(r"(?:exchange|repartition)\(", repr(plan)))


ERRORS: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda p: p.filter("id > 1"),
        r'id > 1 is a text in SQL; .* expressions: pc.field\("id"\) > 1, with pc for',
    ),
    (lambda p: p.where("id = 'x'"), r'pc.field\("id"\) == "x", with'),
    (lambda p: p.where("id like 'x'"), r'such as \(pc.field\("v"\) > 5\)'),
    (
        lambda p: p.filter(sql.col("id") > 1),
        r'is a Column of Spark; .* expressions: pc.field\("id"\) > 1, with',
    ),
    (lambda p: p.withColumn("x", sql.col("id") + 1), r"is a Column of Spark; .* such as pc\.field"),
    (
        lambda p: p.filter(sql.col("id") > sql.col("two")),
        r'is a Column of Spark; .* such as \(pc.field\("v"\) > 5\)',
    ),
    (lambda p: p.withColumns({}, {}), "it takes one mapping"),
    (lambda p: p.toDF("one", "two"), "toDF: 2 names for 9 columns"),
    (lambda p: p.withColumn("x", "id"), r"'id' is text; the column of that name is pc\.field\('id'\)"),
    (lambda p: p.withColumn(pc.field("id"), "x"), "the name of a column comes first"),
    (lambda p: p.withColumn("TWO", pc.field("id")), "'TWO' could be any of 'Two', 'two'"),
    (lambda p: p.withColumnRenamed("id", "name"), "names name twice"),
    (lambda p: p.withColumnRenamed("id", 7), "is renamed by two names, not by 'id' and 7"),
    (lambda p: p.drop(sql.col("id")), "a column is given by its name, not by Column"),
    (lambda p: p.select("id").drop("id"), "declare at least one"),
    (lambda p: p.unionByName(p.select("id")), r"unionByName\), other side: no column 'name'"),
    (lambda p: p.select("id").unionByName(p), r"unionByName\), this side: no column 'name'"),
    (
        lambda p: p.filter(pc.field("ID") > 1),
        r"stage 1 \(filter \(ID > 1\)\): no column is named exactly 'ID'",
    ),
    (lambda p: p.filter(pc.field(0) > 1), r"stage 1 .* write its columns by their names, as in"),
    (lambda p: p.filter(pc.field("id")), "the expression gives int64, not a boolean"),
    (lambda p: p.filter(lambda row: row), "an expression is made of pyarrow.compute.field"),
    (lambda p: p.filter(pc.field("name") > 1), "Arrow cannot evaluate it: .*greater"),
    (lambda p: p.select(), "declare at least one"),
    (lambda p: p.select("nmae"), "no column 'nmae' after the DataFrame"),
    (lambda p: p.select("TWO"), "'TWO' could be any of 'Two', 'two'"),
    (lambda p: p.select("id", id="name"), "names id twice"),
    (lambda p: p.select(x=7), "7 is int; an expression is made of"),
    (
        lambda p: p.select(x=pc.field("id").cast(pa.uint64())),
        r"'x' is uint64, .* cast it to decimal128\(20, 0\)",
    ),
    (lambda p: p.select(x=pc.field("d").cast(pa.decimal256(40, 4))), r"decimal256.* to decimal128\(38, 4\)"),
    (lambda p: p.select(x=pc.multiply(pc.field("d"), pc.field("d"))), "Decimal precision out of range"),
    (lambda p: p.select(x=pc.scalar(None)), "'x' is null, which Spark cannot hold"),
    (lambda p: p.agg(), "it computes nothing"),
    (lambda p: p.agg(sql.sum("id")), r"as in {\"amount\": \"sum\"} or total=.* not by a Column of Spark"),
    (lambda p: p.agg("id"), "not by str"),
    (
        lambda p: p.select(sql.col("id")),
        "a column is given by its name, not by Column; .* by withColumn first",
    ),
    (lambda p: p.groupBy("id").agg({}), "use select and distinct for the keys alone"),
    (lambda p: p.agg({"nmae": "sum"}), "no column 'nmae'"),
    (
        lambda p: p.agg({"name": "sum"}),
        r"stage 1 \(agg\): sum takes numbers, and column 'name' is string",
    ),
    (lambda p: p.agg({"m": "max"}), "max takes values that have an order, and column 'm' is map"),
    (lambda p: p.agg({"m": "collect_set"}), "collect_set takes values that can be compared"),
    (lambda p: p.agg({"nothing": "collect_list"}), "collect_list takes values of a known type"),
    (
        lambda p: p.agg({"nothing": "count_distinct"}),
        "count_distinct takes values that can be compared",
    ),
    (lambda p: p.agg({"c": "min"}), "collation UNICODE"),
    (lambda p: p.agg({"id": "bool_or"}), "bool_or takes booleans"),
    (lambda p: p.agg({"id": "summ"}), "no function 'summ'; there are sum, avg"),
    (lambda p: p.agg({"id": ("min", "max")}), "no column 'min'"),
    (lambda p: p.agg({"id": ("id", "min", "max")}), "several functions of one column are a list"),
    (lambda p: p.agg(total="id"), r"'total' is 'id'; it takes a pair .* total=\(\"amount\", \"sum\"\)"),
    (lambda p: p.agg({"*": "sum"}), r"sum of '\*'; only count takes all rows"),
    (lambda p: p.agg({"id": ["sum", "sum"]}), r"names sum\(id\) twice"),
    (lambda p: p.groupBy("m").agg({"id": "sum"}), "cannot group by 'm'"),
    (lambda p: p.groupBy("c").agg({"id": "sum"}), "collation UNICODE"),
    (lambda p: p.groupBy("name", numPartitions=0).agg({"id": "sum"}), "numPartitions is 1 to 100000, not 0"),
    (
        lambda p: p.groupBy("name", numPartitions="id").agg({"id": "sum"}),
        "numPartitions is 1 to 100000, not 'id'",
    ),
    (lambda p: p.groupBy(7).agg({"id": "sum"}), r"groupBy\(7\): a column is given by its name, not by int"),
    (lambda p: p.groupBy("id").sum("name"), r"stage 1 \(sum\): sum takes numbers"),
    (lambda p: p.select("name").groupBy("name").max(), r"\(max\): it computes nothing"),
    (lambda p: p.dropDuplicates("id"), r"subset is a list of names, as in \[\"a\", \"b\"\], not 'id'"),
    (lambda p: p.distinct(), "cannot group by 'm'"),
    (lambda p: p.dropDuplicates(["nmae"]), "no column 'nmae'"),
    (lambda p: p.union(7), "the other side is a Pipeline, not int"),
    (lambda p: p.union(p.select("id")), "one side has 9 columns .* the other 1"),
    (
        lambda p: p.select("id").union(p.select("name")),
        r"column 'id' is bigint on one side and string \('name'\) on the other; cast one",
    ),
    (lambda p: p.select("d").union(p.select(d=pc.field("d").cast(pa.decimal128(38, 0)))), "cast one"),
    (lambda p: p.limit(-1), "an integer from 0 on, not -1"),
    (lambda p: p.limit(1.5), "an integer from 0 on, not 1.5"),
    (lambda p: p.limit(True), "an integer from 0 on, not True"),
]


@pytest.mark.parametrize(("step", "says"), ERRORS, ids=[says[:40] for _, says in ERRORS])
def test_a_step_that_cannot_work_says_why_when_it_is_added(
    pipeline: Pipeline, step: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        step(pipeline)


TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "union": lambda one, two: one.union(two),
    "join": lambda one, two: one.join(two, "id"),
    "as-of join": lambda one, two: one.join(two, "id", "asof", as_of=("at", "time")),
    "cogroup": lambda one, two: one.groupBy("id").cogroup(two.groupBy("id")),
    "unionByName": lambda one, two: one.select("id").unionByName(two.select("id")),
}


@pytest.mark.parametrize("step", TOGETHER)
def test_pipelines_of_two_clients_or_sessions_are_not_brought_together(
    spark: SparkSession, client: ShuffleClient, step: str
) -> None:
    def rows(owner: ShuffleClient, session: SparkSession, time: str) -> Pipeline:
        return owner.pipeline(session.range(1)).select("id", **{time: "id"})

    one = rows(client, spark, "at")
    TOGETHER[step](one, rows(client, spark, "time"))
    with ShuffleClient("grpc://127.0.0.1:1") as other:
        for side in (rows(other, spark, "time"), rows(client, spark.newSession(), "time")):
            with pytest.raises(InvalidRequest, match="must be of one ShuffleClient and Spark session"):
                TOGETHER[step](one, side)


def test_a_session_of_which_pyspark_makes_a_second_object_is_the_same(
    spark: SparkSession, client: ShuffleClient
) -> None:
    session: Any = spark
    again = type(spark)(session.sparkContext, session._jsparkSession)
    assert again is not spark
    one, two = client.pipeline(spark.range(1)), client.pipeline(again.range(1))
    assert one.union(two).schema == one.schema


def test_names_of_results_are_those_that_were_given(pipeline: Pipeline) -> None:
    plan = pipeline.groupBy("NAME").agg(
        {"id": ["sum", "mean"], "most": ("d", "max"), "*": "count"}, n=("*", "count")
    )
    assert plan.leg.struct.names == ["name", "sum(id)", "avg(id)", "most", "count(1)", "n"]
    assert [field.dataType.simpleString() for field in plan.leg.struct] == [
        "string", "bigint", "double", "decimal(38,4)", "bigint", "bigint",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "by", "exchanges"),
    [
        ({"id": "count_distinct", "d": "sum"}, ["name"], 1),
        ({"id": "count_distinct", "d": "sum"}, [], 2),
        ({"id": "count_distinct"}, ["id"], 1),
        ({"id": "count_distinct", "flag": "count_distinct"}, [], 1),
    ],
)
def test_values_are_told_apart_in_the_partitions_of_their_groups(
    pipeline: Pipeline, wanted: Any, by: list[str], exchanges: int
) -> None:
    assert exchange_count(pipeline.groupBy(by).agg(wanted)) == exchanges


def test_states_take_no_names_of_keys(spark: SparkSession, client: ShuffleClient) -> None:
    plan = (
        client.pipeline(spark.createDataFrame([], "state0 int, v long")).groupBy("state0").agg({"v": "sum"})
    )
    assert plan.leg.struct.names == ["state0", "sum(v)"]


@pytest.mark.parametrize(
    ("steps", "exchanges"),
    [
        (lambda p: p.repartition(4, "id"), 1),
        (lambda p: p.repartition(4, "id").sortWithinPartitions("name"), 1),
        (lambda p: p.repartition(4, "id").filter(pc.field("flag")), 1),
        (lambda p: p.repartition(1), 1),
        (lambda p: p.repartition(4, "id").select("id", "name", "d"), 1),
        (lambda p: p.repartition(4, "id").select("name", "d", id="two"), 2),
        (lambda p: p.repartition(5, "id").select("d", "id", "name").join(p.select("id", x="flag"), "id"), 2),
        (lambda p: p.repartition(5, "id").select("d", "name", id="two").join(p.select(id="two"), "id"), 3),
        (lambda p: p.join(p.select("id", x="flag"), "id").filter(pc.field("x")), 2),
        (lambda p: p.join(p.select("id", x="flag"), "id", "left"), 2),
        (lambda p: p.join(p.select("id", x="flag"), "id", "full"), 3),
        (
            lambda p: p.join(p.select("id", x="flag"), "id").mapInArrow(
                iter, "id long, name string, d double"
            ),
            3,
        ),
        (lambda p: p.repartition(4, "id").mapInArrow(iter, DDL.rpartition(", ")[0]), 2),
        (lambda p: p.repartition(4, "id", "two"), 2),
        (lambda p: p.repartition(4), 2),
    ],
)
def test_rows_are_exchanged_only_if_keys_may_be_apart(
    spark: SparkSession, client: ShuffleClient, steps: Callable[[Any], Any], exchanges: int
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        pipeline = client.pipeline(spark.createDataFrame([], DDL))
        plan = steps(pipeline).groupBy("name", "id").agg({"d": "sum"})
        assert exchange_count(plan) == exchanges
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_an_aggregate_has_the_partitions_that_it_is_asked_for(pipeline: Pipeline) -> None:
    there = pipeline.repartition(4, "id")
    joined = there.join(pipeline.select("id", x="flag"), "id")
    for plan in (there, joined, joined.groupBy("id").agg({"d": "sum"})):
        before = exchange_count(plan)
        for partitions, more in ((None, 0), (4, 0), (7, 1)):
            for found in (
                plan.groupBy("id", numPartitions=partitions).agg({"*": "count"}),
                plan.select("id").distinct(numPartitions=partitions),
            ):
                assert exchange_count(found) == before + more
                assert ("exchange(7, 'id')" in repr(found)) is bool(more)
    with pytest.raises(InvalidRequest, match="numPartitions is 1 to 100000, not 0"):
        there.groupBy("id", numPartitions=0).agg({"*": "count"})


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        (lambda p: p.select(["id", "name"]), ["id", "name"]),
        (lambda p: p.select("*", x=pc.field("id")), ["id", "name", "two", "x"]),
        (lambda p: p.withColumn("x", pc.field("id") + 1), ["id", "name", "two", "x"]),
        (lambda p: p.withColumn("NAME", pc.field("id") + 1), ["id", "NAME", "two"]),
        (
            lambda p: p.withColumns({"x": pc.field("id"), "id": pc.field("two")}),
            ["id", "name", "two", "x"],
        ),
        (lambda p: p.withColumnRenamed("Name", "x"), ["id", "x", "two"]),
        (lambda p: p.withColumnRenamed("nmae", "x"), ["id", "name", "two"]),
        (lambda p: p.withColumnsRenamed({"id": "two", "two": "id"}), ["two", "name", "id"]),
        (lambda p: p.drop("ID", "nmae"), ["name", "two"]),
        (lambda p: p.drop("nmae"), ["id", "name", "two"]),
    ],
)
def test_columns_are_those_of_sparks(
    spark: SparkSession, client: ShuffleClient, steps: Callable[[Pipeline], Pipeline], names: list[str]
) -> None:
    plan = steps(client.pipeline(spark.createDataFrame([], "id long, name string, two int")))
    assert plan.columns == names


def test_a_column_that_is_renamed_stays_as_it_is(spark: SparkSession, client: ShuffleClient) -> None:
    df = spark.createDataFrame([], "id long not null, at interval hour to second")
    plan, expected = client.pipeline(df), df
    for existing, new in (("id", "i"), ("at", "a")):
        plan, expected = plan.withColumnRenamed(existing, new), expected.withColumnRenamed(existing, new)
    assert plan.schema == expected.schema
    assert plan.dtypes == expected.dtypes


def test_rows_whose_columns_are_renamed_stay_where_they_are(pipeline: Pipeline) -> None:
    plan = pipeline.repartition(4, "id").withColumnRenamed("name", "x").groupBy("id").count()
    assert exchange_count(plan) == 1
    assert plan.columns == ["id", "count"]


def test_columns_of_two_pipelines_meet_by_their_names(spark: SparkSession, client: ShuffleClient) -> None:
    one = client.pipeline(spark.createDataFrame([], "id int, name string"))
    two = client.pipeline(spark.createDataFrame([], "Name string, ID long"))
    assert one.unionByName(two).dtypes == [("id", "bigint"), ("name", "string")]


@pytest.mark.parametrize("function", ["sum", "avg", "mean", "min", "max"])
def test_aggregates_of_all_numbers_are_those_of_sparks(
    spark: SparkSession, client: ShuffleClient, function: str
) -> None:
    df = spark.createDataFrame([], "k int, a long, s string, d decimal(5,2), f float, b boolean")
    ours, theirs = client.pipeline(df).groupBy("k"), df.groupBy("k")
    assert getattr(ours, function)().dtypes == getattr(theirs, function)().dtypes
    assert getattr(ours, function)("a").dtypes == getattr(theirs, function)("a").dtypes
    assert ours.count().dtypes == theirs.count().dtypes
