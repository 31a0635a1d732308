"""The tasks of an exchange: what each reads, where they send the rows, and the name of the dataset."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_client.arrow import fits_one_chunk
from spark_client.connection import RemoteServer
from spark_client.jobs import (
    WRITE_BUDGET_BYTES,
    ByColumn,
    ByKeys,
    Cut,
    InTurn,
    Placement,
    SealedDataset,
    Shares,
    TaskRows,
    WriteTask,
    cores,
    cuts_of,
    cuts_of_pair,
    tasks_for,
)
from spark_client.steps import Stage

from .decided_jobs import ExchangeRead
from .nodes import Exchange, Input


def shares_for(
    spark: SparkSession,
    exchange: Exchange,
    partition_bytes: Sequence[int],
    cuts: Sequence[Cut],
    *,
    alone: bool = False,
) -> Shares:
    """What each task reads of an exchange, or of a pair of exchanges; ``alone``: one partition, unless the exchange
    says how many tasks there are.
    """
    tasks = exchange.tasks
    if tasks is None and not alone:
        available = cores(spark)
        read_bytes = sum(sum(cut.piece_bytes) - partition_bytes[cut.partition] for cut in cuts)
        tasks = None if available is None else tasks_for([*partition_bytes, read_bytes], available)
    return Shares.equal(partition_bytes, tasks or exchange.partitions, cuts)


def cuts_for(reads: Sequence[ExchangeRead], sealed: Sequence[SealedDataset]) -> list[Cut]:
    """The partitions far over the median that tasks read in pieces, where the steps allow it."""
    may = [read.side for read in reads if read.may_cut]
    if not may:
        return []
    return cuts_of(sealed[0]) if len(sealed) == 1 else cuts_of_pair(sealed[0], sealed[1], may)


def write_of(
    server: RemoteServer, dataset: str, exchange: Exchange, given: Input, stages: tuple[Stage, ...]
) -> tuple[TaskRows, WriteTask]:
    """The tasks that send the rows of ``given``, after the stages, as the exchange says."""
    given, stages, limits = given.with_settings(stages)
    rows: TaskRows = given.rows
    placement: Placement
    if exchange.ranges is not None:
        placement = exchange.ranges
    elif not exchange.keys:
        placement = InTurn(exchange.partitions)
    elif exchange.hashed_by_spark(given, stages):
        assert given.frame is not None
        placement = ByColumn()
        rows = _with_partition_column(given.frame, exchange)
    else:
        placement = ByKeys(exchange.keys, exchange.partitions, exchange.types)

    task = WriteTask(
        server,
        dataset,
        "",
        exchange.partitions,
        exchange.leg.declared,
        placement,
        stages,
        given.source,
        given.shares,
        limits,
        WRITE_BUDGET_BYTES,
        counts=exchange.counted and fits_one_chunk(exchange.leg.schema),
    )
    return rows, task


def _with_partition_column(df: DataFrame, exchange: Exchange) -> DataFrame:
    name = "partition"
    while name.casefold() in {column.casefold() for column in df.columns}:
        name = f"_{name}"
    keys = [sql.col(f"`{key.replace('`', '``')}`") for key in exchange.keys]
    return df.withColumn(name, sql.pmod(sql.hash(*keys), sql.lit(exchange.partitions)))


def dataset_name(exchange: Exchange, token: str, number: int) -> str:
    """The name of an exchange's dataset: ``number`` tells it from others of ``token``."""
    if exchange.name is None:
        return f"exchange/{token}/{number}"
    # Neither two dots in a row, nor one alone, may be in a name.
    name = re.sub(r"\.\.+|^\.$|[^A-Za-z0-9._-]", "-", exchange.name)
    return f"exchange/{name}/{token}/{number}"
