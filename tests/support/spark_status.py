"""What a Spark context has run so far, for comparisons of before and after.

A thread of Spark writes its status some time after the events, and forgets the oldest of a thousand jobs and of a
thousand queries. The numbers here do not depend on either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.polling import DEADLINE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jobs(spark: SparkSession) -> int:
    """The number of the next job."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


def queries(spark: SparkSession) -> int:
    """The number of the newest query, which is one of its own if there is no other."""
    status_of(spark)
    session: Any = spark
    listed = session._jsparkSession.sharedState().statusStore().executionsList()
    if listed.size():
        return int(listed.last().executionId())
    spark.range(1).count()
    return queries(spark)


def status_of(spark: SparkSession) -> Any:
    """The context's status, with all that has happened before."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty(int(DEADLINE_SECONDS * 1000))
    return context.statusStore()
