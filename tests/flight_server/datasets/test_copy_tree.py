"""The tree of a broadcast: each host reads from one that can be read, few from each, and a lost parent is replaced."""

from __future__ import annotations

from random import Random

import pytest

from flight_server.datasets import copy_tree
from flight_server.datasets.copy_tree import FAN_OUT, FETCH_SECONDS, MAX_LOSSES, SERVES_SECONDS, CopyTree
from tests.support.simulated_tree import NOTICE_SECONDS, SimulatedBroadcast


class Rig:
    """A tree with a clock. Each host's location is its name in capitals."""

    def __init__(self, fan_out: int = FAN_OUT) -> None:
        self.now = 0.0
        self.tree = CopyTree(lambda: self.now, fan_out)

    def fetch(self, host: str, lost: str | None = None) -> str | None:
        return self.tree.fetch(host, host.upper(), lost)

    def fetch_all(self, hosts: str) -> list[str | None]:
        return [self.fetch(host) for host in hosts]


def test_each_is_given_to_two_hosts_in_turn_the_nearest_to_the_server_first() -> None:
    assert FAN_OUT == 2
    assert Rig().fetch_all("abcdefghi") == [None, None, "A", "B", "A", "B", "C", "D", "E"]


def test_a_host_without_a_location_is_given_to_none_and_where_none_has_one_all_fetch_from_the_server() -> (
    None
):
    rig = Rig()
    assert [rig.tree.fetch(host) for host in "abcd"] == [None] * 4
    assert rig.fetch_all("efg") == [None, "E", "E"]
    assert rig.tree.fetch("h") == "F"
    assert rig.fetch_all("ij") == ["G", "F"]


def test_asked_again_the_answer_is_the_same() -> None:
    rig = Rig()
    assert rig.fetch_all("abccc") == [None, None, "A", "A", "A"]
    assert rig.fetch_all("def") == ["B", "A", "B"], "it has one place"


def test_a_lost_parent_is_given_to_no_other_host_until_it_asks_or_has_all() -> None:
    rig = Rig()
    rig.fetch_all("abc")
    assert rig.fetch("c", lost="A") is None, "its place at the server is free"
    assert rig.fetch("c", lost="A") is None, "said twice"
    assert rig.fetch_all("def") == ["B", "B", "C"]
    assert rig.fetch("a") == "C", "it has come back"
    assert rig.fetch_all("ghijklmn").count("A") == 2
    rig.fetch("d", lost="B")
    rig.tree.has_all("b")
    assert rig.fetch("o") == "B"


def test_the_word_of_a_host_counts_about_its_own_parent_only() -> None:
    rig = Rig()
    assert rig.fetch_all("abcd") == [None, None, "A", "B"]
    assert rig.fetch("d", lost="A") == "B"
    assert rig.fetch("e", lost="B") == "A", "it has none yet, and A's place is free"
    assert rig.fetch("f") == "B"


def test_a_host_that_has_lost_two_parents_gets_the_server() -> None:
    assert MAX_LOSSES == 2
    rig = Rig(fan_out=1)
    assert rig.fetch_all("abcd") == [None, "A", "B", "C"]
    assert rig.fetch("d", lost="C") == "B", "the place of the lost one"
    assert rig.fetch("d", lost="B") is None, "though A has a place"
    rig.tree.has_all("d")
    assert rig.fetch("d") == "A", "it begins anew"


@pytest.mark.parametrize(("most", "given"), [(2, "Z"), (1, None)])
def test_of_very_many_hosts_that_read_from_one_it_does_not_look_at_all(
    monkeypatch: pytest.MonkeyPatch, most: int, given: str | None
) -> None:
    monkeypatch.setattr(copy_tree, "_MAX_PASSED", most)
    rig = Rig()
    assert rig.fetch_all("amboc") == [None, None, "A", "M", "A"]
    assert [rig.tree.fetch(f"full {number}") for number in range(5)] == ["M", "B", "O", "C", "B"]
    assert rig.fetch("z") == "O"
    rig.tree.has_all("a")
    assert rig.tree.fetch("full 5") is None
    assert rig.fetch("a") == given, "C has a place, and reads from A"
    assert rig.fetch("d") == "C", "it was passed over"


def test_a_host_that_has_all_gives_its_place_up_and_is_given_to_others_for_a_while() -> None:
    rig = Rig()
    rig.fetch_all("ab")
    rig.tree.has_all("a")
    rig.tree.has_all("a")
    assert rig.fetch_all("cde") == [None, "A", "B"]
    rig.now = SERVES_SECONDS + 1
    assert sorted(map(str, rig.fetch_all("fgh"))) == ["B", "C", "C"], "A may not have it any more"


def test_a_host_that_never_gets_all_is_given_to_others_for_so_long() -> None:
    rig = Rig()
    rig.fetch_all("ab")
    rig.now = FETCH_SECONDS + 1
    assert rig.fetch_all("cd") == [None, "C"]


def test_hosts_of_one_location_are_one() -> None:
    rig = Rig()
    rig.fetch_all("abc")
    assert rig.tree.fetch("also c", "C") == "A"
    assert rig.fetch_all("de") == ["B", "A"]
    assert rig.tree.fetch("d", "C") == "A", "it has moved there, and its place at B is free"
    assert rig.fetch_all("fg") == ["B", "B"]


def test_a_host_that_has_moved_is_given_at_its_new_location() -> None:
    rig = Rig()
    rig.fetch_all("abc")
    rig.tree.fetch("a", "new")
    assert rig.fetch("c", lost="A") == "new"
    rig.tree.fetch("a")
    assert rig.fetch_all("de") == ["B", "B"], "A cannot be read any more"


def test_a_host_that_leaves_is_given_to_no_other_one() -> None:
    rig = Rig()
    rig.fetch_all("ab")
    rig.tree.leave("a")
    rig.tree.leave("a")
    rig.tree.has_all("a")
    assert rig.fetch_all("cde") == [None, "B", "C"]
    assert rig.fetch("a") == "B", "it is back"


def test_who_reads_from_a_host_that_has_left_is_given_another() -> None:
    rig = Rig(fan_out=1)
    assert rig.fetch_all("abc") == [None, "A", "B"]
    rig.tree.leave("b")
    assert rig.fetch("c") == "A"
    assert rig.fetch("b") == "C", "it is back"


def test_hosts_that_come_and_leave_take_no_memory() -> None:
    rig = Rig()
    for number in range(1000):
        rig.fetch(f"h{number}")
        rig.tree.has_all(f"h{number}")
        rig.tree.leave(f"h{number}")
    assert (len(rig.tree._hosts), len(rig.tree._at)) == (0, 1), "the server"
    assert len(rig.tree._queue) < 100


@pytest.mark.parametrize("seed", range(20))
def test_no_hosts_ever_wait_for_each_other(seed: int) -> None:
    random, rig = Random(seed), Rig()
    names = [f"h{number}" for number in range(8)]
    reads: dict[str, str | None] = {}
    last: dict[str, str | None] = {}
    for _ in range(400):
        host, rig.now = random.choice(names), rig.now + random.random()
        match random.randrange(5):
            case 0:
                rig.tree.has_all(host)
                reads.pop(host, None)
            case 1:
                rig.tree.leave(host)
                reads.pop(host, None)  # others may still read from it
            case _:
                last[host] = rig.fetch(host, last.get(host) if random.random() < 0.7 else None)
                reads[host] = None if last[host] is None else (last[host] or "").lower()
        for each in reads:
            seen: list[str | None] = [each]
            while (parent := reads.get(seen[-1] or "")) is not None:
                assert parent not in seen
                seen.append(parent)


def test_fifty_hosts_have_a_gib_in_the_time_of_two() -> None:
    broadcast = SimulatedBroadcast([0.0] * 50)
    assert broadcast.run() < 3
    assert broadcast.server.sent_frames == 2 * broadcast.frames
    assert (broadcast.most_readers, broadcast.deepest) == (2, 5)
    assert {host.asked for host in broadcast.hosts} == {1}


def test_a_dead_first_host_costs_its_readers_one_time_out_and_others_none() -> None:
    broadcast = SimulatedBroadcast([0.0] * 50, deaths={0: 0.0003}, frames=200)
    broadcast.run()
    time_outs = sorted((host.time_outs for host in broadcast.hosts), reverse=True)
    assert time_outs[:3] == [1, 1, 0]
    late = SimulatedBroadcast([0.0, *[NOTICE_SECONDS * 2] * 49], deaths={0: 0.0003}, frames=200)
    late.run()
    assert sum(host.time_outs for host in late.hosts) == 2, "it is the only one that the server knows of"


@pytest.mark.parametrize("seed", range(10))
def test_all_that_live_have_all_frames_in_order_whichever_hosts_die_or_cannot_be_read(seed: int) -> None:
    random = Random(seed)
    deaths = {random.randrange(30): random.random() for _ in range(8)}
    arrivals = [random.choice([0.0, random.random()]) for _ in range(30)]
    broadcast = SimulatedBroadcast(
        arrivals, frames=200, deaths=deaths, silent=random.sample(range(30), random.choice([0, 10]))
    )
    broadcast.run()
    assert max(host.time_outs for host in broadcast.living) <= MAX_LOSSES
