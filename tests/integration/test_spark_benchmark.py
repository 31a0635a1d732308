"""The benchmarks of the Spark client run as their user starts them, and compare their results themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SUITES = {
    "small_jobs": (
        ["--only", "Parquet"],
        ["Spark", "Spark, pipelined", "exchange", "exchange, scan", "floor"],
    ),
    "collects": (["--only", "Python stage"], ["toArrow", "toPandas", "collect, streamed", "driver MiB"]),
    "results": ([], ["by number", "toDF", "source"]),
    "broadcasts": (["--only", "2 workers"], ["Spark", "flight", "workers MiB"]),
    "other_engines": (["--engines", "plain"], ["plain", "Spark", "exchange, scan"]),
}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_runs_in_a_plain_environment_and_shows_all_subjects(suite: str) -> None:
    options, shown = SUITES[suite]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    command = [sys.executable, "-m", "tests.benchmarks", f"on_spark.{suite}", "--", "--rounds", "1"]
    ran = subprocess.run(
        [*command, "--scale", "0.0001", *options],
        env=plain,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    for text in shown:
        assert text in ran.stdout, ran.stdout
