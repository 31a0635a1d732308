"""Rows of many types, and the content of a DataFrame in a form that two of them share if they are equal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_TYPE = {
    "boolean": "id % 2 = 0",
    "tinyint": "cast(id - 128 as tinyint)",
    "smallint": "cast(id - 32768 as smallint)",
    "int": "cast(2147483647 - id as int)",
    "bigint": "id - 9223372036854775807",
    "float": "cast(element_at(array('NaN', '-Infinity', '-0.0', '1e-45', null), cast(id + 1 as int)) as float)",
    "double": "cast(element_at(array('NaN', 'Infinity', '-0.0', '5e-324', null), cast(id + 1 as int)) as double)",
    "decimal(5,2)": "cast(id - 2 as decimal(5, 2)) / 3",
    "decimal(38,0)": "cast(concat(if(id % 2 = 0, '-', ''), repeat('9', 37), id) as decimal(38, 0))",
    "decimal(38,18)": "cast(id as decimal(38, 18)) / 7",
    "decimal(38,38)": "cast(concat('0.', repeat('9', 37), id) as decimal(38, 38))",
    "string": "if(id = 3, null, repeat('aü漢😀', cast(id as int)))",
    "char": "cast('ab' as char(5))",
    "varchar": "cast(id as varchar(5))",
    "collated string": "concat('aB', id) collate UTF8_LCASE",
    "string of ICU's collation": "concat('aB', id) collate UNICODE_CI",
    "binary": "if(id = 0, X'', unhex(concat('00ff', lpad(id, 2, '0'))))",
    "date": "date_add(date'0001-01-01', cast(id * 900000 as int))",
    "timestamp": "timestamp'1582-10-04 00:00:00.000001' + make_dt_interval(cast(id * 99999 as int))",
    "timestamp_ntz": "timestamp_ntz'0001-01-01 00:00:00.000001' + make_dt_interval(cast(id * 900000 as int))",
    "time": "time'23:59:59.999999' - make_dt_interval(0, cast(id as int))",
    "day-time interval": "make_dt_interval(cast(1 - id as int), 1, 2, 3.000004)",
    "hour-minute interval": "interval '10:05' hour to minute * id",
    "void": "null",
    "variant": """parse_json(concat('{"a": [', id, ', null, "x"]}'))""",
    "geometry": "st_geomfromwkb(X'0101000000000000000000f03f0000000000000040')",
    "geography": "st_geogfromwkb(X'0101000000000000000000f03f0000000000000040')",
    "array": "if(id = 2, null, array(id, null))",
    "array of arrays": "array(array('a', null), null, array())",
    "array of void": "array(null)",
    "array of decimal": "array(cast(id as decimal(38, 18)))",
    "array of timestamp": "array(timestamp'2020-03-29 02:30:00', null)",
    "array of timestamp_ntz": "array(timestamp_ntz'2020-03-29 02:30:00', null)",
    "array of time": "array(time'01:02:03')",
    "array of interval": "array(interval '3' day, null)",
    "array of variant": "array(parse_json('1'), null)",
    "array of collated": "array('a' collate UTF8_LCASE)",
    "map": "map('a', id, 'b', null)",
    "map of structs to arrays": "map(named_struct('x', id), array(id))",
    "map to variant": "map('k', parse_json('[]'))",
    "struct": "if(id = 1, null, named_struct('a', id, 'b', named_struct('c', array(map('k', id)), 'd', null)))",
    "struct of variant": "named_struct('v', parse_json('[1]'))",
    "struct of all widths": "named_struct('b', X'00ff', 'i', cast(id as tinyint), 'f', cast(id as float))",
    "struct of nothing": "from_json('{}', 'struct<>')",
}
"""A column of each of Spark's types, for ids from 0 to 4."""


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
