"""An archive of Spark's loaded classes, with which a JVM of Spark starts in half of the processor time.

`python -m tests.support.class_archive FILE` runs a small Spark job and writes the classes that it has loaded to FILE.
A JVM uses them by `-XX:SharedArchiveFile=FILE`. It checks that its Java and its jars are those that have written the
archive, and else loads its classes as without one: no result depends on it.

The archive is a dynamic one of class data sharing (Java 13 and later; `-XX:ArchiveClassesAtExit` in the manual of
`java`). It has what drivers, executors, masters and workers have in common.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.spark_home import spark_home
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXIT_SECONDS = 300


def write(file: Path) -> None:
    """Leave the archive at ``file``. Raises what the job raises, and TimeoutExpired when the JVM does not end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    # Only the driver's JVM writes one, not the launcher that starts it.
    flags = f"-XX:ArchiveClassesAtExit={file} -Xlog:disable"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'--driver-java-options "{flags}" pyspark-shell'
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with TemporaryDirectory() as directory, local_session() as spark:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        _work(spark, directory)
    # The JVM ends with its standard input, and writes the archive before.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_EXIT_SECONDS)


def _work(spark: SparkSession, directory: str) -> None:
    """Use what most tests use of Spark."""

    def same(batches: object) -> object:
        return batches

    df = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 7 as k", "cast(id as string) as name")
    df.write.parquet(f"{directory}/rows")
    rows = spark.read.parquet(f"{directory}/rows")
    sums = rows.groupBy("k").sum("id").orderBy("k")
    joined = rows.join(sums, "k")
    joined.mapInArrow(same, joined.schema).toArrow()  # type: ignore[arg-type] # as it is, whatever it is
    rows.groupBy("k").applyInArrow(lambda table: table, rows.schema).collect()
    rows.repartition(3, "name").toPandas()


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
