"""What becomes of a pipeline's results: kept, released, and named in errors when they are gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from flight_server.errors import Unavailable
from spark_client import ShuffleClient
from tests.support.server_process import ServerProcess
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(java_home: str) -> Iterator[SparkSession]:
    with local_session() as session:
        yield session


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    process = ServerProcess.start(http_port=0)
    yield process
    process.terminate()
    process.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ShuffleClient]:
    with ShuffleClient(server.location) as found:
        yield found
    with ShuffleClient(server.location) as after:
        for name in (each.name for each in after.datasets()):
            after.drop(name)


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def test_a_pipeline_that_has_succeeded_does_not_fail_when_a_used_up_dataset_cannot_be_dropped(
    client: ShuffleClient, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(dataset: str) -> None:
        raise Unavailable(f"the server cannot be asked to drop {dataset}")

    pipeline = (
        client.pipeline(spark.range(100)).exchange(2, "id").mapInArrow(same, "id long").exchange(3, "id")
    )
    with monkeypatch.context() as patch:
        patch.setattr(client._owned(), "drop", refused)
        df = pipeline.toDF()
    assert df.count() == 100
