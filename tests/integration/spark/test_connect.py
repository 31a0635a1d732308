"""Exchange, broadcast, scan and collect through Spark Connect: a server of pip's PySpark, a client that has no JVM, and
workers that do not have the package until it is shipped.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.bare_python import bare_python
from tests.support.python_program import output_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# In a process of its own: PySpark decides once per process whether it is Classic or Connect.
JOB = """
import json, os, time
from types import SimpleNamespace
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from spark_client import Copies, ShuffleClient
from spark_client.jobs import cores, progress

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__

def clean(batches):
    for batch in batches:
        yield batch.filter(pa.compute.is_valid(batch.column("k")))

def slowly(batches):
    for batch in batches:
        time.sleep(1.5)
        yield batch

def texts_of_progress(client):
    texts = []
    progress._in_notebook, progress._Notebook = lambda: True, lambda: SimpleNamespace(show=texts.append)
    client.pipeline(spark.range(0, 100, 1, 4)).mapInArrow(slowly, "id long").repartition(2).toDF()
    progress._in_notebook = lambda: False
    return texts

# Copies in a relative directory: the tasks' own one, as on another host.
os.makedirs("driver")
os.chdir("driver")

def settings(client):
    spark.conf.set("spark.flight.shuffle.location", client.location)
    spark.conf.set("spark.flight.shuffle.token", "geheim")
    try:
        ShuffleClient.getOrCreate(spark)
    except Exception as error:
        hidden = str(error)
    assert ShuffleClient.getOrCreate(spark, token="geheim")._server.token == "geheim"
    spark.conf.unset("spark.flight.shuffle.token")
    token = client.headers["authorization"].removeprefix("Bearer ")
    found = ShuffleClient.getOrCreate(spark, token=token)
    assert found is ShuffleClient.getOrCreate(spark, token=token)
    found.put("three", pa.table({"n": [1, 2, 3]}))
    return hidden, spark.read.format("flight").load("three").count()

with ShuffleClient.embedded(copies=Copies(("copies",))) as client:
    try:
        client.pipeline(spark.range(10)).repartition(2, "id").toDF()
    except Exception as error:
        missing = str(error)
    client.ship(spark)
    client.ship(spark)
    df = spark.range(0, 1000, 1, 4).selectExpr("id", "if(id % 10 = 0, null, concat('k', id % 7)) as k")
    names = client.broadcast(spark.sql("select concat('k', id) as k, id * 10 as weight from range(7)"), "names")

    def total(keys, table):
        weights = dict(zip(*(names.table().column(name).to_pylist() for name in ("k", "weight"))))
        return pa.table({"k": [keys[0].as_py()], "n": [table.num_rows], "weight": [weights[keys[0].as_py()]]})

    out = (
        client.pipeline(df)
        .mapInArrow(clean, "id long, k string")
        .repartition(3, "k", name="users, by k")  # a tag of the job here
        .groupBy("k")
        .applyInArrow(total, "k string, n long, weight long")
        .toDF()
    )
    rows = sorted(tuple(row) for row in out.collect())

    where = sql.spark_partition_id().alias("p")
    placed = client.pipeline(df).repartition(5, "k", "id").toDF().select("id", where).collect()
    expected = df.repartition(5, "k", "id").select("id", where).collect()
    client.release(out.filter("n > 1"))
    hidden, shown = settings(client)
    pq.write_table(pa.table({"id": range(100)}), "x.parquet")
    scanned = client.scan("x.parquet", filter=[("id", "<", 50)]).repartition(3, "id")
    collected = sorted(client.collect(scanned).read_all()["id"].to_pylist())
    small = client.scan("x.parquet").agg(n=("*", "count"))
    counted = [*small.toArrow()["n"].to_pylist(), small.statistics().exchanges[0].tasks]
    same = {tuple(row) for row in placed} == {tuple(row) for row in expected}
    answer = {"missing": missing, "rows": rows, "same": same, "datasets": len(client.datasets("exchange/"))}
    answer |= {"cores": cores(spark), "progress": texts_of_progress(client)}
    answer |= {"counted": counted, "collected": collected, "hidden": hidden, "shown": shown}
    answer |= {"last": [row.id for row in client.pipeline(df).orderBy("id desc").take(2)]}
    client.pipeline(df).repartition(2, "k").write.partitionBy("k").parquet("written")
    answer |= {"written": spark.read.parquet(os.path.abspath("written")).where("k = 'k3'").count()}
    try:
        client.pipeline(df).filter(sql.col("id") > 5)
    except Exception as error:
        answer |= {"refused": str(error)}
    names.unpersist()
    print(json.dumps(answer))
spark.stop()
"""


def test_exchange_groups_and_broadcast_work_without_a_jvm_in_the_driver(
    java_home: str, tmp_path: Path
) -> None:
    for package in ("grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="PySpark needs it for Connect")
    # PySpark then takes any free port in place of 15002.
    environment = {"PYSPARK_PYTHON": str(bare_python(tmp_path / "bare")), "SPARK_TESTING": "1"}
    printed = output_of(JOB, cwd=tmp_path, environment=environment)
    answer = json.loads(printed.splitlines()[-1])
    assert "has no package 'spark_client': call ship(spark)" in answer["missing"]
    counts = [sum(1 for n in range(1000) if n % 10 and n % 7 == k) for k in range(7)]
    assert answer["rows"] == [[f"k{k}", counts[k], 10 * k] for k in range(7)]
    assert answer["same"], "rows are where Spark's own repartition puts them"
    assert answer["datasets"] == 1
    assert answer["collected"] == list(range(50))
    assert answer["counted"] == [100, 0], "the driver has done it"
    assert answer["cores"] == 2
    assert any("  2 of 4 tasks, 2 running  " in text for text in answer["progress"])
    assert "  4 tasks  100 rows  " in answer["progress"][-1]
    assert "spark.flight.shuffle.token is set, but Spark Connect does not show it" in answer["hidden"]
    assert answer["shown"] == 3
    assert answer["last"] == [999, 998]
    assert answer["written"] == counts[3]
    assert "is a Column of Spark; tasks evaluate Arrow's expressions: pc.field(" in answer["refused"]
