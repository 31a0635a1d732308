"""Pipeline: the user's methods, each a function of its step's module, which adds the step or runs the plan."""

from __future__ import annotations

from inspect import unwrap
from types import FunctionType

from pyspark.sql import DataFrame, SparkSession

from spark_client.connection import short_traces
from spark_client.jobs import Shuffles
from spark_client.scan import Scan

from . import (
    aggregating,
    combining,
    exchanging,
    finishing,
    grouping_steps,
    joining_steps,
    looking,
    mapping,
)
from .base import Steps, leg_of_frame, leg_of_scan
from .writer import PipelineWriter


@short_traces
class Pipeline(Steps):
    """Steps over DataFrames and scans; each method that does not run the plan returns a new pipeline."""

    @classmethod
    def of_frame(cls, shuffles: Shuffles, df: DataFrame) -> Pipeline:
        """A pipeline without steps over a DataFrame. Raises as :func:`leg_of_frame`."""
        leg = leg_of_frame(shuffles, df)
        return cls(shuffles, df.sparkSession, leg)

    @classmethod
    def of_scan(cls, shuffles: Shuffles, spark: SparkSession, scan: Scan) -> Pipeline:
        """A pipeline without steps over the parts of a scan."""
        return cls(shuffles, spark, leg_of_scan(spark, scan))

    @property
    def write(self) -> PipelineWriter:
        """Writes the rows to files, as PySpark's ``DataFrameWriter``, from tasks."""
        return PipelineWriter(self)

    mapInArrow = mapping.map_in_arrow
    mapInPandas = mapping.map_in_pandas
    filter = mapping.filter_rows
    where = mapping.filter_rows
    select = mapping.select_columns
    withColumn = mapping.with_column
    withColumns = mapping.with_columns
    withColumnRenamed = mapping.with_column_renamed
    withColumnsRenamed = mapping.with_columns_renamed
    drop = mapping.drop_columns

    repartition = exchanging.repartition
    repartitionByRange = exchanging.repartition_by_range
    sortWithinPartitions = exchanging.sort_within_partitions
    orderBy = exchanging.order_by
    sort = orderBy

    groupBy = grouping_steps.group_by
    groupby = groupBy
    agg = aggregating.aggregate_all
    distinct = aggregating.distinct
    dropDuplicates = aggregating.drop_duplicates
    drop_duplicates = dropDuplicates

    join = joining_steps.join
    union = combining.union
    unionAll = union
    unionByName = combining.union_by_name
    limit = combining.limit

    columns = property(looking.columns)
    dtypes = property(looking.dtypes)
    printSchema = looking.print_schema
    show = looking.show
    head = looking.head
    first = looking.first
    take = looking.take
    isEmpty = looking.is_empty
    collect = looking.collect
    count = finishing.count_rows
    toDF = finishing.to_frame
    toArrow = looking.to_arrow
    toPandas = looking.to_pandas
    toPolars = looking.to_polars
    toLocalIterator = finishing.to_local_iterator

    persist = finishing.persist
    unpersist = finishing.unpersist
    explain = finishing.explain
    statistics = finishing.statistics
    _repr_html_ = looking.as_html


# Python's errors name a function as it was defined, and users know only the method: by the first of its names.
for _name, _method in reversed(list(vars(Pipeline).items())):
    if isinstance(_method, FunctionType):
        for _function in (_method, unwrap(_method)):
            _function.__name__, _function.__qualname__ = _name, f"Pipeline.{_name}"
