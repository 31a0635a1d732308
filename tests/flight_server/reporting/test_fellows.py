"""A worker lists itself and the others of its supervisor, by what they last wrote on the board."""

from __future__ import annotations

import pytest

from flight_server.concurrency import Waits
from flight_server.datasets import Counters, own_start
from flight_server.host import Board, board
from flight_server.reporting import Fellows, History, Locations
from flight_server.tiering import Spiller
from tests.support.catalogues import new_catalogue

NAMES = ["grpc://a:1", "grpc://b:1", "grpc://c:1"]


def alone(locations: Locations) -> Fellows:
    catalogue, waits = new_catalogue(None, 64 << 20), Waits()
    return Fellows(catalogue, locations, History(catalogue, Counters(), Spiller(catalogue), waits))


def fellows() -> list[Fellows]:
    """Two workers of three: the third one has not written anything."""
    notes, found = Board(3), []
    for slot, name in enumerate(NAMES[:2]):
        found.append(alone(Locations(grpc=name, servers=NAMES)))
        found[-1].join(notes, slot)
    return found


def test_a_server_without_a_supervisor_lists_itself() -> None:
    (own,) = alone(Locations(grpc=NAMES[0])).listed()
    assert (own["location"], own["start"], own["gone"]) == (NAMES[0], own_start(), None)
    assert own["memory_limit_bytes"] > own["memory_used_bytes"] == own["datasets"] == 0
    assert own["bytes_in_per_second"] == own["bytes_out_per_second"] == 0


async def test_a_worker_lists_itself_first_and_the_others_with_their_numbers() -> None:
    first, second = fellows()
    listed = second.listed()
    assert [each["location"] for each in listed] == [NAMES[1], NAMES[0], NAMES[2]]
    assert listed[1].keys() == listed[0].keys()
    first._catalogue.draining = True
    assert second.listed()[1]["draining"] is False, "until it writes again"
    await first.post()
    assert second.listed()[1]["draining"] is True


def test_one_that_has_ended_and_one_that_does_not_run_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = fellows()
    own, other, ended = first.listed()
    assert (own["gone"], other["gone"]) == (None, None)
    assert "has ended" in ended["gone"]
    now = board.time.monotonic()
    monkeypatch.setattr(board.time, "monotonic", lambda: now + 60)
    own, other, _ = first.listed()
    assert own["gone"] is None
    assert (other["location"], other["gone"]) == (NAMES[1], "its process has not run for 60 s")
