"""Drops whose answer is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import NotFound
from spark_client import ShuffleClient
from spark_client.connection import RemoteServer, Unreachable
from tests.support.server_process import ServerProcess
from tests.support.spread import spread

TABLE = pa.table({"id": [1]})


def lose_answer(server: RemoteServer, number: int, then: Callable[[], object] = lambda: None) -> None:
    """The answer of this call from now on, 1 for the next, does not arrive; ``then`` runs meanwhile."""
    calling, left = server.calling, [number]

    @contextmanager
    def lossy(dataset: str | None = None) -> Iterator[Any]:
        with calling(dataset) as found:
            yield found
        left[0] -= 1
        if not left[0]:
            then()
            raise Unreachable("the answer was lost")

    server.calling = lossy  # type: ignore[method-assign]


def test_a_drop_of_a_generation_whose_answer_is_lost_has_succeeded(client: ShuffleClient) -> None:
    changelog = client.changelog("c", schema=TABLE.schema)
    lose_answer(client._open(), 2)
    changelog.drop()
    assert client.datasets() == []
    with pytest.raises(NotFound):
        changelog.drop()


def test_a_drop_by_name_whose_answer_is_lost_does_not_drop_what_the_name_leads_to_by_then(
    client: ShuffleClient,
) -> None:
    client.put("d", TABLE)
    with ShuffleClient(client.location) as other:
        lose_answer(client._open(), 2, lambda: other.put("d", TABLE))
        with pytest.raises(Unreachable):
            client.drop("d")
        assert [each.name for each in other.datasets()] == ["d"]


def test_a_dataset_over_several_servers_is_dropped_on_all_of_them_by_a_client_of_one() -> None:
    with ServerProcess.start() as one, ServerProcess.start() as two, ServerProcess.start() as gone:
        spread("s", [one, two, gone])
        gone.kill()
        with ShuffleClient(one.location) as client, ShuffleClient(two.location) as other:
            client.drop("s")
            assert (client.datasets(), other.datasets()) == ([], [])
