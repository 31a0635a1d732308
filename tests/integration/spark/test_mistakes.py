"""Mistakes in a program on Spark: what Python shows of each, in at most 15 lines, and of which frames."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException

from spark_client import InvalidRequest, ShuffleClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_client import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
MOST_LINES = 15
Rows = Iterator[pa.RecordBatch]


def other_columns(batches: Rows) -> Rows:
    for batch in batches:
        yield pa.record_batch({"other": batch["k"]})


def another_type(batches: Rows) -> Rows:
    for batch in batches:
        yield pa.record_batch({"k": ["text"] * batch.num_rows})


def no_batches(batches: Rows) -> Iterator[Any]:
    for batch in batches:
        yield batch.num_rows


def no_iterator(batches: Rows) -> Any:
    return 7


def no_frames(frames: Iterator[pd.DataFrame]) -> Iterator[Any]:
    for _ in frames:
        yield 7


def other_frames(frames: Iterator[pd.DataFrame]) -> Iterator[Any]:
    for _ in frames:
        yield pd.DataFrame({"other": [1]})


def no_table(table: pa.Table) -> Any:
    return table.num_rows


def that_raises(batches: Rows) -> Rows:
    for _ in batches:
        raise KeyError("of the user")
    yield from ()


@pytest.fixture
def rows(spark: SparkSession, client: ShuffleClient) -> Pipeline:
    return client.pipeline(spark.range(0, 10, 1, 1).selectExpr("id as k", "id as v"))


def shown(call: Callable[[], Any]) -> tuple[Exception, list[str]]:
    """The error of the call, and the lines that Python would print at the call's line."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - each is looked at
        trace = error.__traceback__
        assert trace is not None
        return error, "".join(traceback.format_exception(type(error), error, trace.tb_next)).splitlines()
    raise AssertionError("it raised nothing")


FUNCTIONS: dict[Callable[..., Any], tuple[str, str]] = {
    other_columns: ("mapInArrow", "missing 'k'; unexpected 'other'"),
    another_type: ("mapInArrow", "column 'k' is string, declared is int64"),
    no_batches: ("mapInArrow", "the function gave int where"),
    no_iterator: ("mapInArrow", "the function returned int; it must return an iterator"),
    no_frames: ("mapInPandas", "but is iterator of int"),
    other_frames: ("mapInPandas", "Missing: k. Unexpected: other."),
    that_raises: ("mapInArrow", "KeyError: 'of the user'"),
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_a_function_does_wrong_is_shown_at_the_function(
    rows: Pipeline, function: Callable[..., Any]
) -> None:
    method, message = FUNCTIONS[function]
    stage = getattr(rows, method)(function, "k long")
    error, lines = shown(stage.count)
    assert isinstance(error, PythonException)
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    of_task = str(error).partition("Traceback (most recent call last):\n")[2].splitlines()
    assert of_task[0].endswith(f", in {function.__name__}")
    assert [line for line in of_task if line.startswith("  File ")] == of_task[:1]
    assert any(message in line for line in of_task)
    assert f"raised in stage 1 ({method} {function.__name__})" in of_task


def test_a_wrong_group_is_shown_at_its_function_also_where_spark_runs_it(rows: Pipeline) -> None:
    frame = rows.groupBy("k").applyInArrow(no_table, "k long").toDF()
    _, lines = shown(frame.collect)
    of_task = "\n".join(lines).rpartition("Traceback (most recent call last):\n")[2].splitlines()
    assert of_task[0].endswith(", in no_table")
    assert any("the function gave int where pyarrow.Table is expected" in line for line in of_task)
    assert len(of_task) <= MOST_LINES
    assert not [line for line in lines if "/spark_client/" in line and "/tests/" not in line]


def test_an_expression_that_a_value_does_not_allow_is_shown_by_one_line_of_ours(rows: Pipeline) -> None:
    divided = rows.withColumn("w", pc.divide(pc.field("v"), pc.subtract(pc.field("v"), pc.field("v"))))
    error, lines = shown(divided.toArrow)
    assert "Arrow cannot evaluate it: divide by zero" in str(error)
    assert len(lines) <= MOST_LINES, "\n".join(lines)


def test_a_function_that_uses_the_client_is_told_so(rows: Pipeline, client: ShuffleClient) -> None:
    def asking(batches: Rows) -> Rows:
        for batch in batches:
            client.datasets()
            yield batch

    for call in (rows.mapInArrow(asking, "k long").toArrow, rows.mapInArrow(asking, "k long").toDF):
        error, lines = shown(call)
        assert isinstance(error, InvalidRequest)
        assert str(error).startswith("a ShuffleClient stays in the driver")
        assert len(lines) <= MOST_LINES, "\n".join(lines)


def test_a_wrong_argument_is_shown_in_a_few_lines(
    rows: Pipeline, client: ShuffleClient, spark: SparkSession
) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: rows.repartition(2, "no"),
        lambda: rows.groupBy("k").agg({"v": cast("Any", "summ")}),
        lambda: rows.mapInArrow(no_batches, pa.int64()),
        lambda: client.pipeline(7),  # type: ignore[arg-type]
        lambda: client.scan("/no/such/file", spark=spark),
        lambda: nowhere.pipeline(spark.range(1)).repartition(2, "id").toDF(),
        lambda: rows.mapInArrow(no_batches, "k lnog"),
    ]
    with ShuffleClient("grpc://127.0.0.1:1") as nowhere:
        for call in calls:
            _, lines = shown(call)
            assert len(lines) <= MOST_LINES, "\n".join(lines)
            assert "\n".join(lines).count("Traceback") == 1


def test_a_table_that_the_source_does_not_find_has_no_frames_of_the_package(
    client: ShuffleClient, spark: SparkSession
) -> None:
    client.register(spark)
    error, _ = shown(lambda: spark.read.format("flight").load("no-such-table"))
    assert "has no dataset 'no-such-table'" in str(error)
    assert len(str(error).splitlines()) <= 6
    error, _ = shown(lambda: spark.read.format("flight").option("colums", "a").load("t"))
    assert "did you mean 'columns'?" in str(error)
    assert len(str(error).splitlines()) <= 6


def test_an_unknown_argument_has_pythons_words(rows: Pipeline) -> None:
    with pytest.raises(TypeError, match=r"got an unexpected .*'no'"):
        rows.limit(2, no=1)  # type: ignore[call-arg]
