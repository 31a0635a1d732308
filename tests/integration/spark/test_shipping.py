"""A cluster whose executors do not have the package: a sentence at first, and everything after ``ship``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.bare_python import bare_python
from tests.support.server_process import ServerProcess
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    python = bare_python(tmp_path_factory.mktemp("bare"))
    with (
        pytest.MonkeyPatch.context() as patch,
        standalone_cluster(tmp_path_factory.mktemp("cluster"), workers=1) as cluster,
    ):
        patch.setenv("PYSPARK_PYTHON", str(python))
        settings = {name: value for name, value in cluster.settings.items() if "PYTHONPATH" not in name}
        settings["python__daemon__module"] = "pyspark.daemon"
        with local_session(cluster.master, **settings) as session:
            yield session


def test_what_executors_lack_is_said_and_then_shipped(
    spark: SparkSession, flight_server_process: Any
) -> None:
    server: ServerProcess = flight_server_process(http_port=0)
    with ShuffleClient(server.location) as client:
        df = spark.range(0, 1000, 1, 2).selectExpr("id % 10 as k", "id")

        def doubled(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield pa.record_batch(
                    [batch.column("k"), pa.compute.multiply(batch.column("id"), 2)], ["k", "id"]
                )

        placed = client.pipeline(df).mapInArrow(doubled, "k long, id long").exchange(3, "k")
        with pytest.raises(Exception, match=r"has no package 'spark_client': call ship\(spark\)"):
            placed.toDF()

        client.ship(spark)
        client.ship(spark)
        names = client.broadcast(spark.range(0, 10, 1, 2).selectExpr("concat('n', id) as name"), "names")

        def total(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
            name = names.table().column("name")[keys[0].as_py()].as_py()
            return pa.table({"name": [name], "sum": [pa.compute.sum(table["id"]).as_py()]})

        out = placed.applyInArrow(total, "name string, sum long").toDF().collect()
        assert {(row.name, row["sum"]) for row in out} == {
            (f"n{k}", sum(2 * id_ for id_ in range(k, 1000, 10))) for k in range(10)
        }
