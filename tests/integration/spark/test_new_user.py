"""A new user on a cluster: nothing but the wheel and what it asks for is installed, and nothing is set."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.spark_cluster import Cluster, standalone_cluster
from tests.support.wheels import build_wheel, install

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("user") / "venv", "server", "spark")


@pytest.fixture(scope="module")
def cluster(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def submit(
    python: Path, cluster: Cluster, directory: Path, executors: Path, *confs: str
) -> subprocess.CompletedProcess[str]:
    """The README's example as a program, with the line for a cluster."""
    code = pages.blocks()["spark"].replace("ShuffleClient.embedded()", "ShuffleClient.get(spark)")
    (job := directory / "job.py").write_text(code)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK_", "SPARK_"))}
    # The cluster is this host alone; executors are as small as its workers.
    options = ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m", "spark.ui.enabled=false", *confs)
    arguments = [part for option in options for part in ("--conf", option)]
    environment |= {
        "PYSPARK_PYTHON": str(executors),
        "PYSPARK_SUBMIT_ARGS": " ".join(["--master", cluster.master, *arguments, "pyspark-shell"]),
    }
    return subprocess.run(
        [python, job],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of the program's error; Spark may log after it."""
    assert done.returncode
    return next(line for line in reversed(done.stderr.splitlines()) if "InvalidRequest: " in line)


def test_the_readmes_lines_are_all_that_a_cluster_needs(
    python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    done = submit(python, cluster, tmp_path, python)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(pages.printed()["spark"])


def test_what_executors_lack_is_said_with_the_line_that_brings_it(
    python: Path, wheel: Path, cluster: Cluster, tmp_path: Path
) -> None:
    executors = install(wheel, tmp_path / "venv", "spark")
    done = submit(python, cluster, tmp_path, executors)
    said = error_of(done)
    assert "InvalidRequest: no server can run in this executor: its Python" in said
    assert f"({executors} on " in said
    assert "has no aiohttp, grpc" in said
    assert "Put `pip install 'flight-shuffle[server]'` into the executors' image" in said


@pytest.mark.long
def test_a_limited_address_space_is_said_with_the_setting(
    python: Path, cluster: Cluster, tmp_path: Path
) -> None:
    done = submit(python, cluster, tmp_path, python, "spark.executor.pyspark.memory=512m")
    assert "leave spark.executor.pyspark.memory out, or raise it" in error_of(done)
