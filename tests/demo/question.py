"""One question, answered three ways: how late do flights arrive, by carrier, destination and weather at departure?

For each carrier, destination and weather: flights that arrived, how many of them 15 minutes late or more, the
minutes of delay, and the minutes that passengers lost (delay times seats, where the plane is known). All of these
are whole numbers, so that the answers must be equal, not merely close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_client import ShuffleClient
from tests.demo.flights import Flights

PARTITIONS = 8
ANSWER = (
    "carrier string, dest string, airport string, weather string, "
    "flights long, late long, minutes long, passenger_minutes long"
)
_READ = ["carrier", "tailnum", "origin", "dest", "time_hour", "arr_delay"]
_HOURLY = (
    "carrier string, dest string, airport string, origin string, time_hour timestamp, delay long, seats long"
)
_KEYS = ("carrier", "dest", "airport", "weather")
_SUMS = ("flights", "late", "minutes", "passenger_minutes")

Lookup = Callable[[], pa.Table]
"""Gives a task the table that every task has."""


def by_the_service(spark: SparkSession, client: ShuffleClient, data: Flights) -> DataFrame:
    """The answer by Python stages, with two exchanges and three broadcasts."""
    planes, airports, weather = (client.broadcast(each).table for each in _looked_up(data))
    return (
        client.scan(data.flights, columns=_READ, spark=spark)
        .mapInArrow(_with_plane_and_airport(planes, airports), _HOURLY)
        .repartition(PARTITIONS, "origin", "time_hour")
        .mapInArrow(_with_weather(weather), ANSWER)
        .repartition(PARTITIONS, "carrier", "dest", "weather")
        .mapInArrow(_sums, ANSWER)
        .toDF()
    )


def by_sparks_shuffle(spark: SparkSession, data: Flights) -> DataFrame:
    """The answer by the same Python stages, with Spark's own shuffle and broadcast variables."""

    def sent(table: DataFrame) -> Lookup:
        variable = spark.sparkContext.broadcast(table.toArrow())
        return lambda: variable.value

    planes, airports, weather = (sent(each) for each in _looked_up(data))
    return (
        spark.read.parquet(str(data.flights))
        .select(*_READ)
        .mapInArrow(_with_plane_and_airport(planes, airports), _HOURLY)
        .repartition(PARTITIONS, "origin", "time_hour")
        .mapInArrow(_with_weather(weather), ANSWER)
        .repartition(PARTITIONS, "carrier", "dest", "weather")
        .mapInArrow(_sums, ANSWER)
    )


def _looked_up(data: Flights) -> tuple[DataFrame, DataFrame, DataFrame]:
    return (
        data.planes.select("tailnum", "seats"),
        data.airports.select("faa", "name"),
        data.weather.select("origin", "time_hour", "temp", "precip", "visib", "wind_speed"),
    )


def by_plain_spark(spark: SparkSession, data: Flights) -> DataFrame:
    """The answer by Spark's own joins and aggregation, without any Python."""
    at = data.weather
    condition = (
        sql.when(
            at.temp.isNull() & at.precip.isNull() & at.visib.isNull() & at.wind_speed.isNull(), "unknown"
        )
        .when((at.precip > 0) & (at.temp <= 32), "snow or ice")
        .when(at.precip > 0, "rain")
        .when(at.visib < 3, "fog")
        .when(at.wind_speed >= 20, "wind")
        .otherwise("fair")
    )
    conditions = at.select("origin", "time_hour", condition.alias("weather"))
    airports = data.airports.select(sql.col("faa").alias("dest"), sql.col("name").alias("airport"))
    return (
        spark.read.parquet(str(data.flights))
        .where("arr_delay is not null")
        .join(data.planes.select("tailnum", "seats"), "tailnum", "left")
        .join(airports, "dest", "left")
        .join(conditions, ["origin", "time_hour"], "left")
        .groupBy("carrier", "dest", "airport", sql.coalesce("weather", sql.lit("unknown")).alias("weather"))
        .agg(
            sql.count("*").alias("flights"),
            sql.sum(sql.when(sql.col("arr_delay") >= 15, 1).otherwise(0)).alias("late"),
            sql.sum(sql.col("arr_delay").cast("long")).alias("minutes"),
            sql.sum(sql.col("arr_delay").cast("long") * sql.coalesce("seats", sql.lit(0))).alias(
                "passenger_minutes"
            ),
        )
        .select(*_KEYS, *_SUMS)
    )


# The stages, which both shuffles run.


def _with_plane_and_airport(planes: Lookup, airports: Lookup) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        plane, airport = planes().combine_chunks(), airports().combine_chunks()
        for batch in batches:
            arrived = batch.filter(pc.is_valid(batch.column("arr_delay")))
            yield pa.record_batch(
                {
                    "carrier": arrived.column("carrier"),
                    "dest": arrived.column("dest"),
                    "airport": _look_up(airport, "faa", arrived.column("dest"), "name"),
                    "origin": arrived.column("origin"),
                    "time_hour": arrived.column("time_hour"),
                    "delay": arrived.column("arr_delay").cast(pa.int64()),
                    "seats": pc.fill_null(
                        _look_up(plane, "tailnum", arrived.column("tailnum"), "seats").cast(pa.int64()), 0
                    ),
                }
            )

    return stage


def _with_weather(weather: Lookup) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        hourly = list(batches)
        if not hourly:
            return
        known = weather()
        known = known.select(["origin", "time_hour"]).append_column("weather", _condition(known))
        joined = pa.Table.from_batches(hourly).join(known, ["origin", "time_hour"], join_type="left outer")
        delay = joined.column("delay")
        yield from _added_up(
            pa.table(
                {
                    **{key: joined.column(key) for key in ("carrier", "dest", "airport")},
                    "weather": pc.fill_null(joined.column("weather"), "unknown"),
                    "flights": pa.repeat(pa.scalar(1, pa.int64()), len(joined)),
                    "late": pc.cast(pc.greater_equal(delay, 15), pa.int64()),
                    "minutes": delay,
                    "passenger_minutes": pc.multiply(delay, joined.column("seats")),
                }
            )
        ).to_batches()

    return stage


def _sums(batches: Iterator[Any]) -> Iterator[Any]:
    parts = list(batches)
    if parts:
        yield from _added_up(pa.Table.from_batches(parts)).to_batches()


def _added_up(rows: pa.Table) -> pa.Table:
    sums = rows.group_by(list(_KEYS), use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    return sums.select([*_KEYS, *(f"{name}_sum" for name in _SUMS)]).rename_columns([*_KEYS, *_SUMS])


def _look_up(table: pa.Table, key: str, wanted: Any, column: str) -> Any:
    """The value of ``column`` where ``key`` is each of ``wanted``; null where it is not found."""
    values = table.column(column)
    found = pc.index_in(wanted, value_set=table.column(key), skip_nulls=True)
    taken = values.take(found)
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def _condition(weather: pa.Table) -> Any:
    temp, precip, visib, wind = (weather.column(name) for name in ("temp", "precip", "visib", "wind_speed"))
    nothing = pc.and_(
        pc.and_(pc.is_null(temp), pc.is_null(precip)), pc.and_(pc.is_null(visib), pc.is_null(wind))
    )
    wet = pc.greater(precip, 0)
    conditions = {
        "unknown": nothing,
        "snow or ice": pc.and_kleene(wet, pc.less_equal(temp, 32)),
        "rain": wet,
        "fog": pc.less(visib, 3),
        "wind": pc.greater_equal(wind, 20),
    }
    chosen = pc.make_struct(
        *(_flat(pc.fill_null(mask, False)) for mask in conditions.values()), field_names=list(conditions)
    )
    return pc.case_when(chosen, *conditions, "fair")


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
