"""Rows of many types, and the content of a DataFrame in a form that two of them share if they are equal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def plain(value: Any) -> Any:
    """Floats to nine digits; a list's order is of no account."""
    if isinstance(value, list):
        return sorted(map(str, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}") + 0.0
    return value


def content(df: DataFrame) -> list[str]:
    return sorted(repr([plain(value) for value in row]) for row in df.collect())


def everything(spark: SparkSession) -> DataFrame:
    return spark.range(0, 200, 1, 2).selectExpr(
        "id",
        "int(id % 3) as k",
        "if(id % 5 = 0, null, cast(id % 100 as tinyint)) as tiny",
        "if(id % 7 = 0, null, id * 3) as big",
        "if(id % 4 = 0, null, id / 8) as dbl",
        "float(id) as flt",
        "if(id % 3 = 0, null, cast(id as decimal(20, 4))) as dec",
        "if(id % 2 = 0, null, concat('t', id)) as txt",
        "cast(concat('b', id) as binary) as bin",
        "if(id % 6 = 0, null, id % 2 = 0) as flag",
        "if(id % 9 = 0, null, date_add(date'1500-01-01', int(id * 1000))) as day",
        "if(id % 8 = 0, null, timestamp_seconds(id * 1000000)) as ts",
        "cast(timestamp_seconds(id * 1000000) as timestamp_ntz) as ntz",
        "interval '1' hour * id as step",
        "if(id % 10 = 0, null, array(id, null, id + 1)) as arr",
        "if(id % 10 = 1, null, named_struct('a', id, 'b', array(named_struct('c', timestamp_seconds(id))))) as st",
        "map(concat('k', id), if(id % 2 = 0, null, double(id))) as mp",
    )
