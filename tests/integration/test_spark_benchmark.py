"""A benchmark of the Spark client runs as its user starts it, and compares its results itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWN = ["Spark", "Spark, pipelined", "exchange", "exchange, pipelined", "floor"]


@pytest.mark.slow
@pytest.mark.spark
def test_a_suite_runs_in_a_plain_environment_and_shows_all_subjects() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    command = [sys.executable, "-m", "tests.benchmarks", "on_spark.small_jobs", "--", "--rounds", "1"]
    ran = subprocess.run(
        [*command, "--only", "range"],
        env=plain,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    for text in SHOWN:
        assert text in ran.stdout, ran.stdout
