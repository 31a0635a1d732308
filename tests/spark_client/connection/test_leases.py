"""Renewal continues after failures, stops for missing datasets, and ends with its owner. No test waits for a clock."""

from __future__ import annotations

import logging
import threading

import pytest

from flight_server.protocol.errors import NotFound, Unavailable
from spark_client.connection.leases import LeaseKeeper


class Renewals:
    """A server that records renewals and may refuse them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.three = threading.Event()

    def __call__(self, dataset: str, generation: str) -> None:
        self.calls.append((dataset, generation))
        if len(self.calls) >= 3:
            self.three.set()
        if self.error is not None:
            raise self.error


def test_datasets_are_renewed_again_and_again_until_closed() -> None:
    renewals = Renewals()
    keeper = LeaseKeeper(renewals, 0.03)
    keeper.add("d", "g")
    assert renewals.three.wait(10)
    keeper.close()
    keeper.close()
    count = len(renewals.calls)
    assert set(renewals.calls) == {("d", "g")}
    keeper.renew_all()
    assert len(renewals.calls) == count


def test_a_failure_that_may_pass_is_tried_again() -> None:
    renewals = Renewals()
    renewals.error = Unavailable("the server restarts")
    keeper = LeaseKeeper(renewals, 0.03)
    keeper.add("d", "g")
    assert renewals.three.wait(10)
    assert keeper.datasets() == {"d": "g"}
    keeper.close()


def test_a_dataset_that_is_gone_is_forgotten_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    renewals = Renewals()
    renewals.error = NotFound("there is no dataset 'd'")
    keeper = LeaseKeeper(renewals, 3600)
    keeper.add("d", "g")
    with caplog.at_level(logging.WARNING):
        keeper.renew_all()
    assert keeper.datasets() == {}
    assert "there is no dataset 'd'" in caplog.text
    keeper.close()


def test_a_removed_dataset_is_not_renewed() -> None:
    renewals = Renewals()
    keeper = LeaseKeeper(renewals, 3600)
    keeper.add("d", "g")
    keeper.remove("d")
    keeper.remove("d")
    keeper.renew_all()
    assert renewals.calls == []
    keeper.close()


def test_a_dataset_that_its_owner_drops_while_it_is_renewed_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    renewed: list[str] = []

    def renew(dataset: str, generation: str) -> None:
        renewed.append(dataset)
        keeper.remove(dataset)
        if dataset == "again":
            keeper.add(dataset, "g2")
        raise NotFound(f"there is no dataset {dataset!r}")

    keeper = LeaseKeeper(renew, 3600)
    keeper.add("dropped", "g")
    keeper.add("again", "g")
    with caplog.at_level(logging.WARNING):
        keeper.renew_all()
    assert (renewed, keeper.datasets(), caplog.text) == (["dropped", "again"], {"again": "g2"}, "")
    keeper.close()
