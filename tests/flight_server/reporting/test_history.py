"""The last minutes of a server, in a bounded ring."""

from __future__ import annotations

import pytest

from flight_server.concurrency import Waits
from flight_server.datasets import Counters
from flight_server.reporting import SAMPLE_SECONDS, History, history
from flight_server.reporting.history import SAMPLES
from flight_server.tiering import Spiller
from tests.support.catalogues import new_catalogue


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(history.time, "monotonic", lambda: now[0])
    return now


def new_history(counters: Counters) -> History:
    catalogue = new_catalogue(None, 64 << 20)
    return History(catalogue, counters, Spiller(catalogue), Waits())


async def test_the_samples_are_columns_with_their_ages(clock: list[float]) -> None:
    counters = Counters()
    made = new_history(counters)
    assert made.listed()["age_seconds"] == made.listed()["bytes_in"] == []
    for size_bytes in (0, 5000):
        counters.batch_in(1, size_bytes)
        await made.sample()
        clock[0] += SAMPLE_SECONDS
    found = made.listed()
    assert found["age_seconds"] == [2 * SAMPLE_SECONDS, SAMPLE_SECONDS]
    assert (found["bytes_in"], found["bytes_out"]) == ([0, 5000], [0, 0])
    assert {len(column) for column in found.values()} == {2}


async def test_the_oldest_samples_are_forgotten(clock: list[float]) -> None:
    made = new_history(Counters())
    for _ in range(SAMPLES + 10):
        await made.sample()
        clock[0] += SAMPLE_SECONDS
    assert len(made.listed()["age_seconds"]) == SAMPLES
    assert made.listed()["age_seconds"][0] == SAMPLES * SAMPLE_SECONDS


async def test_a_rate_is_that_of_the_last_seconds(clock: list[float]) -> None:
    counters = Counters()
    made = new_history(counters)
    assert {*made.rates().values()} == {0}
    for _ in range(20):
        await made.sample()
        clock[0] += SAMPLE_SECONDS
        counters.frames_sent(1, 3000)
    assert {name: rate for name, rate in made.rates().items() if rate} == {
        "bytes_out_per_second": int(3000 / SAMPLE_SECONDS)
    }
