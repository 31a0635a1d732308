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
    Shares,
    Shuffles,
    WriteTask,
    batch_limits,
    cores,
    tasks_for,
)

from .legs import Exchange, Leg


def run_exchanges(
    shuffles: Shuffles, df: DataFrame, legs: tuple[Leg, ...], *, alone: bool = False
) -> tuple[Readable, Shares]:
    """The sealed dataset of the last leg, and which tasks are to read which of its partitions.

    Args:
        legs: each with an exchange; at least one.
        alone: each partition of the last dataset has a task of its own, unless its exchange says how many.

    Raises:
        FlightShuffleError: the server refused, or could not be reached.
        pyspark.errors.PySparkException: a job failed. After either, all datasets are dropped.
    """
    token = uuid.uuid4().hex
    source: Readable | None = None
    shares: Shares | None = None
    for number, leg in enumerate(legs):
        assert leg.exchange is not None
        before = source
        try:
            rows = df if shares is None else numbers(df.sparkSession, len(shares))
            source, sizes = _write(shuffles, f"exchange/{token}/{number}", leg, rows, (source, shares))
        finally:
            if before is not None:
                shuffles.discard(before.dataset)
        tasks = leg.exchange.tasks
        if tasks is None and not (alone and leg is legs[-1]):
            available = cores(df.sparkSession)
            tasks = None if available is None else tasks_for(sizes, available)
        shares = Shares.equal(sizes, tasks or leg.exchange.partitions)
    assert source is not None
    assert shares is not None
    return source, shares


def _write(
    shuffles: Shuffles,
    dataset: str,
    leg: Leg,
    rows: DataFrame,
    read: tuple[Readable | None, Shares | None],
) -> tuple[Readable, list[int]]:
    """The sealed dataset, and the bytes of each of its partitions."""
    exchange = leg.exchange
    assert exchange is not None
    source, shares = read
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
            shares,
            limits,
            exchange.budget_bytes,
        )

    written, totals = shuffles.write(
        dataset, exchange.partitions, leg.declared.schema, rows, task, label=str(exchange)
    )
    sizes = totals["partition_bytes"]
    return written, [sizes.get(str(partition), 0) for partition in range(exchange.partitions)]


def numbers(spark: SparkSession, tasks: int) -> DataFrame:
    """0 to ``tasks - 1``, one in each Spark partition."""
    return spark.range(0, tasks, 1, tasks)


def _with_partition_column(df: DataFrame, exchange: Exchange) -> DataFrame:
    name = "partition"
    while name.casefold() in {column.casefold() for column in df.columns}:
        name = f"_{name}"
    keys = [sql.col(f"`{key.replace('`', '``')}`") for key in exchange.keys]
    return df.withColumn(name, sql.pmod(sql.hash(*keys), sql.lit(exchange.partitions)))
