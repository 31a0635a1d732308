"""Functions of pandas get what Spark's own methods give them, and what they return becomes what it becomes there."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from spark_client import ShuffleClient
from tests.support.pandas_looks import LOOKED, look
from tests.support.spark_rows import EVERY_TYPE, content, everything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
# Spark 4.1 has geometries, if they are enabled, but gives pandas none that is null.
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin", "sql__timeType__enabled": "true"}

# pandas has timestamps of nanoseconds, and dicts, which are no keys.
TYPES = {name: sql for name, sql in EVERY_TYPE.items() if name != "map of structs to arrays"} | {
    "timestamp": "timestamp'2020-03-29 01:59:59.000001' + make_dt_interval(0, cast(id as int))",
    "timestamp_ntz": "timestamp_ntz'2020-03-29 02:30:00' + make_dt_interval(cast(id * 9999 as int))",
}
# mapInPandas converts all columns at once, in another way if one of them is not of these types.
PLAIN = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "time",
    "void",
)


def rows_of(spark: SparkSession, names: Iterable[str]) -> DataFrame:
    """One partition of five rows, of which every other one has nulls."""
    from pyspark.errors import AnalysisException

    found = spark.range(0, 5, 1, 1).selectExpr("id", "if(id = 4, null, id % 2) as key")
    for name in names:
        try:
            found = found.selectExpr("*", f"if(id % 2 = 1, null, {TYPES[name]}) as `{name}`")
        except AnalysisException:
            assert name in ("time", "array of time", "geometry", "geography"), name  # not in Spark 4.1
    return found


def looks(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield look(frame)


def look_with_keys(keys: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    seen = look(frame.sort_values("id", ignore_index=True))
    return seen.assign(value=f"{[(type(key).__name__, repr(key)) for key in keys]} " + seen["value"])


def look_at_both(keys: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([look_with_keys(keys, left), look_with_keys(keys, right)])


def look_in_pieces(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield look(pd.concat(frames).sort_values("id", ignore_index=True))


look_in_pieces.__annotations__ = {"frames": Iterator[pd.DataFrame], "return": Iterator[pd.DataFrame]}


def check_all_methods(client: ShuffleClient, df: DataFrame) -> None:
    """Each method sees of the rows what it sees in Spark."""
    rows = client.pipeline(df)
    mapped = content(df.mapInPandas(looks, LOOKED))
    assert content(rows.mapInPandas(looks, LOOKED).toDF()) == mapped
    assert content(rows.repartition(1).sortWithinPartitions("id").mapInPandas(looks, LOOKED).toDF()) == mapped
    by_key = rows.repartition(2, "key")
    for function in (look_with_keys, look_in_pieces):
        grouped = df.groupBy("key").applyInPandas(function, LOOKED)
        assert content(by_key.groupBy("key").applyInPandas(function, LOOKED).toDF()) == content(grouped)
    # Of each key but the first one side has no rows.
    other = df.where("key = 0").selectExpr("key + 0 as key", "*").drop(df["key"])
    both = df.groupBy("key").cogroup(other.groupBy("key")).applyInPandas(look_at_both, LOOKED)
    pair = by_key.groupBy("key").cogroup(client.pipeline(other).groupBy("key"))
    assert content(pair.applyInPandas(look_at_both, LOOKED).toDF()) == content(both)


def test_functions_get_each_type_as_in_spark(client: ShuffleClient, spark: SparkSession) -> None:
    check_all_methods(client, rows_of(spark, TYPES))
    plain = rows_of(spark, PLAIN)
    found = client.pipeline(plain).mapInPandas(looks, LOOKED).toDF()
    assert content(found) == content(plain.mapInPandas(looks, LOOKED))


RETURNED: dict[str, tuple[str, Any]] = {
    "category": ("string", pd.Series(["a", "b", None], dtype="category")),
    "extension": ("long", pd.Series([1, None, 3], dtype="Int32")),
    "float": ("int", pd.Series([1.0, np.nan, 3.0])),
    "objects": ("long", pd.Series([1, None, 3], dtype=object)),
    "bools": ("boolean", pd.Series([True, None, False], dtype=object)),
    "nullable": ("boolean", pd.Series([True, None, False], dtype="boolean")),
    "texts": ("string", pd.Series(["a", None, "c"], dtype="string")),
    "zoned": ("timestamp", pd.Series(pd.date_range("2020-03-29", periods=3, tz="Asia/Tokyo"))),
    "local": ("timestamp", pd.Series(pd.date_range("2020-03-29 01:30", periods=3, freq="2h"))),
    "ntz": ("timestamp_ntz", pd.Series(pd.date_range("2020-03-29 02:30", periods=3))),
    "days": ("date", pd.Series([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)])),
    "instants as days": ("date", pd.Series(pd.date_range("2020-03-29", periods=3))),
    "step": ("interval day to second", pd.Series(pd.to_timedelta([1, None, 3], unit="h"))),
    "decimal": ("decimal(10, 2)", pd.Series([Decimal("1.5"), None, Decimal(3)])),
    "bytes": ("binary", pd.Series([b"a", None, bytearray(b"c")])),
    "arrays": ("array<long>", pd.Series([np.array([1, 2]), None, [3, None]])),
    "dicts": ("struct<a: long, b: string>", pd.Series([{"a": 1, "b": "x"}, None, {"b": "y", "a": None}])),
    "maps": ("map<string, long>", pd.Series([{"a": 1}, None, {}])),
    "nested": (
        "array<struct<t: timestamp>>",
        pd.Series([[{"t": pd.Timestamp("2020-03-29")}], None, [None]]),
    ),
}


def test_results_of_every_kind_become_what_they_become_in_spark(
    client: ShuffleClient, spark: SparkSession
) -> None:
    ddl = ", ".join(f"`{name}` {kind}" for name, (kind, _) in RETURNED.items())
    frame = pd.DataFrame({name: series for name, (_, series) in reversed(RETURNED.items())})

    def returns(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for _ in frames:
            yield frame
            yield frame[list(RETURNED)].set_axis(range(len(RETURNED)), axis=1)
            yield pd.DataFrame()

    df = spark.range(0, 1, 1, 1)
    found, expected = client.pipeline(df).mapInPandas(returns, ddl).toDF(), df.mapInPandas(returns, ddl)
    assert found.schema == expected.schema
    assert content(found) == content(expected)


def test_rows_that_a_function_gives_back_are_the_same(client: ShuffleClient, spark: SparkSession) -> None:
    def turned(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[list(reversed(frame.columns))]

    df = everything(spark).coalesce(1)
    found = client.pipeline(df).repartition(2, "k").groupBy("k").applyInPandas(turned, df.schema).toDF()
    expected = df.groupBy("k").applyInPandas(turned, df.schema)
    assert found.schema == expected.schema
    assert content(found) == content(expected)


def yielding(*results: Any) -> Any:
    def function(frames: Iterator[pd.DataFrame]) -> Iterator[Any]:
        for _ in frames:
            yield from results

    return function


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda _: 7, id="no iterator"),
        pytest.param(yielding(pd.DataFrame({"n": [1], "other": [2]})), id="another column"),
        pytest.param(yielding(pd.DataFrame({"n": [1.5], "t": ["y"]})), id="lost digits"),
    ],
)
def test_a_result_that_does_not_fit_is_sparks_error(
    client: ShuffleClient, spark: SparkSession, function: Any
) -> None:
    df = spark.range(0, 3, 1, 1)
    said = []
    for made in (client.pipeline(df).mapInPandas(function, "n tinyint, t string").toDF(), None):
        with pytest.raises(Exception, match="PySpark") as caught:
            (made or df.mapInPandas(function, "n tinyint, t string")).collect()
        said.append(re.findall(r"^pyspark\.errors.*?Error: .*$", str(caught.value), re.MULTILINE))
    assert said[0] == said[1] != []
