"""The names and arguments of a pipeline are those of PySpark's DataFrame; what it has not, it says."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.group import GroupedData
from pyspark.sql.pandas.group_ops import PandasCogroupedOps

from flight_server.protocol import InvalidRequest
from spark_client import ShuffleClient
from spark_client.joining import How
from spark_client.pipeline import CogroupedPipeline, GroupedPipeline, Pipeline
from spark_client.pipeline.aggregating import AggregateFunction
from spark_client.pipeline.joining_steps import _HOWS, JoinType
from spark_client.pipeline.spark_names import _ADVICE, _GROUPED, _WRITER_ADVICE
from spark_client.pipeline.writer import PipelineWriter
from spark_client.reducing import FUNCTIONS, SYNONYMS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OWN = {"statistics", "toPolars", "delta", "iceberg"}
"""What Spark has not."""
CLASSES: list[tuple[type, type]] = [
    (Pipeline, DataFrame),
    (GroupedPipeline, GroupedData),
    (CogroupedPipeline, PandasCogroupedOps),
    (PipelineWriter, DataFrameWriter),
]


@pytest.fixture
def pipeline(spark: SparkSession, client: ShuffleClient) -> Pipeline:
    return client.pipeline(spark.createDataFrame([], "id long, name string"))


METHODS = [
    pytest.param(getattr(ours, name), getattr(theirs, name), id=f"{ours.__name__}.{name}")
    for ours, theirs in CLASSES
    for name in dir(ours)
    if not name.startswith(("_", "of_")) and name not in OWN and callable(getattr(ours, name))
]


@pytest.mark.parametrize(("ours", "theirs"), METHODS)
def test_arguments_that_both_have_are_the_same(ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    """In Spark's order, of Spark's kind, with Spark's defaults where these are values; what only a pipeline has is
    given by name.
    """
    one, two = ([*inspect.signature(each).parameters.values()][1:] for each in (ours, theirs))
    spark_names = [each.name for each in two]
    shared = [each for each in one if each.name in spark_names]
    assert [each.name for each in shared] == spark_names[: len(shared)]
    for mine in shared:
        spark = two[spark_names.index(mine.name)]
        assert mine.kind is spark.kind
        assert spark.default is None or mine.default in (spark.default, inspect.Parameter.empty)
    others = {each.kind for each in one if each not in shared}
    assert others <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    # A pipeline takes all of them; Spark's ``kwargs`` of sorts are only ``ascending``.
    assert [name for name in spark_names if name not in [each.name for each in shared]] in ([], ["kwargs"])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: p.mapInArrow(iter, "id long", barrier=True), r"\.toDF\(\)\.mapInArrow is the DataFrame's"),
        (
            lambda p: p.mapInPandas(iter, "id long", profile=object()),
            r"\.toDF\(\)\.mapInPandas is the DataFrame's",
        ),
        (lambda p: p.explain(True), r"explain\(\) prints; \.toDF\(\)\.explain\(True\) runs it"),
        (lambda p: p.explain(mode="cost"), r"\.toDF\(\)\.explain\('cost'\) runs it"),
        (
            lambda p: p.repartition(2).persist(StorageLevel.DISK_ONLY),
            "leave Disk Serialized 1x Replicated out",
        ),
        (
            lambda p: p.repartition(2).persist(StorageLevel.MEMORY_AND_DISK_2),
            r"2x Replicated out, or write \.toDF",
        ),
        (lambda p: p.join(p), r"on= names the keys, as in join\(other, \"id\"\); \.toDF\(\)\.crossJoin"),
    ],
)
def test_an_argument_of_spark_that_means_nothing_here_says_what_to_write(
    pipeline: Pipeline, call: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        call(pipeline)
    assert "\n" not in str(caught.value)


def test_what_spark_gives_by_default_may_be_given(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = pipeline.mapInArrow(iter, "id long", False, None).repartition(2)
    for level in (StorageLevel.MEMORY_AND_DISK, StorageLevel.MEMORY_AND_DISK_DESER):
        assert placed.persist(level).unpersist(blocking=True) is placed
    for arguments in ((), (False,), ("simple",), (None, "simple")):
        placed.explain(*arguments)
    assert capsys.readouterr().out.count("repartition(2)") == 4
    assert pipeline.join(pipeline, "id", None, suffix="_r").columns == ["id", "name", "name_r"]


def test_only_names_of_spark_are_public_but_for_those_of_its_own(pipeline: Pipeline) -> None:
    groups = pipeline.groupBy("id")
    for shown, theirs in ((dir(pipeline), DataFrame), (dir(groups), GroupedData)):
        assert [name for name in shown if not hasattr(theirs, name)] == sorted(
            {"statistics", "toPolars"} if theirs is DataFrame else []
        )
    assert dir(groups.cogroup(groups)) == ["applyInArrow", "applyInPandas"]
    assert {"columns", "dtypes", "schema"} < {*dir(pipeline)}


def test_every_name_of_a_function_and_of_a_join_is_in_its_type() -> None:
    assert {*get_args(AggregateFunction)} == {*FUNCTIONS, *SYNONYMS}
    assert {name.replace("_", "") for name in get_args(JoinType)} == {*_HOWS, "asof"}
    assert {*_HOWS.values()} == {*get_args(How)}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rollup", r"a pipeline has no 'rollup': \.toDF\(\)\.rollup is the DataFrame's$"),
        ("pivot", r"a pipeline has no 'pivot': \.toDF\(\)\.groupBy\(…\)\.pivot is the DataFrame's$"),
        ("applyInArrow", r"groupBy\(\"key\"\)\.applyInArrow does it$"),
        ("reparition", "did you mean 'repartition'\\?$"),
        ("cache", r"persist\(\) keeps what the last repartition wrote$"),
        ("selectExpr", r"select\(\"a\", b=\"old\", c=pc\.field"),
        ("name", r"pc\.field\('name'\) is that column in an expression$"),
        ("nothing_such", "a pipeline has no 'nothing_such', nor has a DataFrame$"),
        ("_nothing", "a pipeline has no '_nothing'$"),
    ],
)
def test_a_name_that_a_pipeline_has_not_is_answered_in_a_line(
    pipeline: Pipeline, name: str, says: str
) -> None:
    with pytest.raises(AttributeError, match=says) as caught:
        getattr(pipeline, name)
    assert "\n" not in str(caught.value)


def test_a_name_that_groups_have_not_is_answered_in_a_line(pipeline: Pipeline) -> None:
    groups: Any = pipeline.groupBy("id")
    with pytest.raises(
        AttributeError, match=r"the groups of a pipeline have no 'pivot': \.toDF\(\)\.groupBy\(…\)\.pivot is"
    ):
        groups.pivot("name")
    assert not hasattr(groups, "nothing_such")
    assert repr(groups) == "<GroupedPipeline <Pipeline DataFrame>.groupBy('id')>"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("save", r"parquet\(path\), delta\(path\) and iceberg\(table\) write$"),
        ("option", "has its options as arguments$"),
        ("saveAsTable", r"\.toDF\(\)\.write\.saveAsTable is the DataFrame's$"),
        ("paruqet", "has no 'paruqet'; did you mean 'parquet'\\?$"),
        ("_nothing", "the writer of a pipeline has no '_nothing'$"),
    ],
)
def test_a_name_that_the_writer_has_not_is_answered_in_a_line(
    pipeline: Pipeline, name: str, says: str
) -> None:
    with pytest.raises(AttributeError, match=says) as caught:
        getattr(pipeline.write, name)
    assert "\n" not in str(caught.value)
    assert dir(pipeline.write) == ["delta", "iceberg", "mode", "parquet", "partitionBy"]
    assert repr(pipeline.write) == "<PipelineWriter of <Pipeline DataFrame>>"
    known = [
        each for each in _WRITER_ADVICE if hasattr(PipelineWriter, each) or not hasattr(DataFrameWriter, each)
    ]
    assert known == []


def test_a_misspelled_join_and_function_are_found_by_mypy_and_when_they_are_written(
    pipeline: Pipeline,
) -> None:
    """A comment ``type: ignore`` that mypy does not need is an error of its own."""
    with pytest.raises(
        InvalidRequest, match=r"how is asof or one of anti, .*, not 'outr'; did you mean 'outer'"
    ):
        pipeline.join(pipeline, "id", "outr")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no function 'summ'"):
        pipeline.agg({"id": "summ"})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="no function 'summ'"):
        pipeline.groupBy("name").agg(total=("id", "summ"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'nmae'"):
        pipeline.repartition(4, nmae="x")  # type: ignore[call-arg]


def test_a_pipeline_is_copied(pipeline: Pipeline) -> None:
    assert copy.copy(pipeline).columns == pipeline.columns


def test_a_column_that_is_looked_up_is_answered_with_arrows(pipeline: Pipeline) -> None:
    with pytest.raises(TypeError, match=r"pc\.field\('id'\) is a column in an expression"):
        pipeline["id"]


def test_only_names_that_a_dataframe_has_and_a_pipeline_has_not_are_advised() -> None:
    assert [name for name in _ADVICE if hasattr(Pipeline, name) or not hasattr(DataFrame, name)] == []
    assert [name for name in _GROUPED if hasattr(Pipeline, name) or not hasattr(GroupedPipeline, name)] == []


@pytest.mark.parametrize("method", ["repartition", "repartitionByRange"])
def test_an_argument_that_a_step_does_not_have_is_answered_with_the_steps_name(
    pipeline: Pipeline, method: str
) -> None:
    with pytest.raises(
        TypeError, match=rf"^Pipeline\.{method}\(\) got an unexpected keyword argument 'copies'"
    ):
        getattr(pipeline, method)(4, "id", copies=2)


def test_a_pipeline_is_shown_in_a_notebook_without_a_run(pipeline: Pipeline) -> None:
    shown = pipeline.repartition(4, "id").withColumnRenamed("name", "<b>")._repr_html_()
    assert "repartition(4, &#x27;id&#x27;) #1: by the hash of &#x27;id&#x27;" in shown
    assert "<tr><td>&lt;b&gt;</td><td>string</td></tr>" in shown


def test_columns_are_printed_as_spark_prints_them(
    spark: SparkSession, client: ShuffleClient, capsys: pytest.CaptureFixture[str]
) -> None:
    df = spark.createDataFrame([], "id long not null, s struct<a: array<int>>")
    for level in (None, 1):
        client.pipeline(df).printSchema(level)
        ours = capsys.readouterr().out
        df.printSchema(level)
        assert ours == capsys.readouterr().out
