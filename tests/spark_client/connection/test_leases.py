"""Renewal continues after failures, stops for what is gone, and ends with its owner."""

from __future__ import annotations

import logging
import threading

import pytest

from flight_server.protocol.errors import NotFound, Unavailable
from spark_client.connection.leases import LeaseKeeper
from tests.support.polling import eventually


class Renewals:
    """A server that counts renewals and may refuse them."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.three = threading.Event()

    def __call__(self) -> None:
        self.calls += 1
        if self.calls >= 3:
            self.three.set()
        if self.error is not None:
            raise self.error


def test_a_lease_is_renewed_again_and_again_until_the_close() -> None:
    renewals = Renewals()
    keeper = LeaseKeeper(renewals, 0.03, "d")
    keeper.begin()
    keeper.begin()
    assert renewals.three.wait(10)
    keeper.close()
    keeper.close()
    calls = renewals.calls
    keeper.begin()
    assert (renewals.calls, keeper.is_gone) == (calls, False)


@pytest.mark.parametrize(
    "error", [Unavailable("the server restarts"), RuntimeError("can't start new thread")]
)
def test_a_renewal_that_fails_is_made_again(error: Exception) -> None:
    renewals = Renewals()
    renewals.error = error
    keeper = LeaseKeeper(renewals, 0.03, "d")
    keeper.begin()
    assert renewals.three.wait(10)
    assert not keeper.is_gone
    keeper.close()


def test_what_is_gone_is_renewed_no_more_with_a_warning_but_its_successor_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    renewals = Renewals()
    renewals.error = NotFound("there is no dataset 'd'")
    keeper = LeaseKeeper(renewals, 0.03, "a write to d")
    with caplog.at_level(logging.WARNING):
        keeper.begin()
        eventually(lambda: keeper.is_gone, expected=True)
    assert "a write to d is gone from the server: there is no dataset 'd'" in caplog.text
    assert renewals.calls == 1
    renewals.error = None
    keeper.begin()
    assert renewals.three.wait(10)
    keeper.close()
