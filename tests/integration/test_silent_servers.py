"""One of two given servers stands still: the others answer meanwhile, and it is a server like them when it goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

NAMES = [f"d{number}" for number in range(12)]
TABLE = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    with ServerProcess.start() as one, ServerProcess.start() as two:
        yield [one, two]


@pytest.fixture
def client(servers: list[ServerProcess]) -> Iterator[ShuffleClient]:
    with ShuffleClient(",".join(each.location for each in servers)) as found:
        yield found


def starts(client: ShuffleClient) -> dict[str, str]:
    """The start of each server that answers, by its location; of each other one the reason why it is gone."""
    return {each["location"]: each["gone"] or each["start"] for each in client.statistics()["servers"]}


def test_questions_name_a_silent_server_and_forget_nothing_of_it(
    client: ShuffleClient, servers: list[ServerProcess]
) -> None:
    for name in NAMES:
        client.put(name, TABLE)
    before, silent = starts(client), servers[1].location
    assert {*before} == {each.location for each in servers}
    on_both = [each.name for each in client.datasets()]
    assert on_both == sorted(NAMES)
    for _ in range(2):
        servers[1].signal(signal.SIGSTOP)
        with ThreadPoolExecutor() as threads:
            lists: list[Future[Any]] = [
                threads.submit(ask) for ask in (client.datasets, client.why, client.staged)
            ]
            meanwhile = threads.submit(starts, client).result()
            for each in lists:
                (gone,) = each.result().gone
                assert gone["location"] == silent
                assert gone["start"] in (None, before[silent])
        assert meanwhile == before | {silent: meanwhile[silent]} != before
        servers[1].signal(signal.SIGCONT)
        # Until then gRPC pauses between its attempts to connect.
        eventually(partial(starts, client), before)
        listed = client.datasets()
        assert ([each.name for each in listed], listed.gone) == (on_both, [])
    for name in NAMES:
        assert client.get(name).read_all() == TABLE
        client.drop(name)


def test_what_a_driver_keeps_on_a_silent_server_is_there_when_it_answers_and_new_things_go_there_again(
    client: ShuffleClient, servers: list[ServerProcess]
) -> None:
    def holders() -> list[int]:
        found = []
        for server in servers:
            with ShuffleClient(server.location) as one:
                found.append(len(one.datasets()))
        return found

    before = starts(client)
    shared = [client.broadcast(TABLE) for _ in range(12)]
    assert all(holders())
    servers[1].signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        assert threads.submit(starts, client).result() != before
    shared.append(client.broadcast(TABLE))
    servers[1].signal(signal.SIGCONT)
    eventually(partial(starts, client), before)
    counts = holders()

    def goes_to_both() -> bool:
        shared.extend(client.broadcast(TABLE) for _ in range(4))
        return all(now > then for then, now in zip(counts, holders(), strict=True))

    eventually(goes_to_both, expected=True)
    assert all(each.table() == TABLE for each in shared)
    client.close()
    assert holders() == [0, 0]
