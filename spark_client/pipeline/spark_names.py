"""Spark's names: the pipeline's counterparts of a DataFrame's methods, for newcomers."""

from __future__ import annotations

from pyspark.sql import DataFrame

_AGGREGATE = 'aggregate({"amount": "sum"}, by="key") does it with functions of columns'
_GROUP = f'{_AGGREGATE}; exchange(n, "key").applyInArrow(fn, schema) gives a function the rows of each key'
_SORT = 'exchange(n, sort=["time desc"]) sorts each partition, exchange(1, sort=…).limit(n) gives the first rows of all'
_SELECT = 'select("a", b="old_name", c=pc.field("a") + 1) names, renames and computes columns'
_EXCHANGE = 'exchange(n, "key") does it'

_INSTEAD = {
    "agg": _AGGREGATE,
    "alias": _SELECT,
    "cache": "persist() keeps what the last exchange wrote",
    "columns": "schema.names has them",
    "cube": _AGGREGATE,
    "drop": _SELECT,
    "dropDuplicates": "distinct(*columns) does it",
    "drop_duplicates": "distinct(*columns) does it",
    "dtypes": "schema has them",
    "first": f"limit(1).collect() does it; {_SORT}",
    "foreachPartition": "mapInArrow(fn, schema) gives a function the batches of each partition",
    "groupBy": _GROUP,
    "groupby": _GROUP,
    "head": f"limit(n).collect() does it; {_SORT}",
    "isEmpty": "limit(1).count() == 0 says it",
    "orderBy": _SORT,
    "printSchema": "schema has it",
    "repartition": _EXCHANGE,
    "repartitionByRange": 'exchange(boundaries=p.sample_boundaries(n, "time"), by="time") does it',
    "rollup": _AGGREGATE,
    "selectExpr": _SELECT,
    "show": "toDF().show() prints rows, explain() the plan",
    "sort": _SORT,
    "sortWithinPartitions": 'exchange(n, "key", sort=["time"]) does it',
    "take": f"limit(n).collect() does it; {_SORT}",
    "toArrow": "collect().read_all() gives a table",
    "toLocalIterator": "collect() gives a reader of Arrow batches",
    "toPandas": "collect().read_pandas() gives one DataFrame of pandas",
    "unionAll": "union(other) does it",
    "unionByName": "union(other) matches columns by position: select them in one order before",
    "where": "filter(pc.field(name) > value) does it",
    "withColumn": _SELECT,
    "withColumnRenamed": _SELECT,
    "withColumns": _SELECT,
    "withColumnsRenamed": _SELECT,
}


def instead(name: str) -> str | None:
    """The pipeline's counterpart of a DataFrame's method or property; None for any other name."""
    if name.startswith("_") or not hasattr(DataFrame, name):
        return None
    return _INSTEAD.get(name, "toDF() runs it and gives the DataFrame, which has that")
