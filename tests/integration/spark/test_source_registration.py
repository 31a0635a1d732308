"""How Spark comes to know the format ``flight``: by itself, or by a call; and tasks that lack the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_client.executors import zipped
from tests.support.bare_python import bare_python
from tests.support.rooms import ROOT
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FOUND = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
at = {"location": sys.argv[1]}
spark.range(3).write.format("flight").options(**at).mode("overwrite").save("d")
print("found", spark.read.format("flight").options(**at).load("d").count())
"""


def run(code: str, server: ServerProcess, directory: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, server.location],
        cwd=directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_spark_finds_the_format_by_itself_where_the_zip_is_on_its_path(
    java_home: str, flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    (tmp_path / "client.zip").write_bytes(zipped())
    # The workers have this zip, and nothing of ours beside it.
    python = bare_python(tmp_path / "bare")
    environment = {"PYTHONPATH": str(tmp_path / "client.zip"), "PYSPARK_PYTHON": str(python)}
    assert run(FOUND, flight_server_process(), tmp_path, **environment).splitlines()[-1] == "found 3"


def test_a_module_that_cannot_load_the_client_is_no_error(tmp_path: Path) -> None:
    file = ROOT / "spark_client" / "datasource" / "pyspark_flight_shuffle.py"
    (tmp_path / "pyspark_flight_shuffle.py").write_bytes(file.read_bytes())
    code = """
import sys
sys.modules["spark_client"] = None
import pyspark_flight_shuffle
assert not hasattr(pyspark_flight_shuffle, "DefaultSource")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
