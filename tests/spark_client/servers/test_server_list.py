"""ServerList, given and learnt from tasks, over servers that only answer for their start."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flight_server.protocol import InvalidRequest, Unavailable
from spark_client.connection import RemoteServer
from spark_client.servers import DriverServer, ServerList, ServerStart, owner_of

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
def found(servers: Servers) -> ServerList:
    first: Any = servers
    return ServerList(first, home=DriverServer(RemoteServer("executors"), {}))


def test_servers_are_learnt_once_each(found: ServerList) -> None:
    assert found.several
    assert not found.locations
    found.learn([ServerStart(A, "a1")])
    found.learn([ServerStart(B, "b1"), ServerStart(A, "a1")])
    assert found.locations == (A, B)
    assert found.asked == (A, B)
    assert found.lost() == []


def test_jobs_that_end_at_once_lose_no_server_to_each_other(
    found: ServerList,
) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: found.learn([ServerStart(f"grpc://h:{n}", f"{n}")]), range(2000)))
    finally:
        sys.setswitchinterval(before)
    assert len(found.locations) == 2000


def test_a_server_that_is_gone_is_lost_once_and_forgotten(found: ServerList, servers: Servers) -> None:
    found.learn([ServerStart(A, "a1"), ServerStart(B, "b1")])
    del servers.starts[A]
    assert found.knows("a1")
    assert found.lost() == [ServerStart(A, "a1")]
    assert found.lost() == []
    assert found.locations == (B,)
    assert not found.knows("a1")
    del servers.starts[B]
    assert found.lost() == [ServerStart(B, "b1")]
    assert found.asked == ()


def test_another_server_at_a_port_that_is_used_again_is_not_the_lost_one(
    found: ServerList, servers: Servers
) -> None:
    found.learn([ServerStart(A, "a1")])
    servers.starts[A] = "another"
    assert found.lost() == [ServerStart(A, "a1")]
    assert not found.locations
    found.learn([ServerStart(A, "another")])
    assert found.lost() == []


def test_the_end_drains_what_was_learnt_and_allows_no_later_start(
    found: ServerList, servers: Servers
) -> None:
    found.learn([ServerStart(A, "a1"), ServerStart("grpc://gone:1", "x")])
    found.end()
    found.end()
    assert servers.starts == {B: "b1"}
    with pytest.raises(InvalidRequest, match="closed"):
        found.of("a name")


def test_the_end_drains_the_other_workers_of_a_supervisor_too(
    found: ServerList, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Servers, "workers", (A, B))
    found.learn([ServerStart(A, "a1")])
    found.end()
    assert servers.starts == {}


@pytest.mark.parametrize("count", [3, 5])
def test_each_server_has_an_equal_share_of_the_names_of_one_length(count: int) -> None:
    locations = [f"grpc://flight-{number}.flight:8815" for number in range(count)]
    shares = Counter(owner_of(f"broadcast/{number:06}", locations) for number in range(6000))
    assert min(shares.values()) > 0.9 * 6000 / count


@pytest.fixture
def given(servers: Servers) -> ServerList:
    first: Any = servers.at(A)
    return ServerList(first, [A, B])


def test_a_server_that_is_listed_under_two_names_is_one(given: ServerList, servers: Servers) -> None:
    servers.starts[B] = "a1"
    assert given.reachable() == (A,)
    servers.starts[B] = "b1"
    given.lost()
    assert given.reachable() == (A, B)


def test_a_new_dataset_of_one_server_goes_to_one_that_answers(given: ServerList, servers: Servers) -> None:
    assert given.reachable() == (A, B)
    del servers.starts[A]
    assert {given.owner(f"d{number}") for number in range(20)} == {B}
    del servers.starts[B]
    assert given.owner("d") in (A, B)


def test_a_server_that_another_thread_has_found_lost_is_lost_to_each_that_knew_it(
    given: ServerList, servers: Servers
) -> None:
    assert given.reachable() == (A, B)
    known = given.starts
    servers.starts[A] = "another"
    assert given.lost() == [ServerStart(A, "a1")]
    assert given.lost(known) == [ServerStart(A, "a1")]
    assert given.lost() == []


def test_a_server_that_is_left_out_is_said_once_until_it_answers(
    given: ServerList, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    start = servers.starts.pop(B)
    for _ in range(3):
        assert given.reachable() == (A,)
    servers.starts[B] = start
    assert given.reachable() == (A, B)
    del servers.starts[B]
    given.lost()
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the server {B} is left out until it answers: it is away"] * 2


@pytest.mark.parametrize("learnt", [True, False])
def test_a_question_to_all_servers_names_those_that_do_not_answer_and_loses_none(
    found: ServerList, given: ServerList, servers: Servers, learnt: bool
) -> None:
    asked = found if learnt else given
    if learnt:
        found.learn([ServerStart(A, "a1"), ServerStart(B, "b1")])
    else:
        given.lost()
    del servers.starts[B]
    answers, gone = asked.answers(lambda server, **how: server.action("why", **how))
    assert (answers, gone) == (
        {A: {"start": "a1", "servers": [A]}},
        [{"location": B, "start": "b1", "gone": "it is away"}],
    )
    assert (asked.locations, asked.starts, asked.patience_seconds(B)) == ((A, B), {A: "a1", B: "b1"}, None)
    del servers.starts[A]
    with pytest.raises(Unavailable, match="away"):
        asked.answers(lambda server, **how: server.action("why", **how))
