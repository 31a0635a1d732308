"""What the tasks of an exchange do: read, run the stages, place the rows and send them."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from spark_client.connection import RemoteServer
from spark_client.jobs import ByColumn, ByKeys, InTurn, Placement, WriteTask
from spark_client.steps import Stage

from .nodes import Exchange, Input


def write_of(
    server: RemoteServer, dataset: str, exchange: Exchange, given: Input, stages: tuple[Stage, ...]
) -> tuple[DataFrame, WriteTask]:
    """The tasks that send the rows of ``given``, after the stages, as the exchange says."""
    rows = given.rows
    placement: Placement
    if exchange.ranges is not None:
        placement = exchange.ranges
    elif not exchange.keys:
        placement = InTurn(exchange.partitions)
    elif given.source is None and not stages and exchange.types is None:
        # Nothing has changed the rows since Spark had them, so Spark hashes the keys.
        placement = ByColumn()
        rows = _with_partition_column(rows, exchange)
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
        given.limits,
        exchange.budget_bytes,
    )
    return rows, task


def _with_partition_column(df: DataFrame, exchange: Exchange) -> DataFrame:
    name = "partition"
    while name.casefold() in {column.casefold() for column in df.columns}:
        name = f"_{name}"
    keys = [sql.col(f"`{key.replace('`', '``')}`") for key in exchange.keys]
    return df.withColumn(name, sql.pmod(sql.hash(*keys), sql.lit(exchange.partitions)))


def dataset_name(exchange: Exchange, token: str, number: int) -> str:
    """The name of what an exchange writes: ``number`` tells it from others of ``token``."""
    if exchange.name is None:
        return f"exchange/{token}/{number}"
    # Neither two dots in a row, nor one alone, may be in a name.
    name = re.sub(r"\.\.+|^\.$|[^A-Za-z0-9._-]", "-", exchange.name)
    return f"exchange/{name}/{token}/{number}"
