"""Runs the exchanges of a plan: for each, one Spark job writes a dataset from the DataFrame or the dataset before."""

from __future__ import annotations

import uuid

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_client.jobs import (
    ByColumn,
    ByKeys,
    InTurn,
    Placement,
    Readable,
    Shuffles,
    WriteTask,
    batch_limits,
)

from .legs import Exchange, Leg


def run_exchanges(shuffles: Shuffles, df: DataFrame, legs: tuple[Leg, ...]) -> tuple[Readable, int]:
    """The sealed dataset of the last leg, and the number of its partitions.

    Args:
        legs: each with an exchange; at least one.

    Raises:
        FlightShuffleError: the server refused, or could not be reached.
        pyspark.errors.PySparkException: a job failed. After either, all datasets are dropped.
    """
    token = uuid.uuid4().hex
    source: Readable | None = None
    partitions = 0
    for number, leg in enumerate(legs):
        assert leg.exchange is not None
        before = source
        try:
            rows = df if before is None else numbers(df.sparkSession, partitions)
            source = _write(shuffles, f"exchange/{token}/{number}", leg, rows, before)
        finally:
            if before is not None:
                shuffles.discard(before.dataset)
        partitions = leg.exchange.partitions
    assert source is not None
    return source, partitions


def _write(shuffles: Shuffles, dataset: str, leg: Leg, rows: DataFrame, source: Readable | None) -> Readable:
    exchange = leg.exchange
    assert exchange is not None
    placement: Placement
    if not exchange.keys:
        placement = InTurn(exchange.partitions)
    elif source is None and not leg.stages:
        # Nothing has changed the rows since Spark had them, so Spark hashes the keys.
        placement = ByColumn()
        rows = _with_partition_column(rows, exchange)
    else:
        placement = ByKeys(exchange.keys, exchange.partitions)
    limits = batch_limits(rows.sparkSession)

    def task(generation: str) -> WriteTask:
        return WriteTask(
            shuffles.server,
            dataset,
            generation,
            exchange.partitions,
            leg.declared,
            placement,
            leg.stages,
            source,
            limits,
            exchange.budget_bytes,
        )

    written, _ = shuffles.write(
        dataset, exchange.partitions, leg.declared.schema, rows, task, label=str(exchange)
    )
    return written


def numbers(spark: SparkSession, partitions: int) -> DataFrame:
    """0 to ``partitions - 1``, one in each Spark partition."""
    return spark.range(0, partitions, 1, partitions)


def _with_partition_column(df: DataFrame, exchange: Exchange) -> DataFrame:
    name = "partition"
    while name.casefold() in {column.casefold() for column in df.columns}:
        name = f"_{name}"
    keys = [sql.col(f"`{key.replace('`', '``')}`") for key in exchange.keys]
    return df.withColumn(name, sql.pmod(sql.hash(*keys), sql.lit(exchange.partitions)))
