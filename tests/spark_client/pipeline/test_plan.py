"""Plans: a step that cannot work raises when it is added, and its error names the cause. No job is run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client import ShuffleClient
from spark_client.jobs import ByRange
from spark_client.jobs.spark_types import batch_limits
from spark_client.pipeline.grouping_steps import _signature
from spark_client.pipeline.nodes import Exchange
from spark_client.pipeline.plan import Pipeline
from spark_client.steps import BatchLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin"}


@pytest.fixture
def pipeline(spark: SparkSession, client: ShuffleClient) -> Pipeline:
    return client.pipeline(
        spark.createDataFrame([], "id long, name string, tags array<string>, m map<string,int>")
    )


def last(plan: Pipeline) -> Exchange:
    assert plan.leg.last is not None
    return plan.leg.last


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def group(table: pa.Table) -> pa.Table:
    return table


def test_a_plan_says_what_it_will_do(pipeline: Pipeline) -> None:
    plan = pipeline.mapInArrow(same, "id long").groupBy("id").applyInArrow(group, "id long").repartition(2)
    assert repr(plan) == (
        "<Pipeline DataFrame → stage 1 (mapInArrow same) → exchange(4, 'id') → stage 2 (applyInArrow group)"
        " → repartition(2)>"
    )


def test_keys_that_no_function_can_have_changed_are_not_hashed_again(pipeline: Pipeline) -> None:
    placed = pipeline.repartition(8, "id", "name")
    for kept in (placed, placed.filter(pc.field("id") > 1), placed.select("id", "name", at="id")):
        plan = kept.groupBy("id", "name").applyInArrow(group, "id long")
        stage: Any = plan.leg.parts[0].stages[-1]
        assert stage.sides[0].placed is None
        assert plan.leg.last is placed.leg.last
    mapped = placed.mapInArrow(same, "id long, name string").groupBy("id", "name")
    stage = mapped.applyInArrow(group, "id long").leg.parts[0].stages[-1]
    assert stage.sides[0].placed.keys.names == ["id", "name"]


@pytest.mark.parametrize(
    ("steps", "partitions"),
    [
        (lambda p: p.repartition(8, "id"), 8),
        (lambda p: p.repartition(8, "id").sortWithinPartitions("name"), 8),
        # Rows that are together by some of the keys, or in another order of them, are so by all.
        (lambda p: p.repartition(8, "name", "id"), 8),
        (lambda p: p.repartition(1), 1),
        (lambda p: p.join(p.select("id", other="name"), "id", numPartitions=7), 7),
        (lambda p: p.repartition(8, "id").mapInArrow(same, "id long, name string"), 4),
        (lambda p: p.repartition(8, "id", "name").mapInArrow(same, "id long, name string"), 8),
        (lambda p: p.repartition(8, "tags"), 4),
        (lambda p: p.repartition(8, "id").select(id="name", name="id"), 4),
        (lambda p: p.repartition(8), 4),
        (lambda p: p.repartitionByRange(8, "id"), 4),
        (lambda p: p.union(p), 4),
        (lambda p: p, 4),
    ],
)
def test_groups_are_where_a_repartition_has_placed_them_or_after_one_more_exchange(
    pipeline: Pipeline, steps: Callable[[Pipeline], Pipeline], partitions: int
) -> None:
    before = steps(pipeline)
    found = before.groupBy("id", "name").applyInArrow(group, "id long").leg
    assert found.single is not None
    assert found.single.sides[0].exchange.partitions == partitions
    # Another number is another exchange.
    asked = before.groupBy("id", "name", numPartitions=3).applyInArrow(group, "id long")
    assert last(asked).partitions == 3


def test_a_repartition_without_a_number_has_as_many_partitions_as_sparks_own(pipeline: Pipeline) -> None:
    plans = [pipeline.repartition("ID"), pipeline.repartition("id", "name")]
    plans += [pipeline.repartition(np.int64(4), "id")]
    keys: list[tuple[str, ...]] = [("id",), ("id", "name"), ("id",)]
    assert [(last(plan).partitions, last(plan).keys) for plan in plans] == [(4, each) for each in keys]


def test_a_sort_is_shown_and_is_no_stage_of_the_users(pipeline: Pipeline) -> None:
    sorts: list[tuple[Any, Any]] = [
        (["NAME desc", "id"], True),
        (["name", "id"], [False, True]),
        (["name", "id asc"], False),
    ]
    for sort, ascending in sorts:
        plan = pipeline.repartition(8, "id").sortWithinPartitions(*sort, ascending=ascending)
        assert repr(plan.groupBy("id").applyInArrow(group, "id long")) == (
            "<Pipeline DataFrame → repartition(8, 'id') → sort by name desc, id → stage 1 (applyInArrow group)>"
        )


def test_boundaries_are_values_of_the_columns_type_however_they_are_given(
    spark: SparkSession, client: ShuffleClient
) -> None:
    times = client.pipeline(spark.createDataFrame([], "at timestamp, local timestamp_ntz, x float, id long"))
    berlin = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    for value in (
        berlin,
        berlin.replace(tzinfo=None),
        berlin.astimezone(UTC),
        np.datetime64("2024-07-01T12:00"),
    ):
        plan = times.repartitionByRange("AT", boundaries=[value])
        assert repr(plan) == "<Pipeline DataFrame → repartitionByRange(2, 'at')>"
        ranges = last(plan).ranges
        assert isinstance(ranges, ByRange)
        assert ranges.boundaries.column(0).to_pylist() == [berlin]
    # The clocks in Berlin show it twice, and never.
    for wall, utc in (("2024-10-27T02:30", 0), ("2024-03-31T02:30", 1)):
        ranges = last(times.repartitionByRange("at", boundaries=[datetime.fromisoformat(wall)])).ranges
        assert isinstance(ranges, ByRange)
        assert ranges.boundaries.column(0).cast(pa.timestamp("us")).to_pylist()[0].hour == utc
    with pytest.raises(InvalidRequest, match=r"'local' is timestamp.* is no value of it"):
        times.repartitionByRange("local", boundaries=[berlin])
    several = times.repartitionByRange(3, "x", boundaries=pa.array([0.1, 2])).sortWithinPartitions("x")
    assert repr(several) == "<Pipeline DataFrame → repartitionByRange(3, 'x') → sort by x>"
    assert last(times.repartitionByRange("id", boundaries=[])).partitions == 1
    assert last(times.repartitionByRange("id", boundaries=[None, (1,), np.int32(1)])).partitions == 4


def test_only_first_rows_are_sent_to_be_sorted_for_a_limit(pipeline: Pipeline) -> None:
    ordered = pipeline.repartition(1).sortWithinPartitions("name desc")
    assert repr(ordered.select("id").limit(3)) == (
        "<Pipeline DataFrame → top 3 by name desc → repartition(1) → sort by name desc → stage 1 (select id)"
        " → stage 2 (limit 3)>"
    )
    # A function may take rows away, many first rows are no saving, and what is persisted is for others, too.
    for plan in (ordered.mapInArrow(same, "id long").limit(3), ordered.limit(1 << 20), ordered.limit(0)):
        assert "top" not in repr(plan)
    ordered.persist()
    assert "top" not in repr(ordered.limit(3))


def test_the_first_rows_in_order_need_neither_ranges_nor_a_sample(pipeline: Pipeline) -> None:
    ordered = pipeline.orderBy("name", ascending=False)
    assert repr(ordered) == "<Pipeline DataFrame → exchange(4 ranges of name desc) → sort by name desc>"
    assert repr(ordered.select("id").limit(3)) == (
        "<Pipeline DataFrame → top 3 by name desc → exchange(1) → sort by name desc → stage 1 (select id)"
        " → stage 2 (limit 3)>"
    )
    # Elsewhere the first rows of each partition go, in order, to one.
    many = ordered.limit(1 << 20)
    assert repr(many).count("exchange(") == 2
    assert "→ stage 1 (limit 1048576), partial → exchange(1) → stage 1 (limit 1048576)>" in repr(many)
    again = ordered.sortWithinPartitions("id")
    assert "top" not in repr(again.persist().limit(3))


def test_each_step_leaves_the_pipeline_before_it_as_it_was(pipeline: Pipeline) -> None:
    pipeline.mapInArrow(same, "id long").repartition(8, "id")
    assert repr(pipeline) == "<Pipeline DataFrame>"


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (
            lambda p: p.repartition(4, "nmae", "id", "x"),
            "no column 'nmae', 'x' after the DataFrame; it has 'id', 'name'",
        ),
        (lambda p: p.repartition(0, "id"), "numPartitions is 1 to 100000, not 0"),
        (lambda p: p.repartition(100_001, "id"), "numPartitions is 1 to 100000"),
        (lambda p: p.repartition("nmae", "name"), r"repartition\(4, 'nmae', 'name'\): no column 'nmae'"),
        (lambda p: p.repartition("id", 4), r"the number of partitions comes first: repartition\(4, 'id'\)"),
        (
            lambda p: p.repartitionByRange("id", 4),
            r"the number of partitions comes first: repartitionByRange\(4, 'id'\)",
        ),
        (
            lambda p: p.repartition(2, "id").sortWithinPartitions("nmae desc"),
            r"sortWithinPartitions: no column 'nmae' after repartition\(2, 'id'\)",
        ),
        (lambda p: p.orderBy(7), r"int is no key to sort by; write 'time', 'time desc'"),
        (lambda p: p.orderBy(), r"name what it sorts by, as in orderBy\('time desc', 'id'\)"),
        (lambda p: p.orderBy("id", ascending=[True, False]), "one of them for each of the 1 columns"),
        (lambda p: p.orderBy("id", ascending="no"), "ascending is True, False, .* not 'no'"),
        (lambda p: p.sortWithinPartitions("m"), "cannot sort: the column .m. .* sorts by no map"),
        (lambda p: p.orderBy("tags"), "cannot sort: .*'tags' .* elements have no fixed width"),
        (
            lambda p: p.repartitionByRange(4, boundaries=[1]),
            r"name what the ranges are of, as in repartitionByRange\(8, 'time'\)",
        ),
        (lambda p: p.repartitionByRange(4), r"as in repartitionByRange\(8, 'time'\)"),
        (lambda p: p.repartitionByRange(3, "id", boundaries=[1]), "1 boundaries make 2 partitions, not 3"),
        (lambda p: p.repartitionByRange("id", boundaries=7), "boundaries is a list of values, not 7"),
        (
            lambda p: p.repartitionByRange("id", boundaries=[1, 3, 2]),
            "boundary 2 is before boundary 1 in the order of id",
        ),
        (
            lambda p: p.repartitionByRange("id desc", boundaries=[1, 2]),
            "boundary 1 is before boundary 0 .* id desc",
        ),
        (
            lambda p: p.repartitionByRange("id", boundaries=[1.5]),
            "'id' is int64, and 1.5 is no value .* nearest is 1",
        ),
        (
            lambda p: p.repartitionByRange("id", boundaries=["a"]),
            "'id' is int64, and 'a' is no value of it",
        ),
        (
            lambda p: p.repartitionByRange("id", "name", boundaries=[1]),
            "boundary 0 is 1; it needs a tuple of 2",
        ),
        (lambda p: p.repartitionByRange("m", boundaries=[1]), "cannot sort: .*'m' .* sorts by no map"),
        (lambda p: p.repartitionByRange(0, "id"), "numPartitions is 1 to 100000, not 0"),
        (lambda p: p.repartitionByRange(4, "nmae"), "no column 'nmae'"),
        (lambda p: p.repartitionByRange(4, "id", seed="x"), "seed is an integer, not 'x'"),
        (lambda p: p.repartition(2.0, "id"), "numPartitions is 1 to 100000, not 2.0"),
        (lambda p: p.repartition(8, "id", tasks=9), "tasks is 1 to 8, the number of partitions, not 9"),
        (lambda p: p.repartition(8, "id", tasks=0), "tasks is 1 to 8, the number of partitions, not 0"),
        (lambda p: p.repartition(8, "id", tasks="2"), "tasks is 1 to 8, the number of partitions, not '2'"),
        (lambda p: p.repartition(2, ["id", "name"]), "not by list; .* one by one"),
        (lambda p: p.repartition(True, "id"), "numPartitions is 1 to 100000, not True"),
        (lambda p: p.repartition(4, 7), "a column is given by its name, not by int"),
        (lambda p: p.repartition(4, "m"), "'m' contains a map"),
        (lambda p: p.mapInArrow(same, "id long").repartition(4, "name"), "no column 'name' after stage 1"),
        (
            lambda p: p.mapInArrow(same, "id long").groupBy("name").applyInArrow(group, "id long"),
            r"groupBy\('name'\): no column 'name' after stage 1 \(mapInArrow same\)",
        ),
        (
            lambda p: p.groupBy().applyInArrow(group, "id long"),
            r"stage 1 \(applyInArrow group\): groupBy\(\) has no keys; name them",
        ),
        (lambda p: p.groupBy("m"), r"groupBy\('m'\): cannot group by 'm'"),
        (
            lambda p: p.groupBy("id", numPartitions=0).applyInArrow(group, "id long"),
            r"groupBy\('id'\): numPartitions is 1 to 100000, not 0",
        ),
        (lambda p: p.mapInArrow(None, "id long"), "None is not a function"),
        (lambda p: p.mapInArrow(same, "id long, id string"), "the schema names id twice"),
        (lambda p: p.mapInArrow(same, "i interval year to month, x int"), "no Arrow type for column 'i'"),
        (
            lambda p: p.groupBy("id").applyInArrow(lambda a, b, c: a, "id long"),
            r"it takes \(table\) or \(keys, table\), not 3 arguments",
        ),
    ],
)
def test_a_step_that_cannot_work_is_refused_where_it_is_written(
    pipeline: Pipeline, step: Callable[[Pipeline], object], what: str
) -> None:
    with pytest.raises(InvalidRequest, match=what):
        step(pipeline)


def test_numbers_of_any_integer_type_are_taken(pipeline: Pipeline) -> None:
    plan = pipeline.repartition(np.int64(8), "id", tasks=np.int8(3))
    exchange = last(plan)
    assert (exchange.partitions, exchange.tasks) == (8, 3)
    assert repr(plan) == "<Pipeline DataFrame → repartition(8, 'id')>"


def test_an_expression_is_no_key_until_it_is_a_column(pipeline: Pipeline) -> None:
    from pyspark.sql import functions as sql

    with pytest.raises(
        InvalidRequest, match="not by Column; make an expression a column by withColumn first"
    ):
        pipeline.repartition(4, sql.array("id"))  # type: ignore[arg-type]  # what the test is about


@pytest.mark.parametrize("data", [[1], pa.table({"x": [1]}), None])
def test_a_pipeline_of_something_else_than_a_frame_says_what_it_takes(
    client: ShuffleClient, data: Any
) -> None:
    with pytest.raises(InvalidRequest, match=r"not a DataFrame of Spark; spark\.createDataFrame makes one"):
        client.pipeline(data)


def test_an_array_whose_elements_have_no_type_is_refused_with_the_cast_that_helps(
    spark: SparkSession, client: ShuffleClient
) -> None:
    with pytest.raises(InvalidRequest, match=r"'a' of type array<void>; cast it before, .* to array<string>"):
        client.pipeline(spark.sql("select id, array() as a from range(5)"))


def test_keys_are_found_as_spark_finds_columns(spark: SparkSession, client: ShuffleClient) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        both = client.pipeline(spark.createDataFrame([], "key long, Key long"))
        assert last(both.repartition(2, "Key")).keys == ("Key",)
        with pytest.raises(InvalidRequest, match="no column 'KEY' after the DataFrame; it has 'key', 'Key'"):
            both.repartition(2, "KEY")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    with pytest.raises(InvalidRequest, match="'key' could be any of 'key', 'Key'; rename one"):
        both.repartition(2, "key")
    one = client.pipeline(spark.createDataFrame([], "Key long"))
    assert last(one.repartition(2, "KEY")).keys == ("Key",)


def test_an_interpreter_that_cannot_run_tasks_is_an_error_before_the_job(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3"
    other.write_text('#!/bin/sh\nexec "$REAL_PYTHON" -S "$@"\n')  # without site-packages
    other.chmod(0o755)
    monkeypatch.setenv("REAL_PYTHON", sys.executable)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    for run in (
        lambda: client.pipeline(spark.range(3)).repartition(2).toDF(),
        lambda: client.broadcast(spark.range(3)),
    ):
        with pytest.raises(
            InvalidRequest, match=f"{other}, which has no numpy and no pyarrow: set PYSPARK_PYTHON"
        ):
            run()


def test_tasks_of_a_local_master_run_with_the_drivers_interpreter_if_the_user_has_named_none(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no Python
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3")
    client.pipeline(spark.range(3))
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.range(3).mapInArrow(lambda batches: batches, "id long").count() == 3
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/of/the/user")
    client.pipeline(spark.range(3))
    assert spark.sparkContext.pythonExec == "/of/the/user"


@pytest.mark.parametrize(
    ("type_", "what"),
    [
        ("string collate UTF8_LCASE", "not by collation UTF8_LCASE"),
        ("struct<a: struct<b: string collate UNICODE_CI>>", "not by collation UNICODE_CI"),
        ("struct<a: string collate UTF8_BINARY_RTRIM>", "not by collation UTF8_BINARY_RTRIM"),
        ("variant", "equal variants may differ"),
        ("struct<a: variant>", "equal variants may differ"),
    ],
)
def test_a_key_that_its_bytes_do_not_tell_is_refused_wherever_it_is_declared(
    spark: SparkSession, client: ShuffleClient, type_: str, what: str
) -> None:
    schema = f"id long, name {type_}"
    with pytest.raises(InvalidRequest, match=f"DataFrame.*{what}|repartition.*{what}"):
        client.pipeline(spark.createDataFrame([], schema)).repartition(4, "name")
    before = client.pipeline(spark.createDataFrame([], "id long, name string"))
    with pytest.raises(InvalidRequest, match=rf"repartition\(4, 'name'\).*{what}"):
        before.mapInArrow(same, schema).repartition(4, "name")
    with pytest.raises(InvalidRequest, match=rf"groupBy\('name'\).*{what}"):
        before.repartition(4, "name").mapInArrow(same, schema).groupBy("name").applyInArrow(group, "id long")
    # Beside the keys they are as good as any other column.
    before.repartition(4, "id").mapInArrow(same, schema).groupBy("id").applyInArrow(
        group, schema
    ).repartition(2, "id")


def test_a_field_may_be_called_as_a_refused_type_is(spark: SparkSession, client: ShuffleClient) -> None:
    df = spark.createDataFrame([], "k struct<collate: int, variant: string>")
    client.pipeline(df).repartition(4, "k")


def test_a_frame_without_columns_or_with_one_name_twice_is_refused(
    spark: SparkSession, client: ShuffleClient
) -> None:
    with pytest.raises(InvalidRequest, match="has no columns"):
        client.pipeline(spark.range(3).select())
    with pytest.raises(InvalidRequest, match="names id twice"):
        client.pipeline(spark.range(3).selectExpr("id", "id"))


@pytest.mark.parametrize("name", ["a.b", "a`b"])
def test_a_name_that_sparks_map_in_arrow_cannot_take_is_refused(
    spark: SparkSession, client: ShuffleClient, name: str
) -> None:
    with pytest.raises(InvalidRequest, match="rename it"):
        client.pipeline(spark.range(3).toDF(name))


def test_a_stream_is_refused_with_the_way_out(spark: SparkSession, client: ShuffleClient) -> None:
    stream = spark.readStream.format("rate").load()
    for use in (client.pipeline, client.broadcast):
        with pytest.raises(InvalidRequest, match="is a stream: use it inside foreachBatch"):
            use(stream)


def test_wrong_ddl_is_sparks_own_error(pipeline: Pipeline) -> None:
    from pyspark.errors import ParseException

    with pytest.raises(ParseException):
        pipeline.mapInArrow(same, "id lung")


def test_declared_types_are_those_of_spark_with_the_sessions_time_zone(
    spark: SparkSession, client: ShuffleClient
) -> None:
    ddl = "t timestamp, n timestamp_ntz, d decimal(7,2), a array<int>, s struct<x: date> not null"
    schema = client.pipeline(spark.createDataFrame([], ddl)).leg.declared.schema
    assert schema == pa.schema(
        [
            ("t", pa.timestamp("us", "Europe/Berlin")),
            ("n", pa.timestamp("us")),
            ("d", pa.decimal128(7, 2)),
            ("a", pa.list_(pa.field("element", pa.int32()))),
            pa.field("s", pa.struct([("x", pa.date32())]), nullable=False),
        ]
    )


def test_the_signature_of_a_group_function_is_read_as_spark_reads_it() -> None:
    def keyed(keys: Any, table: Any) -> Any:
        return table

    def iterating(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def keyed_iterating(
        keys: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        return batches

    assert _signature(group, "s") == (False, False)
    assert _signature(lambda keys, table: table, "s") == (True, False)
    assert _signature(keyed, "s") == (True, False)
    assert _signature(iterating, "s") == (False, True)
    assert _signature(keyed_iterating, "s") == (True, True)


@pytest.mark.parametrize(
    ("size", "size_bytes"), [("64k", 65536), ("1mb", 1 << 20), ("5000", 5000), ("77b", 77)]
)
def test_batches_are_limited_as_the_session_says(spark: SparkSession, size: str, size_bytes: int) -> None:
    names = [f"spark.sql.execution.arrow.max{what}PerBatch" for what in ("Records", "Bytes")]
    for name, value in zip(names, ("0", size), strict=True):
        spark.conf.set(name, value)
    try:
        assert batch_limits(spark) == BatchLimits(0, size_bytes)
    finally:
        for name in names:
            spark.conf.unset(name)
    assert batch_limits(spark).rows == 10_000


def test_release_wants_the_very_frame_that_a_pipeline_returned(
    spark: SparkSession, client: ShuffleClient
) -> None:
    with pytest.raises(InvalidRequest, match="reads no pipeline's result"):
        client.release(spark.range(1))
