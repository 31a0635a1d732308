"""Lookups in Structured Streaming with a real server: the version of each micro-batch, also when it is run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_client import ShuffleClient
from spark_client.changelogs import Changelog, latest
from tests.support.exchange_rates import RATES, Orders, quote
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Orders:
    return Orders(spark, tmp_path)


def test_each_micro_batch_sees_the_rates_of_its_time_over_restarts(
    client: ShuffleClient, rates: Changelog, orders: Orders
) -> None:
    for time in range(1, 4):
        quote(rates, time, EUR=float(time))
        orders.arrive("EUR", "CHF")
        joined = client.lookup(orders.stream, "rates", "currency")
        id_ = (time - 1) * 100
        expected = [("CHF", id_ + 1, None, None), ("EUR", id_, time, float(time))]
        assert orders.run(joined) == [(time - 1, expected)]


def test_a_batch_that_is_run_again_sees_the_version_of_its_first_run(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    server = ServerProcess.start(data_dir=tmp_path / "data", port=0)
    try:
        for number, restarts in enumerate((False, True)):
            with ShuffleClient(server.location) as client:
                rates = client.changelog(
                    "rates", RATES, key="currency", order_by="time", keep=latest(), delay_seconds=0.1
                )
                quote(rates, 2 * number, EUR=float(number))
                orders.arrive("EUR")
                first = orders.run(client.lookup(orders.stream, "rates", "currency"))
                assert first == [(number, [("EUR", number * 100, 2 * number, float(number))])]
                quote(rates, 2 * number + 1, EUR=99.0)
            orders.forget_commit(number)
            if restarts:
                server.kill()
                server.close()
                server = ServerProcess.start(data_dir=tmp_path / "data", port=0)
            with ShuffleClient(server.location) as client:
                assert orders.run(client.lookup(orders.stream, "rates", "currency")) == first
    finally:
        server.close()


def test_a_lookup_inside_for_each_batch_has_the_version_of_the_batch(
    client: ShuffleClient, rates: Changelog, orders: Orders
) -> None:
    found = []

    def look_up(df: DataFrame, number: int) -> None:
        found.append((number, [row.rate for row in client.lookup(df, "rates", "currency").collect()]))

    quote(rates, 1, EUR=1.0)
    orders.arrive("EUR")
    orders.run(orders.stream, look_up)
    quote(rates, 2, EUR=2.0)
    orders.forget_commit(0)
    orders.run(orders.stream, look_up)
    orders.arrive("EUR")
    orders.run(orders.stream, look_up)
    assert found == [(0, [1.0]), (0, [1.0]), (1, [2.0])]


def test_a_changelog_that_does_not_change_is_fetched_once_over_many_micro_batches(
    client: ShuffleClient, rates: Changelog, orders: Orders
) -> None:
    quote(rates, 1, **{f"C{number}": 1.0 for number in range(1000)})
    joined = client.lookup(orders.stream, "rates", "currency")
    before = client.statistics()["gets"]
    for number in range(3):
        orders.arrive(f"C{number}", f"C{number + 500}", "none")
    rates_seen = [[row[3] for row in rows] for _, rows in orders.run(joined)]
    assert rates_seen == [[1.0, 1.0, None]] * 3
    assert client.statistics()["gets"] - before == 1
