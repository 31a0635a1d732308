"""One run writes a persisted dataset, and the others wait for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from flight_server.protocol import Unavailable
from spark_client.jobs import PersistedDataset

RUN = object()
SEALED: Any = SimpleNamespace(source=SimpleNamespace(dataset="d"))


class Driver:
    """Says whether the dataset is there, and knows what was released."""

    def __init__(self) -> None:
        self.is_there = True
        self.is_up = True
        self.released: list[str] = []

    def is_whole(self, _: object) -> bool:
        if not self.is_up:
            raise Unavailable("no answer")
        return self.is_there

    def hold(self, *_: Any) -> None:
        """It counts no holders."""

    def end(self, *_: Any) -> None:
        """As above."""

    def act(self, event: Any) -> None:
        event(self)

    def release(self, dataset: str) -> None:
        self.released.append(dataset)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def persisted(driver: Any) -> PersistedDataset:
    return PersistedDataset(driver, driver)


@pytest.mark.parametrize("first", [SEALED, None])
def test_a_second_run_gets_what_the_first_has_written_or_writes_it_if_that_has_failed(
    persisted: PersistedDataset, first: Any
) -> None:
    found: list[Any] = []
    assert persisted.claim(RUN) is None
    second = threading.Thread(target=lambda: found.append(persisted.claim(RUN)))
    second.start()
    persisted.end(RUN, first)
    second.join()
    assert found == [first]


def test_a_dataset_that_the_server_has_lost_is_written_again(
    persisted: PersistedDataset, driver: Driver
) -> None:
    assert persisted.claim(RUN) is None
    persisted.end(RUN, SEALED)
    assert [persisted.claim(RUN), persisted.claim(RUN)] == [SEALED, SEALED]
    driver.is_up = False
    with pytest.raises(Unavailable):
        persisted.claim(RUN)
    persisted.end(object())
    persisted.end(RUN)
    driver.is_up = True
    assert persisted.claim(RUN) == SEALED, "what is there stays"
    driver.is_up, driver.is_there = True, False
    assert persisted.claim(RUN) is None
    persisted.end(RUN)
    persisted.drop()
    assert driver.released == []


def test_what_was_written_is_dropped_once(persisted: PersistedDataset, driver: Driver) -> None:
    assert persisted.claim(RUN) is None
    persisted.end(RUN, SEALED)
    persisted.drop()
    persisted.drop()
    assert driver.released == ["d"]
    assert persisted.claim(RUN) is None
