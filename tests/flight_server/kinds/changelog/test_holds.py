"""What holds keep readable, and when they end."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from flight_server.kinds.changelog.holds import HOLD_BYTES, LAPSED_BYTES, MAX_LAPSED, MAX_LISTED, Hold, Holds
from flight_server.memory import MemoryPool, Metadata
from flight_server.protocol import Compacted, HoldRequest, InvalidRequest, OutOfBudget


@pytest.fixture
def holds() -> Iterator[Holds]:
    made = Holds("rates", max_lag_seconds=10.0)
    yield made
    made.release([*made.named, *made.lapsed])


def check(holds: Holds, name: str, version: int | None, since: int, upper: int) -> int:
    """The version that a hold of this name would have."""
    return holds.change(HoldRequest("rates", name, version=version), since, upper, 0.0, None).version


def put(
    holds: Holds, name: str, version: int, until: float, *, taken: float, owner: str | None = None
) -> Hold:
    request = HoldRequest("rates", name, version=version, lease_seconds=until - taken, owner=owner)
    holds.make(holds.change(request, 0, 2000, taken, None))
    return holds.named[name]


def test_the_oldest_of_holds_and_followers_counts(holds: Holds) -> None:
    assert holds.oldest() is None
    put(holds, "a", 5, 100.0, taken=0.0)
    holds.follow(self := object(), 3)
    assert (holds.oldest(), len(holds), holds.followers) == (3, 2, 1)
    holds.follow(self, 7)
    assert holds.oldest() == 5
    holds.leave(self)
    holds.leave(self)
    holds.release(["a", "unknown"])
    assert (holds.oldest(), len(holds)) == (None, 0)


def test_a_hold_without_a_version_holds_the_newest_and_is_repeated_as_it_is(holds: Holds) -> None:
    assert check(holds, "a", None, 2, 9) == 9
    put(holds, "a", 9, 100.0, taken=0.0)
    assert check(holds, "a", None, 2, 12) == 9
    assert check(holds, "a", 9, 9, 12) == 9
    assert check(holds, "a", 11, 2, 12) == 11


def test_a_hold_holds_only_what_can_be_read(holds: Holds) -> None:
    with pytest.raises(InvalidRequest):
        check(holds, "a", 10, 2, 9)
    with pytest.raises(Compacted) as raised:
        check(holds, "a", 1, 2, 9)
    assert (raised.value.detail["since"], raised.value.detail["upper"]) == (2, 9)
    assert check(holds, "a", 2, 2, 9) == 2
    put(holds, "a", 5, 100.0, taken=0.0)
    with pytest.raises(InvalidRequest, match="cannot go back"):
        check(holds, "a", 4, 2, 9)


def test_a_hold_ends_with_its_lease(holds: Holds) -> None:
    put(holds, "a", 5, 100.0, taken=0.0)
    assert holds.expire(99.9, 5) == []
    put(holds, "a", 5, 110.0, taken=0.0)
    assert holds.expire(100.0, 5) == []
    assert holds.expire(110.0, 5) == ["a"]


def test_a_hold_ends_when_its_version_is_out_of_date_for_longer_than_the_maximal_lag(holds: Holds) -> None:
    put(holds, "a", 5, math.inf, taken=0.0)
    holds.follow(object(), 5)
    assert holds.expire(0.0, 5) == []
    assert holds.expire(1000.0, 6) == []  # since now
    put(holds, "a", 5, math.inf, taken=0.0)  # a renewed lease does not begin the lag again
    assert holds.expire(1010.0, 6) == []
    assert holds.expire(1010.1, 7) == ["a", "a follower"]
    assert holds.oldest() is None


def test_a_hold_that_moves_on_is_not_late(holds: Holds) -> None:
    put(holds, "a", 5, math.inf, taken=0.0)
    holds.follow(follower := object(), 5)
    assert holds.expire(0.0, 6) == []
    put(holds, "a", 6, math.inf, taken=0.0)
    holds.follow(follower, 6)
    assert holds.expire(100.0, 7) == []
    assert holds.expire(110.0, 7) == []


def test_holds_are_shown_with_their_owners(holds: Holds) -> None:
    put(holds, "a", 5, 100.0, taken=1.0, owner="job 7 of ann")
    put(holds, "b", 6, 100.0, taken=2.0)
    assert holds.listed(98.5) == [
        {"hold": "a", "owner": "job 7 of ann", "version": 5, "held_seconds": 97.5, "lease_left_seconds": 1.5},
        {"hold": "b", "owner": None, "version": 6, "held_seconds": 96.5, "lease_left_seconds": 1.5},
    ]


def test_a_hold_that_moves_on_keeps_its_owner_until_another_takes_it(holds: Holds) -> None:
    put(holds, "a", 5, 100.0, taken=1.0, owner="run 1")
    moved = put(holds, "a", 6, 200.0, taken=7.0)
    assert (moved.version, moved.until, moved.since, moved.owner) == (6, 200.0, 1.0, "run 1")
    assert put(holds, "a", 6, 200.0, taken=7.0, owner="run 2").owner == "run 2"
    assert holds.named["a"].owner == "run 2"


def test_the_oldest_hold_is_what_compaction_waits_for(holds: Holds) -> None:
    assert holds.held_back(9, now=0.0) is None
    put(holds, "a", 5, math.inf, taken=0.0, owner="job 7 of ann")
    assert holds.held_back(5, now=0.0) is None
    holds.expire(2.0, upper=7)
    held = holds.held_back(7, now=5.0)
    assert held is not None
    assert (held.hold, held.owner, held.version, held.seconds) == ("a", "job 7 of ann", 5, 3.0)
    assert str(held) == "hold 'a' of job 7 of ann, at version 5"
    holds.follow(object(), 4, "ipv4:127.0.0.1:7")
    assert str(holds.held_back(7, now=5.0)) == "hold 'a follower' of ipv4:127.0.0.1:7, at version 4"


def test_a_hold_that_lapsed_gives_its_version_or_an_error_and_no_other_version(holds: Holds) -> None:
    put(holds, "a", 5, 100.0, taken=0.0)
    assert holds.expire(101.0, upper=9) == ["a"]
    assert check(holds, "a", None, 2, 9) == 5
    with pytest.raises(Compacted):
        check(holds, "a", None, 6, 9)
    put(holds, "a", 5, 200.0, taken=0.0)
    holds.release(["a"])
    assert check(holds, "a", None, 2, 9) == 9, "a hold that was released is a new one"


def test_a_hold_has_room_in_the_metadata_until_it_is_forgotten() -> None:
    pool = MemoryPool(4 * HOLD_BYTES)
    holds = Holds("rates", 10.0, Metadata(pool))
    for name in "abcd":
        put(holds, name, check(holds, name, 3, 1, 9), 100.0, taken=0.0)
    assert pool.used_bytes == 4 * HOLD_BYTES
    with pytest.raises(OutOfBudget, match="another hold of dataset 'rates'"):
        check(holds, "e", 3, 1, 9)
    put(holds, "a", check(holds, "a", 5, 1, 9), 200.0, taken=0.0, owner="me")
    assert pool.used_bytes == 4 * HOLD_BYTES + 8
    assert sorted(holds.expire(150.0, upper=9)) == ["b", "c", "d"]
    assert pool.used_bytes == HOLD_BYTES + 8 + 3 * LAPSED_BYTES
    put(holds, "b", check(holds, "b", None, 1, 9), 200.0, taken=0.0)
    holds.release(["a", "b", "c", "d", "e"])
    assert pool.used_bytes == 0


def test_of_many_holds_the_oldest_versions_are_listed_and_all_are_counted(holds: Holds) -> None:
    for number in range(2 * MAX_LISTED):
        put(holds, f"hold {number}", 1000 - number, 100.0, taken=0.0)
    said = holds.listed(0.0)
    assert [each["version"] for each in said] == list(range(1001 - 2 * MAX_LISTED, 1001 - MAX_LISTED))
    assert len(holds.named) == 2 * MAX_LISTED


def test_the_names_of_lapsed_holds_are_few(holds: Holds) -> None:
    for number in range(MAX_LAPSED + 5):
        put(holds, f"hold {number}", 1, 1.0, taken=0.0)
    holds.expire(2.0, upper=1)
    assert len(holds.lapsed) == MAX_LAPSED
    assert "hold 4" not in holds.lapsed
