"""The first leg of a plan: the rows of a DataFrame, or of a scan."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from spark_client.arrow import Declared
from spark_client.jobs import Shares, Shuffles, arrow_schema, check_frame, declared_struct
from spark_client.scan import Scan

from .nodes import Input, Leg, PlanPart


def leg_of_frame(shuffles: Shuffles, df: DataFrame) -> Leg:
    """The rows of a DataFrame. Raises InvalidRequest: as :func:`check_frame` and :func:`arrow_schema`."""
    check_frame(df, "the DataFrame")
    spark = df.sparkSession
    shuffles.sessions.used(spark)
    struct = declared_struct(spark, df.schema, "the DataFrame")
    declared = Declared("the DataFrame", arrow_schema(spark, struct, "the DataFrame"))
    return Leg((PlanPart(Input(df, "DataFrame")),), struct, declared)


def leg_of_scan(spark: SparkSession, scan: Scan) -> Leg:
    """The rows of a scan, which the first tasks read."""
    start = Input.of(spark, str(scan), scan.splits, Shares.each(len(scan.splits)), scan.batch_rows)
    return Leg((PlanPart(start),), scan.struct, scan.declared)
