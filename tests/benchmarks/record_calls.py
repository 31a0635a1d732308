"""Clients of the benchmark of the server's records: pyarrow's own, each in a thread with a connection of its own.

``Clients(location, n)`` opens the connections once; each method shares its work out among them and returns when the
server has acknowledged all of it. The first error of a client is raised.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import CreateRequest, Kind
from tests.support import raw_flight, raw_put
from tests.support.changelogs import declaration

ONE_ROW = pa.record_batch({"n": pa.array([7], pa.int64())})
SMALL = pa.record_batch({"n": pa.array(range(100), pa.int64()), "text": pa.array(["a text"] * 100)})
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
CHANGELOG_SCHEMA = pa.schema({"key": pa.int64(), "time": pa.int64(), "value": pa.float64()})
_FRAMES_AT_ONCE = 1000

_numbers = count(1)
"""Of names and of times, none of which comes twice in a run."""


class Clients:
    """``members`` clients of one server; also a context manager that closes their connections."""

    def __init__(self, location: str, members: int) -> None:
        self._stack = ExitStack()
        self._threads = self._stack.enter_context(ThreadPoolExecutor(members))
        self._clients = [self._stack.enter_context(flight.connect(location)) for _ in range(members)]
        self._lock = threading.Lock()

    def durable_puts(self, how_many: int) -> int:
        """Durable streams of one small batch, each under a new name: made, written and sealed."""
        self._share(_put_durable, (f"put-{next(_numbers)}" for _ in range(how_many)))
        return how_many

    def create_changelog(self, dataset: str) -> None:
        """One that keeps the latest row of each key."""
        _act(self._clients[0], "create", declaration(dataset, CHANGELOG_SCHEMA, keep=LATEST))

    def commits(self, dataset: str, how_many: int) -> int:
        """Versions of one row."""

        def commit(client: flight.FlightClient, number: int) -> None:
            row = pa.record_batch([[number % 1000], [number], [0.5]], schema=CHANGELOG_SCHEMA)
            descriptor = flight.FlightDescriptor.for_path(dataset)
            writer, answers = client.do_put(descriptor, row.schema)
            writer.write_batch(row)
            writer.done_writing()
            assert json.loads(answers.read().to_pybytes())["version"] > 0
            writer.close()

        self._share(commit, (next(_numbers) for _ in range(how_many)))
        return how_many

    def fill(self, datasets: int) -> None:
        """So many durable datasets, named for :meth:`drop`."""
        self._share(_put_durable, map(_filled, range(datasets)))

    def drop(self, datasets: int) -> None:
        """Drop what :meth:`fill` has made."""
        self._share(
            lambda client, name: _act(client, "drop", {"dataset": name}), map(_filled, range(datasets))
        )

    def read_one(self, dataset: str) -> float:
        """The seconds until one partition was read."""
        began = time.perf_counter()
        rows = self._clients[0].do_get(flight.Ticket(dataset.encode())).read_all().num_rows
        assert rows > 0, f"{dataset} has no rows"
        return time.perf_counter() - began

    def drop_one(self, dataset: str) -> None:
        _act(self._clients[0], "drop", {"dataset": dataset})

    def _share(self, work: Callable[[flight.FlightClient, Any], None], items: Iterable[Any]) -> None:
        waiting = iter(items)
        futures = [self._threads.submit(self._work, client, work, waiting) for client in self._clients]
        for each in futures:
            each.result()

    def _work(
        self,
        client: flight.FlightClient,
        work: Callable[[flight.FlightClient, Any], None],
        waiting: Iterator[Any],
    ) -> None:
        while True:
            with self._lock:
                item = next(waiting, None)
            if item is None:
                return
            work(client, item)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def first_filled() -> str:
    """A name that :meth:`Clients.fill` makes."""
    return _filled(0)


def put_wide(location: str, http: str | None, dataset: str, partitions: int) -> None:
    """A durable dataset of so many partitions, each with one frame of one row; returns when it is sealed."""
    request = CreateRequest(dataset, Kind.SHUFFLE, partitions=partitions, producers=1, durable=True)
    with flight.connect(location) as client:
        list(client.do_action(("create", request.encode())))
    descriptor = raw_flight.command({"dataset": dataset, "producer": 0, "attempt": "0"})
    first, _ = raw_flight.put_messages(descriptor, [ONE_ROW])
    batch = raw_flight.ipc_messages(ONE_ROW.schema, [ONE_ROW])[1]
    with raw_put.RawPut(f"{http}/v1/put") as put:
        put.socket.settimeout(None)
        put.send(first)
        for start in range(0, partitions, _FRAMES_AT_ONCE):
            places = range(start, min(start + _FRAMES_AT_ONCE, partitions))
            put.send(
                *(raw_flight.flight_data(batch.header, batch.body, metadata=b"%d" % each) for each in places)
            )
        put.send(raw_flight.commit(partitions, partitions))
        put.finish()


def _put_durable(client: flight.FlightClient, name: str) -> None:
    _act(client, "create", {"dataset": name, "durable": True})
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), SMALL.schema)
    writer.write_batch(SMALL)
    writer.close()


def _act(client: flight.FlightClient, name: str, body: dict[str, Any]) -> None:
    list(client.do_action((name, json.dumps(body).encode())))


def _filled(number: int) -> str:
    return f"filled-{number:06}"
