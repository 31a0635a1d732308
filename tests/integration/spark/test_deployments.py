"""How executors get the package: from their image, by ``ship``, by ``--py-files``; each on the cluster of all tests.

``test_connect``, in every run, has the shipping of Spark Connect.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from spark_client import ShuffleClient
from spark_client.executors.shipping import zipped
from tests.support import pages
from tests.support.bare_python import bare_python
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import Cluster
from tests.support.spark_session import local_session
from tests.support.wheels import build_wheel, install

pytestmark = [pytest.mark.spark, pytest.mark.long]

OF_README = pages.blocks()["before"] + pages.blocks()["spark"]
OF_SOURCE = """
from pyspark.sql import SparkSession
from spark_client import FlightDataSource
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(FlightDataSource)
at = {"location": spark.conf.get("spark.flight.shuffle.location")}
spark.range(3).write.format("flight").options(**at).mode("overwrite").save("d")
print("found", spark.read.format("flight").options(**at).load("d").count())
"""


def output(command: list[str], job: str, directory: Path, python: Path, **environment: str) -> str:
    """What a program prints whose driver and executors have that interpreter."""
    (directory / "job.py").write_text(job)
    set_by_tests = ("PYTHON", "PYSPARK_", "SPARK_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(set_by_tests)}
    pythons = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    done = subprocess.run(
        [*command, "job.py"],
        cwd=directory,
        env=own | pythons | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    # Spark's launcher sends what the program says to its own output.
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def options(cluster: Cluster, **settings: str) -> list[str]:
    # The cluster is this host alone; executors are as small as its workers.
    small = {"driver.host": "127.0.0.1", "executor.memory": "512m", "ui.enabled": "false", **settings}
    confs = [part for name, value in small.items() for part in ("--conf", f"spark.{name}={value}")]
    return ["--master", cluster.master, *confs]


def test_a_new_user_needs_the_readmes_lines_and_what_they_install(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing is set, and nothing but the wheel and what it asks for is installed."""
    python = install(build_wheel(tmp_path), tmp_path / "venv", "server", "spark")
    submit = " ".join([*options(cluster), "pyspark-shell"])
    shown = output([str(python)], OF_README, tmp_path, python, PYSPARK_SUBMIT_ARGS=submit)
    assert shown.startswith(pages.printed()["spark"])


def test_the_zip_of_py_files_is_all_that_driver_and_executors_need(
    cluster: Cluster, tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    (tmp_path / "flight-shuffle.zip").write_bytes(zipped())
    location = {"flight.shuffle.location": flight_server_process().location}
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    command = [submit, *options(cluster, **location), "--py-files", "flight-shuffle.zip"]
    shown = output(command, OF_SOURCE + OF_README, tmp_path, bare_python(tmp_path / "bare"))
    assert pages.printed()["spark"] in shown
    assert "found 3" in shown.splitlines()


def test_what_executors_lack_is_said_and_then_shipped(
    cluster: Cluster, tmp_path: Path, flight_server_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python(tmp_path / "bare")))
    settings = {name: value for name, value in cluster.settings.items() if "PYTHONPATH" not in name}
    settings["python__daemon__module"] = "pyspark.daemon"
    server: ServerProcess = flight_server_process(http_port=0)
    with local_session(cluster.master, **settings) as spark, ShuffleClient(server.location) as client:
        df = spark.range(0, 1000, 1, 2).selectExpr("id % 10 as k", "id")

        def doubled(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield pa.record_batch(
                    [batch.column("k"), pa.compute.multiply(batch.column("id"), 2)], ["k", "id"]
                )

        placed = client.pipeline(df).mapInArrow(doubled, "k long, id long").repartition(3, "k")
        with pytest.raises(Exception, match=r"has no package 'spark_client': call ship\(spark\)"):
            placed.toDF()

        client.ship(spark)
        client.ship(spark)
        names = client.broadcast(spark.range(0, 10, 1, 2).selectExpr("concat('n', id) as name"), "names")

        def total(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
            name = names.table().column("name")[keys[0].as_py()].as_py()
            return pa.table({"name": [name], "sum": [pa.compute.sum(table["id"]).as_py()]})

        out = placed.groupBy("k").applyInArrow(total, "name string, sum long").toDF().collect()
        assert {(row.name, row["sum"]) for row in out} == {
            (f"n{k}", sum(2 * id_ for id_ in range(k, 1000, 10))) for k in range(10)
        }
