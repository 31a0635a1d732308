"""Lookups from Spark with a real server: the rows of Spark's own join, versions of batch jobs, what is fetched."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest

from flight_server.protocol import InvalidRequest, NotFound
from spark_client import ShuffleClient
from spark_client.changelogs import Changelog, latest, top_k
from tests.support.exchange_rates import RATES, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def counted(df: DataFrame) -> Counter[str]:
    """The rows with their counts; the text of a NaN equals that of another one."""
    return Counter(str(tuple(row)) for row in df.collect())


# Spark's own join.

_DAY = dt.date(2024, 2, 28)
_TYPES: dict[str, tuple[str, list[Any], pa.DataType, list[Any]]] = {
    "int, long": ("int", [1, 2, 3, -1], pa.int64(), [1, 2, -1, 2**40, 2**32 + 1]),
    "long, int": ("bigint", [1, 2, 2**32 + 1, 2**40], pa.int32(), [1, 2, 3]),
    "string": ("string", ["a", "b", "", "ä"], pa.string(), ["a", "", "ä", "A"]),
    "double": ("double", [0.0, -0.0, float("nan"), 1.5], pa.float64(), [-0.0, float("nan"), 1.5, 2.5]),
    "float, double": ("float", [0.5, 0.1, -0.0], pa.float64(), [0.5, 0.1, 0.0]),
    "int, double": ("int", [1, 2, 3], pa.float64(), [1.0, 2.5, 3.0]),
    "decimal": (
        "decimal(10,2)",
        [Decimal("1.50"), Decimal("2.00")],
        pa.decimal128(12, 3),
        [Decimal("1.500"), Decimal("1.501"), Decimal("2.000")],
    ),
    "decimal, int": ("decimal(10,2)", [Decimal("1.50"), Decimal("2.00")], pa.int32(), [1, 2]),
    "decimal, double": (
        "decimal(10,2)",
        [Decimal(cents) / 100 for cents in range(8_607_100, 8_607_150)],
        pa.float64(),
        [cents / 100 for cents in range(8_607_120, 8_607_150)],
    ),
    "date": ("date", [_DAY, dt.date(1900, 1, 1)], pa.date32(), [_DAY, dt.date(2024, 3, 1)]),
    "timestamp": (
        "timestamp",
        [dt.datetime(2024, 2, 28, 1, tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC)],
        pa.timestamp("us", "UTC"),
        [dt.datetime(2024, 2, 28, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 28, 2, tzinfo=dt.UTC)],
    ),
    "boolean": ("boolean", [True, False], pa.bool_(), [True]),
    "binary": ("binary", [b"a", b"", b"a\0"], pa.binary(), [b"a", b"a\0", b"\0"]),
}


_QUICK = [("int, long",), ("decimal, double",), ("double", "date", "string")]
_KEYS = [*((name,) for name in _TYPES), ("string", "int, long"), _QUICK[-1]]


@pytest.mark.parametrize(
    "types",
    [pytest.param(each, marks=() if each in _QUICK else pytest.mark.long) for each in _KEYS],
    ids="; ".join,
)
def test_a_lookup_is_sparks_join(spark: SparkSession, client: ShuffleClient, types: tuple[str, ...]) -> None:
    chance = random.Random("/".join(types))
    names = [f"k{number}" for number in range(len(types))]
    left_rows = [
        (*(chance.choice([None, *_TYPES[name][1]]) for name in types), chance.randrange(9)) for _ in range(80)
    ]
    columns = {
        key: pa.array(chance.choices([None, *_TYPES[name][3]], k=40), _TYPES[name][2])
        for key, name in zip(names, types, strict=True)
    }
    table = pa.table({**columns, "note": pa.array(chance.choices([None, "x", "y"], k=40), pa.string())})
    # Every row is kept: equal ones count twice, and a key has several.
    log = client.changelog("right", table.schema)
    log.put(table.slice(0, 25))
    ddl = ", ".join(f"{key} {_TYPES[name][0]}" for key, name in zip(names, types, strict=True))
    left = spark.createDataFrame(left_rows, f"{ddl}, n int").select("n", *names)
    log.put(table.slice(25))
    right = spark.createDataFrame(table)
    how: Literal["left", "inner"] = "inner" if len(types) > 1 else "left"
    ours, theirs = client.lookup(left, "right", names, how), left.join(right, names, how)
    assert ours.columns == theirs.columns
    assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]
    assert counted(ours) == counted(theirs)


def test_retracted_and_deleted_rows_are_gone_and_several_rows_of_a_key_are_several_results(
    spark: SparkSession, client: ShuffleClient
) -> None:
    log = client.changelog("three", RATES, key="currency", order_by="time", keep=top_k(3), delay_seconds=0.1)
    df = spark.createDataFrame([("EUR",), ("USD",), ("CHF",)], "currency string")
    kept: dict[str, list[int]] = {"EUR": [], "USD": []}
    for time in range(4):
        for currency in kept:
            quote(log, time, **{currency: float(time)})
            kept[currency] = sorted([*kept[currency], time])[-3:]
        expected = Counter(str((c, t, float(t))) for c, times in kept.items() for t in times)
        expected[str(("CHF", None, None))] = 1
        assert counted(client.lookup(df, "three", "currency")) == expected
    before = pa.table([["EUR"], [3], [3.0]], schema=RATES)
    log.retract(before)
    assert counted(client.lookup(df, "three", "currency", "inner"))[str(("EUR", 3, 3.0))] == 0
    log.delete([{"currency": "EUR"}])
    left = {str(("USD", time, float(time))): 1 for time in (1, 2, 3)}
    assert counted(client.lookup(df, "three", "currency", "inner")) == left


def test_a_changelog_of_keys_only_counts_its_rows(spark: SparkSession, client: ShuffleClient) -> None:
    log = client.changelog("keys", pa.schema([("k", pa.int64())]))
    log.put(pa.table({"k": pa.array([1, 1, 2], pa.int64())}))
    df = spark.createDataFrame([(1,), (2,), (3,)], "k long")
    assert counted(client.lookup(df, "keys", "k", "inner")) == Counter({"(1,)": 2, "(2,)": 1})
    assert counted(client.lookup(df, "keys", "k")) == Counter({"(1,)": 2, "(2,)": 1, "(3,)": 1})


# What is refused.


def test_a_mistake_in_a_lookup_is_named_when_it_is_made(
    spark: SparkSession, client: ShuffleClient, rates: Changelog
) -> None:
    df = spark.createDataFrame([(1, "EUR", 0.5)], "id int, currency string, rate double")
    with pytest.raises(InvalidRequest, match=r"both sides have 'rate'.*withColumnRenamed"):
        client.lookup(df, "rates", "currency")
    orders = df.drop("rate")
    with pytest.raises(InvalidRequest, match="no column 'cur' in the DataFrame"):
        client.lookup(orders, "rates", {"cur": "currency"})
    with pytest.raises(InvalidRequest, match="no column 'id' in the changelog"):
        client.lookup(orders, "rates", "id")
    with pytest.raises(InvalidRequest, match=r"key 'currency'.*cast"):
        client.lookup(orders, "rates", {"id": "currency"})
    with pytest.raises(InvalidRequest, match="'left' or 'inner'"):
        client.lookup(orders, "rates", "currency", "outer")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        client.lookup(orders, "rates", "currency", as_of=7)
    with pytest.raises(NotFound):
        client.lookup(orders, "rites", "currency")


def test_a_changelog_that_was_created_anew_is_not_taken_for_the_old_one(
    spark: SparkSession, client: ShuffleClient, rates: Changelog
) -> None:
    df = spark.createDataFrame([("EUR",)], "currency string")
    quote(rates, 1, EUR=1.1)
    old = client.lookup(df, "rates", "currency")
    client.drop("rates")
    again = client.changelog("rates", RATES, key="currency", order_by="time", keep=latest())
    quote(again, 1, EUR=2.2)
    with pytest.raises(Exception, match=r"is(, or| gone, or) was created anew"):
        old.collect()
    assert client.lookup(df, "rates", "currency").collect()[0].rate == 2.2


# Versions of batch jobs.


def test_a_plan_keeps_its_version_and_as_of_names_one(
    spark: SparkSession, client: ShuffleClient, rates: Changelog
) -> None:
    df = spark.createDataFrame([("EUR",)], "currency string")
    first = quote(rates, 1, EUR=1.1)
    plan = client.lookup(df, "rates", "currency")
    fixed = client.lookup(df, "rates", "currency", as_of=first)
    quote(rates, 2, EUR=1.2)
    for _ in range(2):
        assert plan.collect()[0].rate == 1.1
        assert fixed.collect()[0].rate == 1.1
        assert client.lookup(df, "rates", "currency").collect()[0].rate == 1.2
    assert {hold["version"] for hold in rates.statistics()["holds"]} == {first, 2}


# What is fetched.


def test_one_process_of_a_host_fetches_a_version_once_and_then_only_what_changed(
    spark: SparkSession, client: ShuffleClient
) -> None:
    schema = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("value", pa.int64())])
    log = client.changelog("table", schema, key="key", order_by="time", keep=latest(), delay_seconds=0.1)
    count = 100_000

    def put(time: int, keys: range) -> None:
        log.put(pa.table([list(keys), [time] * len(keys), [time] * len(keys)], schema=schema))

    def look_up() -> int:
        """The bytes that the server has sent for a lookup by tasks in several processes."""
        before = client.statistics()
        found = client.lookup(spark.range(0, count, 97, 8).withColumnRenamed("id", "key"), "table", "key")
        assert found.where("value is null").count() == 0
        after = client.statistics()
        assert after["gets"] - before["gets"] <= 1
        return int(after["bytes_out"] - before["bytes_out"])

    put(0, range(count))
    whole = look_up()
    assert whole > count * 20
    assert look_up() == 0
    small = []
    for time in range(1, 4):
        put(time, range(0, count, 100))
        small.append(look_up())
        assert look_up() == 0
    assert max(small) < whole / 20
