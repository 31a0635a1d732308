"""Lookups through Spark Connect, whose streaming queries do not get a session's artifacts: workers have the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.python_program import output_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

# In a process of its own: PySpark decides once per process whether it is Classic or Connect.
JOB = """
import json, os
import pyarrow as pa
from pyspark.sql import SparkSession
from spark_client import Copies, ShuffleClient
from spark_client.changelogs import latest

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
SCHEMA = pa.schema([("currency", pa.string()), ("time", pa.int64()), ("rate", pa.float64())])

with ShuffleClient.embedded(data_dir="data", copies=Copies((os.path.abspath("copies"),))) as client:
    os.makedirs("copies")
    rates = client.changelog("rates", SCHEMA, key="currency", order_by="time", keep=latest())
    rates.put(pa.table([["EUR", "USD"], [1, 1], [1.1, 1.0]], schema=SCHEMA))
    orders = spark.createDataFrame([(1, "EUR"), (2, "CHF"), (3, "USD")], "id int, currency string")
    joined = sorted(tuple(row) for row in client.lookup(orders, "rates", "currency").collect())

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    keyed = stream.selectExpr("value", "array('EUR', 'CHF', 'USD')[value % 3] as currency")
    query = client.lookup(keyed, "rates", "currency").writeStream.format("memory").queryName("seen").start()
    while spark.table("seen").count() < 6 and query.exception() is None:
        pass
    assert query.exception() is None, query.exception()
    query.stop()
    seen = {tuple(row) for row in spark.table("seen").select("currency", "rate").collect()}
    print(json.dumps({"joined": joined, "seen": sorted(seen)}))
spark.stop()
"""


def test_a_lookup_needs_no_jvm_in_the_driver(java_home: str, tmp_path: Path) -> None:
    for package in ("grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="PySpark needs it for Connect")
    # PySpark then takes any free port in place of 15002.
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
    printed = output_of(JOB, cwd=tmp_path, environment=environment)
    answer = json.loads(printed.splitlines()[-1])
    assert answer["joined"] == [["CHF", 2, None, None], ["EUR", 1, 1, 1.1], ["USD", 3, 1, 1.0]]
    assert answer["seen"] == [["CHF", None], ["EUR", 1.1], ["USD", 1.0]]
