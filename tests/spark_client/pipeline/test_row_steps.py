"""Filter, select, aggregate, distinct, union, limit: what cannot work is an error where it is written; no job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as sql

from flight_server.protocol.errors import InvalidRequest
from spark_client import ShuffleClient
from spark_client.pipeline.base import _INSTEAD
from spark_client.pipeline.plan import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DDL = (
    "id long, name string, m map<string,int>, d decimal(38,4), flag boolean, Two long, two int, "
    "c string collate UNICODE, nothing void"
)


@pytest.fixture
def client() -> Iterator[ShuffleClient]:
    with ShuffleClient("grpc://127.0.0.1:1") as found:
        yield found


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], DDL)


@pytest.fixture
def pipeline(rows: DataFrame, client: ShuffleClient) -> Pipeline:
    return client.pipeline(rows)


ERRORS: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda p: p.filter(pc.field("ID") > 1),
        r"stage 1 \(filter \(ID > 1\)\): no column is named exactly 'ID'",
    ),
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
    (lambda p: p.aggregate(), "it computes nothing"),
    (lambda p: p.aggregate(sql.sum("id")), r"as in {\"amount\": \"sum\"} or total=.* not by Column"),
    (lambda p: p.aggregate("id"), "not by str"),
    (lambda p: p.select(sql.col("id")), "a column is given by its name, not by Column; .* by select first"),
    (lambda p: p.aggregate({}, by="id"), "use distinct for the keys alone"),
    (lambda p: p.aggregate({"nmae": "sum"}), "no column 'nmae'"),
    (
        lambda p: p.aggregate({"name": "sum"}),
        r"stage 1 \(aggregate\): sum takes numbers, and column 'name' is string",
    ),
    (lambda p: p.aggregate({"m": "max"}), "max takes values that have an order, and column 'm' is map"),
    (lambda p: p.aggregate({"m": "collect_set"}), "collect_set takes values that can be compared"),
    (lambda p: p.aggregate({"nothing": "collect_list"}), "collect_list takes values of a known type"),
    (
        lambda p: p.aggregate({"nothing": "count_distinct"}),
        "count_distinct takes values that can be compared",
    ),
    (lambda p: p.aggregate({"c": "min"}), "collation UNICODE"),
    (lambda p: p.aggregate({"id": "bool_or"}), "bool_or takes booleans"),
    (lambda p: p.aggregate({"id": "summ"}), "no function 'summ'; there are sum, avg"),
    (lambda p: p.aggregate({"id": ("min", "max")}), "no column 'min'"),
    (lambda p: p.aggregate({"id": ("id", "min", "max")}), "several functions of one column are a list"),
    (lambda p: p.aggregate(total="id"), r"'total' is 'id'; it takes a pair .* total=\(\"amount\", \"sum\"\)"),
    (lambda p: p.aggregate({"*": "sum"}), r"sum of '\*'; only count takes all rows"),
    (lambda p: p.aggregate({"id": ["sum", "sum"]}), r"names sum\(id\) twice"),
    (lambda p: p.aggregate({"id": "sum"}, by="m"), "cannot group by 'm'"),
    (lambda p: p.aggregate({"id": "sum"}, by="c"), "collation UNICODE"),
    (lambda p: p.aggregate({"id": "sum"}, by="name", partitions=0), "how many partitions, 1 to 100000"),
    (lambda p: p.aggregate({"id": "sum"}, by="name", partitions="id"), "partitions is a number, not 'id'"),
    (lambda p: p.aggregate({"id": "sum"}, by=7), "by is a column's name or a list of names, not 7"),
    (lambda p: p.distinct(), "cannot group by 'm'"),
    (lambda p: p.distinct("nmae"), "no column 'nmae'"),
    (lambda p: p.union(7), "the other side is a Pipeline, not int"),
    (lambda p: p.union(p.select("id")), "one side has 9 columns .* the other 1"),
    (
        lambda p: p.select("id").union(p.select("name")),
        r"column 'id' is bigint on one side and string \('name'\) on the other; cast one",
    ),
    (lambda p: p.select("d").union(p.select(d=pc.field("d").cast(pa.decimal128(38, 0)))), "cast one"),
    (
        lambda p: p.exchange(4, "id").select(id="name", name="id").applyInArrow(iter, "id long"),
        r"exchange\(4, 'id'\) has placed rows by 'id', and 'id' is its column 'name' now; exchange again after",
    ),
    (
        lambda p: (
            p.exchange(4, "id").cogroup(p.exchange(4, "id").select(id="d")).applyInArrow(zip, "id long")
        ),
        r"'id' is its column 'd' now; exchange again after the select: \.exchange\(4, 'id'\)",
    ),
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
    "cogroup": lambda one, two: one.exchange(2, "id").cogroup(two.exchange(2, "id")),
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
    plan = pipeline.aggregate(
        {"id": ["sum", "mean"], "most": ("d", "max"), "*": "count"}, by=["NAME"], n=("*", "count")
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
    assert repr(pipeline.aggregate(wanted, by=by)).count("exchange(") == exchanges


def test_states_take_no_names_of_keys(spark: SparkSession, client: ShuffleClient) -> None:
    plan = client.pipeline(spark.createDataFrame([], "state0 int, v long")).aggregate(
        {"v": "sum"}, by="state0"
    )
    assert plan.leg.struct.names == ["state0", "sum(v)"]


@pytest.mark.parametrize(
    ("steps", "exchanges"),
    [
        (lambda p: p.exchange(4, "id"), 1),
        (lambda p: p.exchange(4, "id", sort="name"), 1),
        (lambda p: p.exchange(4, "id").filter(pc.field("flag")), 1),
        (lambda p: p.exchange(1), 1),
        (lambda p: p.exchange(4, "id").select("id", "name", "d"), 1),
        (lambda p: p.exchange(4, "id").select("name", "d", id="two"), 2),
        (lambda p: p.exchange(5, "id").select("d", "id", "name").join(p.select("id", x="flag"), "id"), 2),
        (lambda p: p.exchange(5, "id").select("d", "name", id="two").join(p.select(id="two"), "id"), 3),
        (lambda p: p.join(p.select("id", x="flag"), "id").filter(pc.field("x")), 2),
        (lambda p: p.join(p.select("id", x="flag"), "id", "left"), 2),
        (lambda p: p.join(p.select("id", x="flag"), "id", "full"), 3),
        (
            lambda p: p.join(p.select("id", x="flag"), "id").mapInArrow(
                iter, "id long, name string, d double"
            ),
            3,
        ),
        (lambda p: p.exchange(4, "id").mapInArrow(iter, DDL.rpartition(", ")[0]), 2),
        (lambda p: p.exchange(4, "id", "two"), 2),
        (lambda p: p.exchange(4), 2),
    ],
)
def test_rows_are_exchanged_only_if_keys_may_be_apart(
    spark: SparkSession, client: ShuffleClient, steps: Callable[[Any], Any], exchanges: int
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        pipeline = client.pipeline(spark.createDataFrame([], DDL))
        plan = steps(pipeline).aggregate({"d": "sum"}, by=["name", "id"])
        assert repr(plan).count("exchange(") == exchanges
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_an_aggregate_has_the_partitions_that_it_is_asked_for(pipeline: Pipeline) -> None:
    there = pipeline.exchange(4, "id")
    joined = there.join(pipeline.select("id", x="flag"), "id")
    for plan in (there, joined, joined.aggregate({"d": "sum"}, by="id")):
        before = repr(plan).count("exchange(")
        for partitions, more in ((None, 0), (4, 0), (7, 1)):
            for found in (
                plan.aggregate({"*": "count"}, by="id", partitions=partitions),
                plan.select("id").distinct(partitions=partitions),
            ):
                assert repr(found).count("exchange(") == before + more
                assert ("exchange(7, 'id')" in repr(found)) is bool(more)
    with pytest.raises(InvalidRequest, match="how many partitions, 1 to 100000, not 0"):
        there.aggregate({"*": "count"}, by="id", partitions=0)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("groupBy", r'aggregate\({"amount": "sum"}, by="key"\)'),
        ("show", r"toDF\(\).show\(\)"),
        ("toPandas", r"collect\(\).read_pandas\(\)"),
        ("columns", "schema.names"),
        ("orderBy", r"exchange\(n, sort="),
        ("withColumn", r"select\("),
        ("write", r"toDF\(\) runs it and gives the DataFrame"),
        ("nothing_such", "a pipeline has no 'nothing_such'$"),
    ],
)
def test_a_dataframes_name_on_a_pipeline_names_the_step(pipeline: Pipeline, name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=says):
        getattr(pipeline, name)


def test_only_names_that_a_dataframe_has_and_a_pipeline_has_not_are_advised() -> None:
    from pyspark.sql import DataFrame

    assert [name for name in _INSTEAD if hasattr(Pipeline, name) or not hasattr(DataFrame, name)] == []


def test_an_argument_that_a_step_does_not_have_is_answered_with_the_steps_name(pipeline: Pipeline) -> None:
    with pytest.raises(
        TypeError, match=r"^Pipeline\.exchange\(\) got an unexpected keyword argument 'copies'"
    ):
        pipeline.exchange(4, "id", copies=2)  # type: ignore[call-arg] # as a user may write
