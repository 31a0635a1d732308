"""Relays in a tree, over real sockets and processes: frames go from host to host, and a lost one is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, Refused
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
SCHEMA = pa.schema([("n", pa.int64())])
DEADLINE_SECONDS = 60.0
NAME = "copies/file"


class Tree:
    """An origin with a dataset that is still produced, and hosts with a relay of it each."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.origin = start()
        self.client = flight.connect(self.origin.location)
        self.writer, self.answers = self.client.do_put(flight.FlightDescriptor.for_path("d"), SCHEMA)
        self.written = 0
        self.write(1)
        with RawFlight(self.origin.location) as raw:

            def datasets() -> dict[str, Any]:
                listed: dict[str, Any] = raw.action("statistics", {})["datasets"]
                return listed

            eventually(lambda: [*datasets()], ["d"])
            self.generation = datasets()["d"]["generation"]

    def write(self, frames: int) -> None:
        for _ in range(frames):
            self.writer.write_batch(pa.record_batch([[self.written, self.written + 1]], SCHEMA))
            self.written += 2

    def host(self, name: str, *, source_flight: str = "*", keeps: bool = True) -> ServerProcess:
        """A server with a relay, of a host that says that it keeps a file."""
        server = self.start(source_flight=source_flight)
        if keeps:
            body = {"dataset": "d", "generation": self.generation, "host": name, "file": "file"}
            with RawFlight(self.origin.location) as raw:
                raw.action("copies", {"verb": "keep", **body})
        self.create(server, {"host": name, "file": "file", "location": server.location})
        return server

    def create(self, server: ServerProcess, place: object, **spec: Any) -> None:
        source = {
            "flight": self.origin.location,
            "dataset": "d",
            "generation": self.generation,
            "tree": place,
        }
        with RawFlight(server.location) as raw:
            raw.action("create", {"dataset": NAME, "kind": "source", "source": {**source, **spec}})


class Reader:
    """Reads a relay to its end in a thread."""

    def __init__(self, server: ServerProcess) -> None:
        self._client = flight.connect(server.location)
        options = flight.FlightCallOptions(timeout=DEADLINE_SECONDS)
        self._reader = self._client.do_get(flight.Ticket(NAME.encode()), options)
        self.rows: list[int] = []
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        # Of a host that is killed.
        with closing(self._client), suppress(flight.FlightUnavailableError):
            for chunk in self._reader:
                with self._more:
                    self.rows += chunk.data["n"].to_pylist()
                    self._more.notify_all()

    def wait_for(self, rows: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self.rows) >= rows, DEADLINE_SECONDS), self.rows

    def result(self) -> list[int]:
        self._thread.join(DEADLINE_SECONDS)
        return self.rows


@pytest.fixture
def tree(flight_server_process: Start) -> Iterator[Tree]:
    made = Tree(flight_server_process)
    with closing(made.client):
        yield made
        made.writer.close()


def served(server: ServerProcess) -> int:
    """How many frames a server has sent."""
    with RawFlight(server.location) as raw:
        return int(raw.action("statistics", {})["frames_out"])


def test_hosts_pass_frames_on_while_they_arrive_and_the_origin_sends_to_two(tree: Tree) -> None:
    hosts = [tree.host(name) for name in "abcd"]
    readers = []
    for server in hosts:
        readers.append(Reader(server))
        readers[-1].wait_for(2)
    tree.write(9)
    for reader in readers:
        reader.wait_for(20)
    tree.writer.close()
    assert [reader.result() for reader in readers] == [list(range(20))] * 4
    assert served(tree.origin) == 2 * 10
    assert [served(server) for server in hosts] == [20, 20, 10, 10], (
        "each its own reader, and two another host"
    )


def test_a_lost_parent_is_replaced_at_the_next_frame_and_its_readers_readers_see_nothing(tree: Tree) -> None:
    hosts = [tree.host(name) for name in "abcde"]
    readers = []
    for server in hosts:
        readers.append(Reader(server))
        readers[-1].wait_for(2)
    below, last = readers[2], Reader(hosts[2])
    hosts[0].kill()
    tree.write(9)
    for reader in (*readers[1:], last):
        reader.wait_for(20)
    tree.writer.close()
    assert [reader.result() for reader in (*readers[1:], last)] == [list(range(20))] * 5
    assert below.rows == last.rows


def test_a_host_reads_only_from_places_that_its_configuration_lists(tree: Tree) -> None:
    hosts = [tree.host(name) for name in "ab"]
    third = tree.host("c", source_flight=tree.origin.location)
    readers = []
    for server in (*hosts, third):
        readers.append(Reader(server))
        readers[-1].wait_for(2)
    tree.writer.close()
    assert [reader.result() for reader in readers] == [[0, 1]] * 3
    assert served(tree.origin) == 3
    assert served(hosts[0]) == served(hosts[1]) == 1


def test_what_a_tree_cannot_pass_on_is_refused(tree: Tree) -> None:
    words = pa.table({"word": pa.array(["a", "b"]).dictionary_encode()})
    writer, _ = tree.client.do_put(flight.FlightDescriptor.for_path("words"), words.schema)
    writer.write_table(words)
    writer.close()
    with RawFlight(tree.origin.location) as raw:
        generation = raw.action("statistics", {"dataset": "words"})["datasets"]["words"]["generation"]
    place = {"host": "a", "file": "file", "location": "grpc://a:1"}
    server = tree.start(source_flight="*")
    for of_tree, spec, wrong in (
        (
            place,
            {"dataset": "words", "generation": generation},
            "several partitions, or dictionaries: leave 'tree' out",
        ),
        (place, {"generation": None}, "with 'tree' it needs 'generation'"),
        ("a", {}, "source: 'tree' must be an object with host, file, location"),
        ({**place, "location": "http://a"}, {}, "'location' is grpc://host:port"),
        ({"location": "grpc://a:1"}, {}, "to fetch also 'host' and 'file'"),
    ):
        with pytest.raises(Refused, match=wrong) as refused:
            tree.create(server, of_tree, **spec)
        assert refused.value.status == "INVALID_ARGUMENT"
