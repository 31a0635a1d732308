"""From where the daemon of forked workers imports PySpark."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from spark_client.executors import forked_workers


def test_an_installed_pyspark_comes_before_the_zip_that_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = Path(pyspark.__file__).parent / "python" / "lib"
    zips = [str(library / name) for name in ("pyspark.zip", "py4j-src.zip")]
    # A job's own, and another Spark's.
    others = [str(tmp_path / "job.zip"), str(tmp_path / "python" / "lib" / "pyspark.zip")]
    monkeypatch.setattr(sys, "path", [*zips, *others, *(path := [*sys.path])])
    forked_workers._put_zips_last()
    assert sys.path == [*others, *path, *zips]


def test_without_an_installed_pyspark_the_path_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", path := [str(tmp_path / "pyspark.zip"), str(tmp_path)])
    forked_workers._put_zips_last()
    assert path == sys.path == [str(tmp_path / "pyspark.zip"), str(tmp_path)]
