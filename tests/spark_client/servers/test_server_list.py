"""ServerList, given and learnt from tasks, over servers that only answer for their start. What becomes of each server
stands in ``test_server_table``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flight_server.protocol import InvalidRequest, Unavailable
from spark_client.connection import RemoteServer
from spark_client.servers import DriverServer, ServerList, ServerStart, owner_of
from spark_client.servers.server_table import Presence

A, B = "grpc://a:1", "grpc://b:1"


class Servers:
    """The starts of servers by their locations, as one that answers for all. It opens no connection."""

    workers: tuple[str, ...] = ()
    """All of each one's supervisor; empty for servers without one."""

    def __init__(self, starts: dict[str, str], location: str = "executors") -> None:
        self.starts = starts
        self.location = location

    def at(self, location: str) -> Servers:
        return Servers(self.starts, location)

    def action(self, name: str, **_: Any) -> dict[str, Any]:
        if self.location not in self.starts:
            raise Unavailable("it is away")
        if name == "drain":
            del self.starts[self.location]
            return {}
        return {"start": self.starts[self.location], "servers": self.workers or [self.location]}


@pytest.fixture
def servers() -> Servers:
    return Servers({A: "a1", B: "b1"})


@pytest.fixture
def learnt(servers: Servers) -> ServerList:
    first: Any = servers
    return ServerList(first, home=DriverServer(RemoteServer("executors"), {}))


@pytest.fixture
def listed(servers: Servers) -> ServerList:
    first: Any = servers.at(A)
    return ServerList(first, [A, B])


def learn(servers: ServerList, *locations: str) -> None:
    for location in locations:
        servers.table.learn(ServerStart(location, f"{location[7]}1"), 0.0)


def test_servers_of_tasks_are_listed_without_the_drivers_own(learnt: ServerList) -> None:
    assert not learnt.locations
    learn(learnt, A, B)
    assert learnt.locations == learnt.all_locations == (A, B)


def test_the_end_drains_what_was_learnt_and_allows_no_later_start(
    learnt: ServerList, servers: Servers
) -> None:
    learn(learnt, A, "grpc://gone:1")
    learnt.end()
    learnt.end()
    assert servers.starts == {B: "b1"}
    assert not learnt.locations
    with pytest.raises(InvalidRequest, match="closed"):
        learnt.of("a name")


def test_the_end_drains_a_server_that_was_lost_by_its_silence(learnt: ServerList, servers: Servers) -> None:
    learn(learnt, A)
    learnt.table.unanswered(A, 1.0)
    learnt.end()
    assert servers.starts == {B: "b1"}


def test_the_end_drains_the_other_workers_of_a_supervisor_too(
    learnt: ServerList, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Servers, "workers", (A, B))
    learn(learnt, A)
    learnt.end()
    assert servers.starts == {}


def test_the_end_of_a_client_ends_no_server_that_is_given(listed: ServerList, servers: Servers) -> None:
    listed.end()
    assert servers.starts == {A: "a1", B: "b1"}
    assert listed.locations == (A, B)


@pytest.mark.parametrize("count", [3, 5])
def test_each_server_has_an_equal_share_of_the_names_of_one_length(count: int) -> None:
    locations = [f"grpc://flight-{number}.flight:8815" for number in range(count)]
    shares = Counter(owner_of(f"broadcast/{number:06}", locations) for number in range(6000))
    assert min(shares.values()) > 0.9 * 6000 / count


@pytest.mark.parametrize("is_learnt", [True, False])
def test_a_question_to_all_servers_names_those_that_do_not_answer_and_changes_nothing(
    learnt: ServerList, listed: ServerList, servers: Servers, *, is_learnt: bool
) -> None:
    asked = learnt if is_learnt else listed
    learn(asked, A, B)
    del servers.starts[B]
    answers, gone = asked.answers(lambda server, **how: server.action("why", **how))
    assert (answers, gone) == (
        {A: {"start": "a1", "servers": [A]}},
        [{"location": B, "start": "b1", "gone": "it is away"}],
    )
    assert asked.locations == (A, B)
    assert asked.table.presence(B) is Presence.ANSWERING
    del servers.starts[A]
    with pytest.raises(Unavailable, match="away"):
        asked.answers(lambda server, **how: server.action("why", **how))


def test_a_dataset_of_one_server_has_the_same_owner_for_each_client(
    listed: ServerList, servers: Servers
) -> None:
    first: Any = servers.at(B)
    other = ServerList(first, [B, A])
    names = [f"d{number}" for number in range(20)]
    assert [listed.of(name).location for name in names] == [other.of(name).location for name in names]
    assert {listed.of(name).location for name in names} == {A, B}
