"""Changelogs of a server that is killed again and again, at random steps of its writing, while producers put, a reader
follows and merges go on.
"""

from __future__ import annotations

import base64
import json
import random
import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import flight

from flight_server.kinds.changelog.writes import CHUNK_ROWS
from tests.support.durable import OPTIONS, action
from tests.support.faulty_disk import FaultyServer
from tests.support.polling import eventually

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
ROUNDS = 9
STEPS = 40
LARGE_ROWS = CHUNK_ROWS + 10
Rows = NDArray[np.int64]


class Place:
    """Where the server is now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._location: str | None = None
        self.ended = threading.Event()

    def tell(self, location: str | None) -> None:
        with self._changed:
            self._location = location
            self._changed.notify_all()

    def client(self) -> flight.FlightClient | None:
        with self._changed:
            self._changed.wait_for(lambda: self._location is not None or self.ended.is_set(), 60.0)
            return None if self._location is None or self.ended.is_set() else flight.connect(self._location)


def table(keys: Rows, time: int) -> pa.Table:
    return pa.table([pa.array(keys), pa.array(np.full(len(keys), time))], schema=SCHEMA)


def array(batches: pa.Table, *names: str) -> Rows:
    """The rows as an array, sorted."""
    found = np.column_stack([batches.column(name).to_numpy() for name in names])
    return found[np.lexsort(found.T[::-1])]


@dataclass
class Producer:
    """Puts into one changelog, one after the other, each until it is acknowledged."""

    dataset: str
    place: Place
    keys_of_put: list[Rows]
    acknowledged: list[int] = field(default_factory=list)  # the version of each put
    failure: BaseException | None = None

    def run(self) -> None:
        try:
            while (
                len(self.acknowledged) < len(self.keys_of_put) and (client := self.place.client()) is not None
            ):
                with closing(client):
                    self._put_until_it_breaks(client)
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.failure = error

    def reaches(self, puts: int) -> None:
        """Wait until so many are acknowledged."""
        eventually(lambda: len(self.acknowledged) >= puts or self.failure is not None, True)

    def _put_until_it_breaks(self, client: flight.FlightClient) -> None:
        try:
            while not self.place.ended.is_set() and len(self.acknowledged) < len(self.keys_of_put):
                number = len(self.acknowledged)
                version = self._put(client, table(self.keys_of_put[number], number), number + 1)
                self.acknowledged.append(version)
        except (flight.FlightUnavailableError, flight.FlightCancelledError, flight.FlightTimedOutError):
            pass

    def _put(self, client: flight.FlightClient, rows: pa.Table, transaction: int) -> int:
        said: dict[str, Any] = {"id": "producer", "version": transaction}
        if transaction > 1:
            said["after"] = transaction - 1
        command = json.dumps({"dataset": self.dataset, "transaction": said})
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(command), SCHEMA, OPTIONS)
        with writer:
            writer.write_table(rows, max_chunksize=1 << 16)
            writer.done_writing()
            answer = reader.read()
        assert answer is not None
        return int(json.loads(answer.to_pybytes())["version"])

    def every_row(self, puts: int) -> Rows:
        """All rows of the first puts."""
        tables = [table(keys, number) for number, keys in enumerate(self.keys_of_put[:puts])]
        return array(pa.concat_tables([SCHEMA.empty_table(), *tables]), "key", "time")

    def latest(self, puts: int) -> Rows:
        """The latest row of each key of the first puts."""
        times = np.full(LARGE_ROWS, -1)
        for number, keys in enumerate(self.keys_of_put[:puts]):
            times[keys] = number
        keys = np.flatnonzero(times >= 0)
        return np.column_stack([keys, times[keys]])


@dataclass
class Follower:
    """Follows a changelog over the deaths of its server."""

    dataset: str
    place: Place
    position: int = 0
    changes: list[pa.Table] = field(default_factory=list)
    failure: BaseException | None = None

    def run(self) -> None:
        try:
            while (client := self.place.client()) is not None:
                with closing(client):
                    self._follow_until_it_breaks(client)
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.failure = error

    def _follow_until_it_breaks(self, client: flight.FlightClient) -> None:
        ticket = {"dataset": self.dataset, "after": self.position, "follow": True}
        step: list[pa.RecordBatch] = []
        try:
            for chunk in client.do_get(flight.Ticket(json.dumps(ticket).encode())):
                said = json.loads(chunk.app_metadata.to_pybytes())
                assert said["version"] > self.position, "a version comes twice"
                step.append(chunk.data)
                if said.get("last"):
                    self.changes.append(pa.Table.from_batches(step))
                    step, self.position = [], said["version"]
        except (flight.FlightError, pa.ArrowInvalid, OSError) as error:
            if "was compacted" in str(error):
                raise

    def rows(self) -> Rows:
        """What the changes amount to."""
        whole = pa.concat_tables(self.changes).group_by(["key", "time"]).aggregate([("_diff", "sum")])
        counts = whole.column("_diff_sum").to_numpy()
        assert set(np.unique(counts)) <= {0, 1}, "a row is there twice, or less than never"
        return array(whole.filter(pa.array(counts == 1)), "key", "time")


def snapshot(client: flight.FlightClient, dataset: str, version: int | None = None) -> Rows:
    ticket = {"dataset": dataset} if version is None else {"dataset": dataset, "as_of": version}
    return array(client.do_get(flight.Ticket(json.dumps(ticket).encode()), OPTIONS).read_all(), "key", "time")


def statistics(client: flight.FlightClient, dataset: str) -> dict[str, Any]:
    said: dict[str, Any] = action(client, "statistics")["datasets"][dataset]["changelog"]
    return said


def is_compacted(client: flight.FlightClient, dataset: str) -> bool:
    said = statistics(client, dataset)
    return bool(said["debt_rows"] * 8 <= said["rows"] and not said["merging"])


@pytest.mark.long
def test_a_server_that_is_killed_at_any_moment_keeps_every_acknowledged_version_once(data_dir: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    place = Place()
    log = Producer("log", place, [np.arange(5 * n, 5 * n + 5) for n in range(100_000)])
    some = np.random.default_rng(seed)
    sizes = [LARGE_ROWS if number % 20 == 7 else chance.randrange(1, 2000) for number in range(3000)]
    rates = Producer(
        "rates",
        place,
        [
            np.arange(size) if size == LARGE_ROWS else np.unique(some.integers(0, 3000, size))
            for size in sizes
        ],
    )
    follower = Follower("rates", place)
    threads = [threading.Thread(target=each.run) for each in (log, rates, follower)]
    server = FaultyServer.start(data_dir)
    try:
        with closing(flight.connect(server.location)) as client:
            text = SCHEMA.serialize().to_pybytes()
            for name, keep in (("log", {}), ("rates", {"keep": LATEST})):
                schema = base64.b64encode(text).decode()
                action(
                    client, "create", dataset=name, kind="changelog", schema=schema, delay_seconds=0.0, **keep
                )
            held = {"dataset": "rates", "hold": "pinned", "lease_seconds": 3600.0}
            action(client, "hold", **{**held, "hold": "start"})
            place.tell(server.location)
            for thread in threads:
                thread.start()
            rates.reaches(3)
            pinned = action(client, "hold", **held)["version"]
            expected = snapshot(client, "rates", pinned)
            np.testing.assert_array_equal(expected, rates.latest(pinned))
        for number in range(ROUNDS):
            if number % 3 == 2:  # else a large put would never be whole
                rates.reaches(len(rates.acknowledged) + chance.randrange(2, 6))
            server.kill_at(chance.randrange(STEPS))
            server.wait()
            place.tell(None)
            server.close()
            acknowledged = {each.dataset: len(each.acknowledged) for each in (log, rates)}
            server = FaultyServer.start(data_dir)
            with closing(flight.connect(server.location)) as client:
                for each, model in ((log, log.every_row), (rates, rates.latest)):
                    now = statistics(client, each.dataset)
                    least = acknowledged[each.dataset]
                    assert each.acknowledged[:least] == list(range(1, least + 1))
                    assert least <= now["upper"] <= least + 1, f"round {number}"
                    np.testing.assert_array_equal(snapshot(client, each.dataset), model(now["upper"]))
                assert action(client, "hold", **held)["version"] == pinned
                np.testing.assert_array_equal(snapshot(client, "rates", pinned), expected)
                assert action(client, "statistics")["quarantine"] == []
            place.tell(server.location)
        rates.reaches(max(len(rates.acknowledged) + 5, 10))  # with a large put
        place.ended.set()
        for thread in threads[:2]:
            thread.join(60.0)
        with closing(flight.connect(server.location)) as client:
            upper = statistics(client, "rates")["upper"]
            eventually(lambda: follower.position, upper)
            for name in ("pinned", "start"):
                action(client, "hold", dataset="rates", hold=name, release=True)
            eventually(lambda: is_compacted(client, "rates"), True)
            np.testing.assert_array_equal(snapshot(client, "rates"), rates.latest(upper))
    finally:
        place.ended.set()
        place.tell(None)
        server.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join(60.0)
    for failure in (log.failure, rates.failure, follower.failure):
        if failure is not None:
            raise failure
    np.testing.assert_array_equal(follower.rows(), rates.latest(follower.position))
