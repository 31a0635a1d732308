"""The benchmark of the exchange runs as its user starts it, and checks its own sums."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.benchmarks.exchange import JOBS

pytestmark = pytest.mark.spark


def test_the_exchange_is_measured_against_sparks_own_in_a_plain_environment() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks",
        "exchange",
        "--",
        "--rounds",
        "1",
        "--scale",
        "0.001",
    ]
    ran = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    for job in JOBS:
        assert ran.stdout.count(job) == 5, (
            "Spark, the exchange, that without checksums, no shuffle, and the feed"
        )
