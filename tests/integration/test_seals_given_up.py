"""Durable staged writes whose seal is given up: what the server says of a name is what the next start finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.durable import action, action_within, get, names, put_attempt, table
from tests.support.faulty_disk import FaultyServer

DEADLINES_MS = [1, 3, 10, 20, 30, 50, 80, 120, 200]
SLOW = {"fsync": 0.02, "rename": 0.03}

Start = Callable[[], tuple[FaultyServer, flight.FlightClient]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server; the one before is killed."""
    running: list[tuple[FaultyServer, flight.FlightClient]] = []

    def end() -> None:
        while running:
            server, client = running.pop()
            client.close()
            server.kill()
            server.close()

    def begin() -> tuple[FaultyServer, flight.FlightClient]:
        end()
        server = FaultyServer.start(tmp_path / "data", budget_deadline_seconds=2)
        running.append((server, flight.connect(server.location)))
        return running[0]

    yield begin
    end()


class Staged:
    """A staged durable write of one table."""

    def __init__(
        self, client: flight.FlightClient, name: str, data: pa.Table, mode: str = "overwrite"
    ) -> None:
        self.name, self.data = name, data
        self._client = client
        created = action(
            client,
            "create",
            dataset=name,
            kind="shuffle",
            mode=mode,
            write=f"{name}-{data['number'][0]}",
            durable=True,
        )
        self.generation = created["generation"]
        put_attempt(client, name, {0: data}, generation=self.generation)

    def body(self) -> dict[str, Any]:
        return {"dataset": self.name, "generation": self.generation, "attempts": {"0": "1"}}

    def seal(self, deadline_seconds: float = 30.0) -> bool:
        """Whether the server has answered in time that it is sealed."""
        try:
            action_within(deadline_seconds, self._client, "seal", self.body())
        except flight.FlightTimedOutError:
            return False
        return True

    def drop(self) -> bool:
        """Drop it while it is staged; False if it was sealed."""
        try:
            action(self._client, "drop", staged=True, dataset=self.name, generation=self.generation)
        except pa.ArrowKeyError:
            return False
        return True


def read(client: flight.FlightClient, name: str) -> int | None:
    """The first number of the dataset's rows, which tells its tables apart; None if there is none."""
    return get(client, name)["number"][0].as_py() if name in names(client) else None


@pytest.mark.long
def test_a_drop_after_a_seal_that_was_given_up_wins_or_is_refused_also_after_a_crash(start: Start) -> None:
    server, client = start()
    for deadline_ms in DEADLINES_MS:
        name = f"d{deadline_ms}"
        assert Staged(client, name, table(10, seed=1)).seal()
        new = Staged(client, name, table(10, seed=2))
        server.delay(**SLOW, unlink=0.1)
        sealed = new.seal(deadline_ms / 1000)
        dropped = new.drop()
        assert not (sealed and dropped)
        before = read(client, name)
        server, client = start()
        assert read(client, name) == before == (1 if dropped else 2)


def test_a_dataset_whose_partitions_were_asked_for_before_a_seal_that_narrows_is_there_after_a_restart(
    start: Start,
) -> None:
    server, client = start()
    data = table(10, seed=1)
    for name, narrowed in (("count", {"partitions": 2}), ("size", {"partition_bytes": 1 << 20})):
        created = action(
            client,
            "create",
            dataset=name,
            kind="shuffle",
            partitions=9,
            mode="new",
            write=name,
            durable=True,
        )
        generation = created["generation"]
        put_attempt(client, name, {1: data}, generation=generation)
        early = flight.FlightDescriptor.for_path(name)
        ticket = flight.Ticket(
            b'{"dataset": "%b", "generation": "%b", "partition": 7}' % (name.encode(), generation.encode())
        )
        assert client.do_get(ticket).schema == data.schema  # it waits for the seal
        body = {"dataset": name, "generation": generation, "attempts": {"0": "1"}}
        action(client, "seal", **body, **narrowed)
        assert client.get_flight_info(early).total_records == 10
    assert server.terminate() == 0
    _, client = start()
    assert names(client) == {"count", "size"}
    assert get(client, "count", 1).equals(data)
    assert get(client, "size").equals(data)
