"""A job that shows whether a cluster and its servers work: Python stages with an exchange, checked against Spark alone.

``spark-submit --master … --conf spark.flight.shuffle.location=grpc://flight:8815 exchange_job.py``; without a location,
servers in the executors. Exits with 1 if one row differs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from spark_client import ShuffleClient

ROWS, USERS, PARTITIONS = 2_000_000, 10_000, 16


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A Python stage before the exchange."""
    for batch in batches:
        yield batch.set_column(1, "amount", pc.multiply(batch["amount"], 2))


def total(table: pa.Table) -> pa.Table:
    """A Python stage after it, called with all rows of one user."""
    return pa.table({"user_id": table["user_id"][:1], "amount": [pc.sum(table["amount"]).as_py()]})


def main() -> int:
    """Run the job; the exit status."""
    spark = SparkSession.builder.appName("exchange_job").getOrCreate()
    events = spark.range(ROWS).selectExpr(f"id % {USERS} as user_id", "id % 97 as amount")
    with ShuffleClient.getOrCreate(spark) as client:
        begun = time.monotonic()
        exchanged = client.pipeline(events).mapInArrow(doubled, "user_id long, amount long")
        groups = exchanged.groupBy("user_id", numPartitions=PARTITIONS)
        totals = groups.applyInArrow(total, "user_id long, amount long")
        ours = sorted(tuple(row) for row in totals.toDF().collect())
        seconds = time.monotonic() - begun
    theirs = sorted(tuple(row) for row in events.groupBy("user_id").agg({"amount": "sum"}).collect())
    same = ours == [(user, 2 * amount) for user, amount in theirs]
    print(
        f"{ROWS:,} rows exchanged in {seconds:.1f} s; by Spark alone the answer {'is the same' if same else 'DIFFERS'}"
    )
    spark.stop()
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
