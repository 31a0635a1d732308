"""Runs the exchanges of a plan: for each, one Spark job writes a dataset from what it starts from or the one before."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_client.jobs import (
    BatchLimits,
    ByColumn,
    ByKeys,
    InTurn,
    Placement,
    ReadTask,
    Sealed,
    Shares,
    Shuffles,
    Source,
    Stage,
    WriteTask,
    batch_limits,
    cores,
    tasks_for,
)

from .legs import Exchange, Leg


@dataclass(frozen=True)
class Input:
    """What the tasks of a leg get: the rows of a DataFrame, or numbers of ``shares`` of the parts of ``source``.

    ``batch_rows`` is the rows of the batches that functions get; None for the session's limit.
    """

    rows: DataFrame
    source: Source | None = None
    shares: Shares | None = None
    batch_rows: int | None = None

    @classmethod
    def of(cls, spark: SparkSession, source: Source, shares: Shares, batch_rows: int | None = None) -> Input:
        """One task for each share."""
        return cls(spark.range(0, len(shares), 1, len(shares)), source, shares, batch_rows)

    @property
    def limits(self) -> BatchLimits:
        limits = batch_limits(self.rows.sparkSession)
        return limits if self.batch_rows is None else replace(limits, rows=self.batch_rows)

    def reading(self, stages: tuple[Stage, ...]) -> ReadTask:
        """The task that reads the source and runs the stages."""
        assert self.source is not None
        assert self.shares is not None
        return ReadTask(self.source, self.shares, stages, self.limits)


def run_exchanges(
    shuffles: Shuffles, start: Input, legs: tuple[Leg, ...], *, alone: bool = False
) -> tuple[Sealed, Input]:
    """The sealed dataset of the last leg, and the input of the tasks that read it.

    Args:
        legs: each with an exchange; at least one.
        alone: each partition of the last dataset has a task of its own, unless its exchange says how many.

    Raises:
        FlightShuffleError: the server refused, or could not be reached.
        pyspark.errors.PySparkException: a job failed. After either, all datasets are dropped.
    """
    token = uuid.uuid4().hex
    spark = start.rows.sparkSession
    given, written = start, None
    try:
        for number, leg in enumerate(legs):
            assert leg.exchange is not None
            before = written
            try:
                written = _write(shuffles, f"exchange/{token}/{number}", leg, given)
            finally:
                if before is not None:
                    shuffles.discard(before.source.dataset)
            tasks = leg.exchange.tasks
            if tasks is None and not (alone and leg is legs[-1]):
                available = cores(spark)
                tasks = None if available is None else tasks_for(written.partition_bytes, available)
            shares = Shares.equal(written.partition_bytes, tasks or leg.exchange.partitions)
            given = Input.of(spark, written.source, shares)
    except BaseException:
        if written is not None:
            shuffles.discard(written.source.dataset)
        raise
    assert written is not None
    return written, given


def _write(shuffles: Shuffles, dataset: str, leg: Leg, given: Input) -> Sealed:
    exchange, rows, source, limits = leg.exchange, given.rows, given.source, given.limits
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
            given.shares,
            limits,
            exchange.budget_bytes,
        )

    schema = leg.declared.schema
    written, totals = shuffles.write(dataset, exchange.partitions, schema, rows, task, label=str(exchange))
    sizes = totals["partition_bytes"]
    return Sealed(
        written, schema, tuple(sizes.get(str(partition), 0) for partition in range(exchange.partitions))
    )


def _with_partition_column(df: DataFrame, exchange: Exchange) -> DataFrame:
    name = "partition"
    while name.casefold() in {column.casefold() for column in df.columns}:
        name = f"_{name}"
    keys = [sql.col(f"`{key.replace('`', '``')}`") for key in exchange.keys]
    return df.withColumn(name, sql.pmod(sql.hash(*keys), sql.lit(exchange.partitions)))
