"""Spark's schemas as Arrow's, by Spark's own rules; for the driver.

A ``StructType`` or its DDL string goes through Spark's ``to_arrow_schema`` with the session's time zone and
string width, so that a function sees the same Arrow types whether the stage before it was Spark or an
exchange. Works on Spark Classic and Spark Connect.
"""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flight_server.errors import InvalidRequest


def check_frame(df: DataFrame, where: str) -> None:
    """Nothing, if tasks of a job of ours can take ``df``'s rows.

    Raises:
        InvalidRequest: it is no DataFrame of Spark, it is a stream, or has a column that Spark's ``mapInArrow``
            cannot take.
    """
    if not hasattr(df, "mapInArrow"):
        raise InvalidRequest(
            f"{where} is of type {type(df).__name__}, not a DataFrame of Spark; spark.createDataFrame makes one"
        )
    if df.isStreaming:
        raise InvalidRequest(
            f"{where} is a stream: use it inside foreachBatch, where each batch is a DataFrame"
        )
    odd = next((name for name in df.columns if "." in name or "`" in name), None)
    if odd is not None:
        raise InvalidRequest(
            f"{where}: Spark's mapInArrow cannot take column {odd!r}, because of the dot or backtick in its name; "
            "rename it with toDF or withColumnRenamed",
            column=odd,
        )


def declared_struct(spark: SparkSession, schema: StructType | str, stage: str) -> StructType:
    """The ``StructType`` of a schema given as one or as DDL text, parsed by Spark itself.

    Raises:
        InvalidRequest: no columns, or a name that appears twice.
        pyspark.errors.ParseException: the DDL is not one.
    """
    # An empty DataFrame is the one way to parse DDL that Spark Classic and Spark Connect share.
    struct = spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
    names = list(struct.names)
    if not names:
        raise InvalidRequest(f"{stage}: the schema has no columns; declare at least one", stage=stage)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(f"{stage}: the schema names {', '.join(twice)} twice; rename one", stage=stage)
    return struct


def arrow_schema(spark: SparkSession, struct: StructType, stage: str) -> pa.Schema:
    """Spark's own Arrow schema for ``struct``, with the session's time zone and string width.

    Raises:
        InvalidRequest: a type that Spark has no Arrow type for.
    """
    accepted = inspect.signature(to_arrow_schema).parameters
    options: dict[str, Any] = {
        "error_on_duplicated_field_names_in_struct": True,
        "timezone": spark.conf.get("spark.sql.session.timeZone"),
        "prefers_large_types": spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false")
        == "true",
    }
    # Spark 4.1 has no `timezone` yet: its timestamps are then labelled UTC, which is the same instant.
    options = {name: value for name, value in options.items() if name in accepted}
    fields = []
    for field in struct:
        try:
            fields.extend(to_arrow_schema(StructType([field]), **options))
        except (PySparkTypeError, UnsupportedOperationException, ValueError) as error:
            # A ValueError is pyarrow's, for elements without a type that must not be null: array() of Spark SQL.
            name = field.dataType.simpleString()
            helps = name.replace("void", "string") if "void" in name else "string"
            raise InvalidRequest(
                f"{stage}: Spark has no Arrow type for column {field.name!r} of type {name}; cast it before, for "
                f"example to {helps}",
                stage=stage,
                column=field.name,
            ) from error
    return pa.schema(fields)
