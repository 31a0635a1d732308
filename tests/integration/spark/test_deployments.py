"""How executors get the package, on a cluster of two workers that do not have it otherwise: by ``--py-files``, by
``addArtifact`` on Spark Connect, from their image. Each runs an exchange, a broadcast and the data source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_client import ShuffleClient
from tests.support.bare_python import bare_python
from tests.support.server_process import ROOT, ServerProcess
from tests.support.spark_cluster import Cluster, connect_server, standalone_cluster

# Each starts a driver, and one of them a Connect server beside it.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

# A driver of its own for each: what it imports, and whether it is Classic or Connect, is decided once in a process.
JOB = """
import json, os, sys, time
from pathlib import Path
import pyarrow as pa
from pyspark.sql import SparkSession
from spark_client import ShuffleClient

how, meeting, file = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
builder = SparkSession.builder
for name, value in json.loads(sys.argv[4]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert ("connect" in type(spark).__module__) == (how == "artifact")

def where(batches):
    # Both executors must have come: the one that came first waits.
    me = Path("/proc/%d/stat" % os.getppid()).read_text().rpartition(")")[2].split()[1]
    (meeting / me).touch()
    deadline = time.monotonic() + 90
    while len(list(meeting.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    import spark_client
    for batch in batches:
        names = [spark_client.__file__] * len(batch)
        yield pa.record_batch({"id": batch.column("id"), "executor": [me] * len(batch), "client": names})

shuffle = ShuffleClient.get(spark)
placed = (
    shuffle.pipeline(spark.range(0, 1000, 1, 2).selectExpr("id % 10 as id"))
    .mapInArrow(where, "id long, executor string, client string")
    .exchange(2, "id")
)
refused = None
if how != "installed":
    try:
        placed.toDF()
    except Exception as error:
        refused = str(error)
if how == "artifact":
    spark.addArtifact(file, pyfile=True)
    shuffle.register(spark)
names = shuffle.broadcast(pa.table({"name": [f"n{number}" for number in range(10)]}), "names")

def total(keys, table):
    name = names.table().column("name")[keys[0].as_py()].as_py()
    return pa.table({
        "name": [name],
        "n": [len(table)],
        "executors": [sorted(set(table["executor"].to_pylist()))],
        "clients": [sorted(set(table["client"].to_pylist()))],
    })

df = placed.applyInArrow(total, "name string, n long, executors array<string>, clients array<string>").toDF()
rows = [row.asDict() for row in df.collect()]
spark.range(0, 50, 1, 2).write.format("flight").mode("overwrite").save("fifty")
again = spark.read.format("flight").load("fifty").count()
spark.conf.set("spark.flight.shuffle.location", "embedded")
try:
    ShuffleClient.get(spark)
except Exception as error:
    embedded = str(error)
print(json.dumps({"refused": refused, "rows": rows, "again": again, "embedded": embedded}))
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes."""
    file = tmp_path_factory.mktemp("package") / "flight-shuffle.zip"
    command = [str(Path(sys.executable).with_name("flight-shuffle")), "zip", str(file)]
    subprocess.run(command, check=True, cwd=file.parent)
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(directory)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    (built,) = directory.glob("*.whl")
    return built


def image(directory: Path, wheel: Path) -> Path:
    """An interpreter with the wheel installed."""
    python = bare_python(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return python


class Driver:
    """Runs the job with settings for the cluster and a server of its own."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.settings = {
            "spark.master": cluster.master,
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "1",
        }
        (directory / "meeting").mkdir()
        (directory / "job.py").write_text(JOB)
        self.directory = directory

    def run(self, how: str, command: list[str], python: Path, file: str = "") -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        with ExitStack() as stack:
            server = stack.enter_context(ServerProcess.start())
            settings = self.settings | {"spark.flight.shuffle.location": server.location}
            # For spark-submit; the others get theirs from the builder, or have a Connect server that has them.
            properties = self.directory / "spark.properties"
            properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
            if how == "artifact":
                url = stack.enter_context(connect_server(settings, {"PYSPARK_PYTHON": str(python)}))
                settings = {"spark.remote": url}
            elif command[0].endswith("spark-submit"):
                settings = {}
            arguments = [how, str(self.directory / "meeting"), file, json.dumps(settings)]
            done = subprocess.run(
                [*command, "job.py", *arguments],
                cwd=self.directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-6000:]
            with ShuffleClient(server.location) as client:
                assert [each.name for each in client.datasets()] == ["fifty"], (
                    "the driver's end drops its own"
                )
            assert server.terminate() == 0
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert sorted((row["name"], row["n"]) for row in answer["rows"]) == [
            (f"n{k}", 100) for k in range(10)
        ]
        assert len({each for row in answer["rows"] for each in row["executors"]}) == 2
        assert answer["again"] == 50
        assert "run elsewhere: start a flight-server that all of them reach" in answer["embedded"]
        return answer


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Driver:
    return Driver(cluster, tmp_path)


def clients(answer: dict[str, Any]) -> set[str]:
    """Where the tasks had the package from."""
    return {each for row in answer["rows"] for each in row["clients"]}


def test_the_zip_of_py_files_is_all_that_driver_and_executors_need(
    driver: Driver, bare: Path, package: Path
) -> None:
    import pyspark

    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    command = [submit, "--properties-file", "spark.properties", "--py-files", str(package)]
    answer = driver.run("installed", command, bare)
    assert all("flight-shuffle.zip/spark_client" in each for each in clients(answer)), clients(answer)


def test_an_artifact_of_spark_connect_reaches_both_executors(
    driver: Driver, bare: Path, package: Path
) -> None:
    for module in ("grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(module, reason="PySpark needs it for Connect")
    answer = driver.run("artifact", [sys.executable], bare, str(package))
    assert "has no package 'spark_client': call ship(spark)" in answer["refused"]
    assert all("flight-shuffle.zip/spark_client" in each for each in clients(answer)), clients(answer)


def test_executors_use_what_their_image_has(driver: Driver, tmp_path: Path, wheel: Path) -> None:
    python = image(tmp_path / "image", wheel)
    answer = driver.run("installed", [str(python)], python)
    assert all(each.startswith(str(tmp_path / "image")) for each in clients(answer)), clients(answer)
