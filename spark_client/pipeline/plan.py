"""Pipeline: the user's methods, each a function of its step's module, which adds the step or runs the plan."""

from __future__ import annotations

from inspect import unwrap
from types import FunctionType

from pyspark.sql import DataFrame, SparkSession

from spark_client.connection import short_traces
from spark_client.jobs import Shuffles
from spark_client.scan import Scan

from . import aggregating, combining, exchanging, finishing, grouping_steps, joining_steps, mapping
from .base import Steps, leg_of_frame, leg_of_scan


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

    mapInArrow = mapping.map_in_arrow  # noqa: N815 - Spark's names, as below
    mapInPandas = mapping.map_in_pandas  # noqa: N815
    filter = mapping.filter_rows
    select = mapping.select_columns
    applyInArrow = grouping_steps.apply_in_arrow  # noqa: N815
    applyInPandas = grouping_steps.apply_in_pandas  # noqa: N815
    join = joining_steps.join
    cogroup = joining_steps.cogroup
    aggregate = aggregating.aggregate
    distinct = aggregating.distinct
    union = combining.union
    limit = combining.limit
    count = finishing.count_rows
    exchange = exchanging.add_exchange
    sample_boundaries = exchanging.sample_boundaries
    toDF = finishing.to_frame  # noqa: N815
    collect = finishing.collect
    persist = finishing.persist
    unpersist = finishing.unpersist
    explain = finishing.explain
    statistics = finishing.statistics


# Python's errors name a function as it was defined, and users know only the method.
for _name, _method in vars(Pipeline).items():
    if isinstance(_method, FunctionType):
        for _function in (_method, unwrap(_method)):
            _function.__name__, _function.__qualname__ = _name, f"Pipeline.{_name}"
