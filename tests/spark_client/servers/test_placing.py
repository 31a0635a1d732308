"""Where tasks put their rows."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_client.servers import place

SERVERS = [f"grpc://host{number}:8815" for number in range(5)]


def test_a_task_writes_to_the_server_of_its_host() -> None:
    assert {place("d", producer, SERVERS, host="host3") for producer in range(50)} == {"grpc://host3:8815"}


def test_tasks_of_other_hosts_are_spread_over_all_servers() -> None:
    found = Counter(place("d", producer, SERVERS, host="other") for producer in range(1000))
    assert found.keys() == {*SERVERS}
    assert max(found.values()) < 1.3 * min(found.values())


def test_several_servers_of_a_host_share_its_tasks() -> None:
    servers = [*SERVERS, "grpc://host3:8816"]
    found = {place("d", producer, servers, host="host3") for producer in range(50)}
    assert found == {"grpc://host3:8815", "grpc://host3:8816"}


@pytest.mark.parametrize("servers", [2, 3, 4, 8])
@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 8, 16])
def test_a_host_that_gets_each_so_manieth_task_uses_its_servers_alike(hosts: int, servers: int) -> None:
    own = [f"grpc://host3:{port}" for port in range(servers)]
    for first in range(hosts):
        producers = range(first, 16 * servers * hosts, hosts)
        found = Counter(place("d", producer, own, host="host3") for producer in producers)
        assert found.keys() == {*own}
        assert max(found.values()) <= 2 * min(found.values())


def test_a_new_try_goes_to_another_server() -> None:
    for producer in range(20):
        assert len({place("d", producer, SERVERS, tries=tries) for tries in range(5)}) == 5
    assert {place("d", 1, SERVERS, host="host3", tries=tries) for tries in range(1, 6)} == {*SERVERS}


def test_a_place_is_the_same_in_every_process() -> None:
    assert [SERVERS.index(place("d", producer, SERVERS)) for producer in range(6)] == [1, 2, 3, 4, 0, 4]
