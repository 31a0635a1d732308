"""The images, built by their Dockerfile's own steps from nothing, and started as an engine would (``make image``)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import image_root
from tests.support.image_root import Root
from tests.support.polling import eventually
from tests.support.server_process import ROOT

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(3600)]

BASE = ROOT / "build" / "images" / "base"
PUT_AND_GET = """
import pyarrow as pa
from spark_client import ShuffleClient
with ShuffleClient("grpc://127.0.0.1:8815", token="let me in") as client:
    client.put("numbers", pa.table({"n": range(1000)}), mode="overwrite")
    print(client.get("numbers").read_all()["n"].to_pylist() == list(range(1000)))
"""
LOCAL_JOB = ["spark-submit", "--master", "local[2]", "--conf", "spark.flight.shuffle.location=embedded"]


@pytest.fixture(scope="module")
def base() -> Path:
    reason = image_root.missing()
    if reason is not None:
        pytest.skip(reason)
    BASE.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    image_root.debian(BASE)
    print(f"\nDebian: {time.monotonic() - begun:.0f} s (0 where it was there)")
    return BASE


def built(target: str, base: Path, directory: Path) -> Iterator[Root]:
    begun = time.monotonic()
    root = image_root.build(ROOT / "Dockerfile", target, base, directory)
    bare = Root(base, root.image).megabytes
    print(
        f"\n{target}: {time.monotonic() - begun:.0f} s, {root.megabytes - bare} MB above {bare} MB of Debian"
    )
    yield root
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def server(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    yield from built("server", base, tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def spark(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    yield from built("spark", base, tmp_path_factory.mktemp("spark"))


def test_the_server_s_image_becomes_healthy_serves_and_ends_when_it_is_stopped(
    server: Root, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with image_root.started(server, [], {"FLIGHT_SERVER_TOKEN": "let me in"}, log) as container:
        eventually(lambda: container.inside(server.image.health_check).returncode, 0, deadline_seconds=120)
        answer = container.inside(["python", "-"], PUT_AND_GET)
        assert answer.stdout == "True\n", answer.stderr
        assert container.inside(["id", "--user"]).stdout == f"{server.image.user.split(':')[0]}\n"
        assert container.inside(["touch", "/opt/flight-server/new"]).returncode != 0
        assert container.stop() == 0, log.read_text()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines() if line.startswith("{")]
    assert "ready" in events


def test_the_spark_image_runs_a_job_with_the_client(spark: Root, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = (ROOT / "deploy" / "exchange_job.py").read_text()
    # A shell as the container's first process, so that the job can be handed to it.
    with image_root.started(spark, ["sleep", "infinity"], {}, log) as container:
        assert container.inside(["tee", "/tmp/exchange_job.py"], job).returncode == 0
        done = container.inside([*spark.image.entry[3:], *LOCAL_JOB, "/tmp/exchange_job.py"])
        assert done.returncode == 0, done.stderr[-4000:]
        assert "the same" in done.stdout
        assert container.stop() != 0  # sleep has no handler; tini hands the signal on


def test_the_spark_image_runs_a_master_a_worker_and_a_job_on_them(spark: Root, tmp_path: Path) -> None:
    job = (ROOT / "deploy" / "exchange_job.py").read_text()
    address = ["--host", "127.0.0.1", "--port", "7077"]
    entry = spark.image.entry[3:]
    with image_root.started(spark, ["master", *address], {}, tmp_path / "log") as container:
        log = tmp_path / "log"
        eventually(lambda: "elected leader" in log.read_text(), expected=True, deadline_seconds=240)
        worker = [
            *entry,
            "worker",
            "--host",
            "127.0.0.1",
            "--cores",
            "2",
            "--memory",
            "1g",
            "spark://127.0.0.1:7077",
        ]
        container.inside(["sh", "-c", f"nohup {' '.join(worker)} >/dev/null 2>&1 &"])
        assert container.inside(["tee", "/tmp/exchange_job.py"], job).returncode == 0
        submit = [
            "spark-submit",
            "--master",
            "spark://127.0.0.1:7077",
            "--conf",
            "spark.executor.memory=512m",
        ]
        done = container.inside([*entry, *submit, "/tmp/exchange_job.py"])
        assert done.returncode == 0, done.stderr[-4000:]
        assert "the same" in done.stdout
        container.stop()


def test_the_spark_image_starts_an_executor_of_kubernetes_which_asks_for_its_driver(
    spark: Root, tmp_path: Path
) -> None:
    given = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:9",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_APPLICATION_ID": "application",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=9",
    }
    with image_root.started(spark, ["sleep", "infinity"], {}, tmp_path / "log") as container:
        variables = [f"{name}={value}" for name, value in given.items()]
        ended = container.inside(["env", *variables, *spark.image.entry[3:], "executor"])
    assert ended.returncode != 0
    assert "Failed to connect to /127.0.0.1:9" in ended.stderr
