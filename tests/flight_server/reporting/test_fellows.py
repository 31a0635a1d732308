"""A worker lists itself and the others of its supervisor, by what they last wrote on the board."""

from __future__ import annotations

import pytest

from flight_server.datasets import own_start
from flight_server.host import Board, board
from flight_server.reporting import Fellows, Locations
from tests.support.catalogues import new_catalogue

NAMES = ["grpc://a:1", "grpc://b:1", "grpc://c:1"]


def fellows() -> list[Fellows]:
    """Two workers of three: the third one has not written anything."""
    notes, found = Board(3), []
    for slot, name in enumerate(NAMES[:2]):
        found.append(Fellows(new_catalogue(None, 64 << 20), Locations(grpc=name, servers=NAMES)))
        found[-1].join(notes, slot)
    return found


def test_a_server_without_a_supervisor_lists_itself() -> None:
    (alone,) = Fellows(new_catalogue(None, 64 << 20), Locations(grpc=NAMES[0])).listed()
    assert (alone["location"], alone["start"], alone["gone"]) == (NAMES[0], own_start(), None)
    assert alone["memory_limit_bytes"] > alone["memory_used_bytes"] == alone["datasets"] == 0


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
