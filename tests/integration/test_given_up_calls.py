"""Calls that were given up at any moment, and a server that dies after them: a name leads to what it led to before, or
to what the call promised; and what a reader saw last is what the next start finds, or what the call promised.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.changelogs import rates
from tests.support.durable import action, action_within, names, put_attempt, table
from tests.support.faulty_disk import FaultyServer

OLD, NEW = table(300, seed=1), table(300, seed=5000)
SHORTEST_SECONDS, LONGEST_SECONDS = 0.0003, 0.05
SLOW = {"fsync": 0.01, "wal_sync": 0.01, "unlink": 0.01}
LOG = changelogs.SCHEMA

Found = Any
"""The table that a name leads to, None if there is none; of a changelog its newest version."""


def write_within(
    client: flight.FlightClient, seconds: float, name: str, data: pa.Table, **command: Any
) -> None:
    """A put that is cancelled when so many seconds are over."""
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"dataset": name, **command}).encode())
    writer, _ = client.do_put(descriptor, data.schema, flight.FlightCallOptions(timeout=seconds))
    with writer:
        writer.write_table(data)


def create(client: flight.FlightClient, name: str) -> None:
    action(client, "create", dataset=name, durable=True)


def create_old(client: flight.FlightClient, name: str) -> None:
    create(client, name)
    write_within(client, 30.0, name, OLD)


def create_shuffle(client: flight.FlightClient, name: str) -> None:
    action(client, "create", dataset=name, kind="shuffle", durable=True)
    put_attempt(client, name, {0: NEW})


def create_log(client: flight.FlightClient, name: str) -> None:
    changelogs.create(client, name, LOG, delay_seconds=0.0)


def put(client: flight.FlightClient, name: str, seconds: float) -> None:
    write_within(client, seconds, name, NEW)


def overwrite(client: flight.FlightClient, name: str, seconds: float) -> None:
    write_within(client, seconds, name, NEW, mode="overwrite")


def seal(client: flight.FlightClient, name: str, seconds: float) -> None:
    action_within(seconds, client, "seal", {"dataset": name, "attempts": {"0": "1"}})


def drop(client: flight.FlightClient, name: str, seconds: float) -> None:
    action_within(seconds, client, "drop", {"dataset": name})


def commit(client: flight.FlightClient, name: str, seconds: float) -> None:
    write_within(client, seconds, name, rates(("EUR", 1, 1.0)))


@dataclass(frozen=True)
class Case:
    """What makes a name, what is given up, and what it leads to before and after."""

    prepare: Callable[[flight.FlightClient, str], None]
    change: Callable[[flight.FlightClient, str, float], None]
    before: Found
    after: Found


CASES = {
    "put": Case(create, put, None, NEW),
    "overwrite": Case(create_old, overwrite, OLD, NEW),
    "seal": Case(create_shuffle, seal, None, NEW),
    "drop": Case(create_old, drop, OLD, None),
    "commit": Case(create_log, commit, 0, 1),
}


def look(client: flight.FlightClient, name: str, case: Case, seconds: float = 0.5) -> Found:
    """What a reader finds now, who waits so long."""
    if isinstance(case.before, int):
        step = changelogs.read(client, name)
        assert len(step.rows) == step.version
        return step.version
    if name not in names(client):
        return None
    try:
        ticket = flight.Ticket(name.encode())
        return client.do_get(ticket, flight.FlightCallOptions(timeout=seconds)).read_all()
    except (flight.FlightTimedOutError, flight.FlightUnavailableError, pa.ArrowKeyError):
        return None  # it is not sealed, or was dropped meanwhile
    except flight.FlightInternalError as error:
        if "its producer broke off" in str(error) or "was dropped by" in str(error):  # by then, or just now
            return None
        raise


@pytest.mark.parametrize("loses_power", [False, True], ids=["killed", "without power"])
@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=pytest.mark.long)])
def test_a_call_that_was_given_up_leaves_what_was_there_or_what_it_promised(
    data_dir: Path, loses_power: bool, rounds: int
) -> None:
    chance = random.Random(rounds)
    outcomes = set()
    for number in range(rounds):
        found: dict[str, tuple[Case, Found]] = {}
        with FaultyServer.start(data_dir, loses_power=loses_power) as server:
            with closing(flight.connect(server.location)) as client:
                for kind, case in CASES.items():
                    for each in range(4):
                        name = f"{kind}-{number}-{each}"
                        case.prepare(client, name)
                        found[name] = case, None
                server.delay(**SLOW)
                for name, (case, _) in found.items():
                    seconds = SHORTEST_SECONDS * (LONGEST_SECONDS / SHORTEST_SECONDS) ** chance.random()
                    with suppress(flight.FlightError, pa.ArrowException, OSError):
                        case.change(client, name, seconds)
                    found[name] = case, look(client, name, case)
            if loses_power:
                server.lose_power()
            else:
                server.kill()
        with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
            for name, (case, before) in found.items():
                assert before in (case.before, case.after), name
                after = look(client, name, case, seconds=30.0)
                assert after in (before, case.after), name
                outcomes.add((name.partition("-")[0], after == case.after))
            assert action(client, "statistics")["quarantine"] == []
            for name in names(client):
                action(client, "drop", dataset=name)
            server.kill()
    print(sorted(outcomes))
