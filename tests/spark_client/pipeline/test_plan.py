"""Plans: a step that cannot work raises when it is added, and its error names the cause. No job is run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client import ShuffleClient
from spark_client.jobs.limits import BatchLimits
from spark_client.jobs.spark_types import batch_limits
from spark_client.pipeline.plan import Pipeline, _signature
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(java_home: str) -> Iterator[SparkSession]:
    with local_session(sql__session__timeZone="Europe/Berlin") as session:
        yield session


@pytest.fixture
def client() -> Iterator[ShuffleClient]:
    # No server listens there: a plan that asked it would fail.
    with ShuffleClient("grpc://127.0.0.1:1") as found:
        yield found


@pytest.fixture
def pipeline(spark: SparkSession, client: ShuffleClient) -> Pipeline:
    return client.pipeline(
        spark.createDataFrame([], "id long, name string, tags array<string>, m map<string,int>")
    )


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def group(table: pa.Table) -> pa.Table:
    return table


def test_a_plan_says_what_it_will_do(pipeline: Pipeline) -> None:
    plan = pipeline.mapInArrow(same, "id long").exchange(8, "id").applyInArrow(group, "id long").exchange(2)
    assert repr(plan) == (
        "<Pipeline DataFrame → stage 1 (mapInArrow same) → exchange(8, 'id') → stage 2 (applyInArrow group)"
        " → exchange(2)>"
    )


def test_each_step_leaves_the_pipeline_before_it_as_it_was(pipeline: Pipeline) -> None:
    pipeline.mapInArrow(same, "id long").exchange(8, "id")
    assert repr(pipeline) == "<Pipeline DataFrame>"


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (
            lambda p: p.exchange(4, "nmae", "id", "x"),
            "no column 'nmae', 'x' after the DataFrame; it has 'id', 'name'",
        ),
        (lambda p: p.exchange(0, "id"), "how many partitions, 1 to 100000"),
        (lambda p: p.exchange(100_001, "id"), "how many partitions, 1 to 100000"),
        (lambda p: p.exchange("id", "name"), r"before the keys, as in exchange\(200, 'id', 'name'\)"),
        (lambda p: p.exchange(2.0, "id"), "how many partitions, 1 to 100000"),
        (lambda p: p.exchange(8, "id", tasks=9), "tasks is 1 to 8, the number of partitions, not 9"),
        (lambda p: p.exchange(8, "id", tasks=0), "tasks is 1 to 8, the number of partitions, not 0"),
        (lambda p: p.exchange(8, "id", tasks="2"), "tasks is 1 to 8, the number of partitions, not '2'"),
        (lambda p: p.exchange(2, ["id", "name"]), "not list; .* give several keys one by one"),
        (lambda p: p.exchange(True, "id"), "how many partitions, 1 to 100000"),
        (lambda p: p.exchange(4, 7), "a key is a column's name, not int"),
        (lambda p: p.exchange(4, "m"), "'m' contains a map"),
        (lambda p: p.mapInArrow(same, "id long").exchange(4, "name"), "no column 'name' after stage 1"),
        (lambda p: p.applyInArrow(group, "id long"), r"groups need .exchange\(n, \*keys\) before them"),
        (lambda p: p.exchange(4).applyInArrow(group, "id long"), r"exchange\(4\) has no keys to group by"),
        (
            lambda p: p.exchange(4, "name").mapInArrow(same, "id long").applyInArrow(group, "id long"),
            r"stage 2 \(applyInArrow group\): no column 'name' after stage 1 \(mapInArrow same\)",
        ),
        (lambda p: p.exchange(4, "tags").applyInArrow(group, "id long"), "cannot group by 'tags'"),
        (lambda p: p.mapInArrow(None, "id long"), "None is not a function"),
        (lambda p: p.mapInArrow(same, "id long, id string"), "the schema names id twice"),
        (lambda p: p.mapInArrow(same, "i interval year to month, x int"), "no Arrow type for column 'i'"),
        (
            lambda p: p.exchange(4, "id").applyInArrow(lambda a, b, c: a, "id long"),
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
    plan = pipeline.exchange(np.int64(8), "id", budget_bytes=np.uint32(1 << 20), tasks=np.int8(3))
    assert plan.done == pipeline.exchange(8, "id", budget_bytes=1 << 20, tasks=3).done
    assert repr(plan) == "<Pipeline DataFrame → exchange(8, 'id')>"


def test_an_expression_is_no_key_until_it_is_a_column(pipeline: Pipeline) -> None:
    from pyspark.sql import functions as sql

    with pytest.raises(InvalidRequest, match="not Column; make an expression a column by withColumn first"):
        pipeline.exchange(4, sql.array("id"))  # type: ignore[arg-type]  # what the test is about


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
        assert both.exchange(2, "Key").done[0].exchange.keys == ("Key",)  # type: ignore[union-attr]  # it has one
        with pytest.raises(InvalidRequest, match="no column 'KEY' after the DataFrame; it has 'key', 'Key'"):
            both.exchange(2, "KEY")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    with pytest.raises(InvalidRequest, match="'key' could be any of 'key', 'Key'; rename one"):
        both.exchange(2, "key")
    one = client.pipeline(spark.createDataFrame([], "Key long"))
    assert one.exchange(2, "KEY").done[0].exchange.keys == ("Key",)  # type: ignore[union-attr]  # it has one


def test_an_interpreter_that_cannot_run_tasks_is_an_error_before_the_job(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3"
    other.write_text('#!/bin/sh\nexec "$REAL_PYTHON" -S "$@"\n')  # without site-packages
    other.chmod(0o755)
    monkeypatch.setenv("REAL_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("PYSPARK_PYTHON")
    for run in (
        lambda: client.pipeline(spark.range(3)).exchange(2).toDF(),
        lambda: client.broadcast(spark.range(3)),
    ):
        with pytest.raises(
            InvalidRequest, match=f"{other}, which has no numpy and no pyarrow: set PYSPARK_PYTHON"
        ):
            run()


def test_a_writer_with_no_room_to_gather_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(InvalidRequest, match="budget_bytes must be at least 1 MiB"):
        pipeline.exchange(4, budget_bytes=1000)


def test_a_key_with_a_collation_is_refused(spark: SparkSession, client: ShuffleClient) -> None:
    df = spark.sql("select 'a' collate UTF8_LCASE as name")
    with pytest.raises(InvalidRequest, match="not by collation UTF8_LCASE"):
        client.pipeline(df).exchange(4, "name")


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
    with pytest.raises(InvalidRequest, match=f"DataFrame.*{what}|exchange.*{what}"):
        client.pipeline(spark.createDataFrame([], schema)).exchange(4, "name")
    before = client.pipeline(spark.createDataFrame([], "id long, name string"))
    with pytest.raises(InvalidRequest, match=rf"exchange\(4, 'name'\).*{what}"):
        before.mapInArrow(same, schema).exchange(4, "name")
    with pytest.raises(InvalidRequest, match=rf"stage 2 \(applyInArrow group\).*{what}"):
        before.exchange(4, "name").mapInArrow(same, schema).applyInArrow(group, "id long")
    # Beside the keys they are as good as any other column.
    before.exchange(4, "id").mapInArrow(same, schema).applyInArrow(group, schema).exchange(2, "id")


def test_a_field_may_be_called_as_a_refused_type_is(spark: SparkSession, client: ShuffleClient) -> None:
    df = spark.createDataFrame([], "k struct<collate: int, variant: string>")
    client.pipeline(df).exchange(4, "k")


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
    schema = client.pipeline(spark.createDataFrame([], ddl)).current.declared.schema
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
