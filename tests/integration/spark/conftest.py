"""One server and one Spark context for all files of this folder that ask for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_client import FlightDataSource, Reading, ShuffleClient
from spark_client.changelogs import Changelog, latest
from tests.support.exchange_rates import RATES
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spark_source import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[ServerProcess]:
    with ServerProcess.start(http_port=0, workers=pytestconfig.getoption("--servers")) as found:
        yield found
        assert found.terminate() == 0, found.tail()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ShuffleClient]:
    """A client whose tasks do all, however little it is (``test_in_driver`` has another); once it is closed no exchange
    is left, and the test's other datasets are dropped.
    """
    with ShuffleClient(server.location, reading=Reading(driver_bytes=0)) as found:
        yield found
    with ShuffleClient(server.location) as after:
        for name in {each.name for each in after.datasets()}:
            assert not name.startswith("exchange/"), "a closed client leaves no exchange"
            after.drop(name)
        # No staged write is left, also by tasks that outlived their jobs.
        eventually(lambda: after.statistics()["memory"]["used_bytes"], 0)


@pytest.fixture
def rates(client: ShuffleClient) -> Changelog:
    """What lookups find: the latest rate of each currency."""
    return client.changelog("rates", RATES, key="currency", order_by="time", keep=latest(), delay_seconds=0.1)


@pytest.fixture
def tables(spark: SparkSession, server: ServerProcess, client: ShuffleClient) -> Tables:
    """Of datasets that are dropped at the end of the test."""
    spark.dataSource.register(FlightDataSource)
    return Tables(spark, server.location)
