"""ServerList where servers are learnt from tasks, over servers that only answer for their start."""

from __future__ import annotations

from typing import Any

import pytest

from flight_server.protocol import InvalidRequest, Unavailable
from spark_client.connection import RemoteServer
from spark_client.servers import DriverServer, ServerList, ServerStart

A, B = "grpc://a:1", "grpc://b:1"


class Servers:
    """The starts of servers by their locations, as one that answers for all. It opens no connection."""

    def __init__(self, starts: dict[str, str], location: str = "executors") -> None:
        self.starts = starts
        self.location = location

    def keep_peers(self) -> None:
        """It opens nothing that would have to be closed."""

    def at(self, location: str) -> Servers:
        return Servers(self.starts, location)

    def action(self, name: str, **_: Any) -> dict[str, Any]:
        if self.location not in self.starts:
            raise Unavailable("it is away")
        if name == "drain":
            del self.starts[self.location]
            return {}
        return {"start": self.starts[self.location]}


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
    assert found.each(lambda server: server.location) == [A, B]
    assert found.lost() == []


def test_a_server_that_is_gone_is_lost_once_and_forgotten(found: ServerList, servers: Servers) -> None:
    found.learn([ServerStart(A, "a1"), ServerStart(B, "b1")])
    del servers.starts[A]
    assert found.knows("a1")
    assert found.lost() == [ServerStart(A, "a1")]
    assert found.lost() == []
    assert found.locations == (B,)
    assert not found.knows("a1")
    del servers.starts[B]
    assert found.each(lambda server: server.location) == []


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


def test_a_dataset_that_one_server_holds_goes_to_one_that_answers_now(servers: Servers) -> None:
    first: Any = servers
    given = ServerList(first, [A, B])
    owners = {name: given.owner(name) for name in "abcdefgh"}
    assert {*owners.values()} == {A, B}
    del servers.starts[A]
    assert {given.owner(name) for name in owners} == {B}
    del servers.starts[B]
    assert given.owner("a") in (A, B), "its own error says why"
