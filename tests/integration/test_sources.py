"""Sources over real sockets and processes: many first readers, relays, an upstream that goes or changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import flight

from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess

DEADLINE_SECONDS = 60.0
ROWS = 50_000
NEAR = {"source_flight": "127.0.0.1"}
A_PROXY = {"https_proxy": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
Start = Callable[..., ServerProcess]


def table_of(number: int) -> pa.Table:
    """A file's rows, with a dictionary that differs from file to file."""
    numbers = range(number * ROWS, (number + 1) * ROWS)
    words = pa.array([f"w{n % (3 + number)}" for n in numbers]).dictionary_encode()
    return pa.table({"n": pa.array(numbers), "word": words})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A root with three Parquet files."""
    root = tmp_path / "root"
    root.mkdir()
    for number in range(3):
        pq.write_table(table_of(number), root / f"part-{number}.parquet")
    return root


class Client:
    """A pyarrow client and the actions in JSON."""

    def __init__(self, location: str) -> None:
        self.flight = flight.connect(location)

    def action(self, name: str, **body: Any) -> dict[str, Any]:
        return action(self.flight, name, **body)

    def create(self, name: str, /, **source: Any) -> str:
        return str(self.action("create", dataset=name, kind="source", source=source)["generation"])

    def info(self, dataset: str) -> Any:
        return self.flight.get_flight_info(flight.FlightDescriptor.for_path(dataset))

    def read(self, ticket: Any) -> pa.Table:
        return self.flight.do_get(ticket, flight.FlightCallOptions(timeout=DEADLINE_SECONDS)).read_all()

    def tables(self, dataset: str) -> list[pa.Table]:
        return [self.read(endpoint.ticket) for endpoint in self.info(dataset).endpoints]


@pytest.fixture
def connect() -> Iterator[Callable[[ServerProcess], Client]]:
    """Return a function that connects to a server; its clients are closed at the end."""
    clients: list[Client] = []

    def connected(server: ServerProcess) -> Client:
        clients.append(Client(server.location))
        return clients[-1]

    yield connected
    for client in clients:
        client.flight.close()


Connect = Callable[[ServerProcess], Client]


def same_rows(got: pa.Table, expected: pa.Table) -> bool:
    """Whether the rows are equal; the order of the dictionaries' words does not count."""
    return bool(
        got["n"].equals(expected["n"])
        and got["word"].cast(pa.string()).equals(expected["word"].cast(pa.string()))
    )


def test_a_source_larger_than_memory_is_read_whole_within_the_limit_and_again(
    flight_server_process: Start, connect: Connect, files: Path
) -> None:
    limit_bytes = 16 << 20
    rows = 1_000_000
    expected = pa.table({"n": pa.array(range(rows)), "m": pa.array(range(rows))})
    (files / "large").mkdir()
    for number in range(2):
        pq.write_table(expected, files / "large" / f"{number}")
    client = connect(server := flight_server_process(source_roots=files, memory_limit=limit_bytes))
    client.create("d", format="parquet", path="large")
    client.create("small", format="parquet", path="part-0.parquet")
    assert client.tables("small")[0].num_rows == ROWS
    for _ in range(2):
        assert all(table.equals(expected) for table in client.tables("d"))
    statistics = client.action("statistics")
    assert statistics["memory"]["peak_bytes"] <= limit_bytes
    # Frames that no reader needs were released, not spilled; the totals are known all the same.
    small = statistics["datasets"]["small"]
    assert (small["rows"], small["resident_bytes"]) == (ROWS, 0)
    assert client.tables("small")[0].num_rows == ROWS
    assert server.returncode is None


# Relays


def test_a_relay_fetches_each_partition_once_and_passes_on_the_same_bytes(
    flight_server_process: Start, connect: Connect, files: Path
) -> None:
    upstream = connect(server := flight_server_process(source_roots=files))
    relay = connect(flight_server_process(environment=A_PROXY, **NEAR))
    upstream.create("d", format="parquet", path=str(files))
    relay.create("near", flight=server.location, dataset="d")
    assert relay.info("near").schema.equals(table_of(0).schema)
    endpoints = relay.info("near").endpoints
    with ThreadPoolExecutor(12) as readers:
        futures = [
            (number, readers.submit(relay.read, endpoint.ticket))
            for _ in range(4)
            for number, endpoint in enumerate(endpoints)
        ]
        expected = [table_of(number) for number in range(3)]
        assert all(same_rows(future.result(), expected[number]) for number, future in futures)
    above, below = upstream.action("statistics", dataset="d"), relay.action("statistics", dataset="near")
    assert above["gets"] == below["pulls"] == 3
    assert below["gets"] == 12
    for index in ("0", "1", "2"):
        partitions = [
            each["partitions"][index] for each in (above["datasets"]["d"], below["datasets"]["near"])
        ]
        assert len({(each["rows"], each["frames"], each["bytes"]) for each in partitions}) == 1


def test_a_relay_whose_upstream_is_killed_fails_and_works_again_later(
    flight_server_process: Start, connect: Connect
) -> None:
    upstream = connect(server := flight_server_process())
    relay = connect(flight_server_process(source_failure_seconds=0, **NEAR))
    schema = pa.schema([("n", pa.int64())])
    writer, _ = upstream.flight.do_put(flight.FlightDescriptor.for_path("d"), schema)
    writer.write_batch(pa.record_batch([[1]], schema))
    eventually(lambda: "d" in upstream.action("statistics")["datasets"], expected=True)
    # A proxy keeps the address, because another process may take a released port.
    with Proxy.to(server.location) as address:
        generation = relay.create("d", flight=address.location, dataset="d")
        reader = relay.flight.do_get(flight.Ticket(b"d"), flight.FlightCallOptions(timeout=DEADLINE_SECONDS))
        assert reader.read_chunk().data.num_rows == 1
        server.kill()
        with pytest.raises(flight.FlightUnavailableError, match="the upstream says UNAVAILABLE"):
            reader.read_chunk()
        with pytest.raises(flight.FlightUnavailableError):  # still away: tried again, and failed again
            relay.read(flight.Ticket(b"d"))
        assert relay.action("statistics")["pulls"] == 2
        again = connect(started := flight_server_process())
        put(again, "d", [7, 8])
        address.redirect(started.location)
        # The generation that was relayed died with its server: never its first rows and then others.
        eventually(lambda: _generation_after_a_read(relay) != generation, expected=True)
        assert relay.read(flight.Ticket(b"d"))["n"].to_pylist() == [7, 8]


def test_a_relay_says_that_the_upstream_dataset_was_replaced_and_follows_with_a_new_generation(
    flight_server_process: Start, connect: Connect
) -> None:
    upstream = connect(server := flight_server_process())
    relay = connect(flight_server_process(source_failure_seconds=0, **NEAR))
    put(upstream, "d", [1, 2])
    generation = relay.create("d", flight=server.location, dataset="d")
    put(upstream, "d", [3], mode="overwrite")
    ticket = relay.info("d").endpoints[0].ticket
    with pytest.raises(
        flight.FlightUnavailableError, match="earlier generation of dataset 'd', which was replaced"
    ):
        relay.read(ticket)
    eventually(lambda: relay.action("statistics")["datasets"]["d"]["generation"] != generation, expected=True)
    with pytest.raises(KeyError, match="earlier generation"):
        relay.read(ticket)
    assert [table["n"].to_pylist() for table in relay.tables("d")] == [[3]]


def test_a_relay_of_one_generation_never_relays_another(
    flight_server_process: Start, connect: Connect
) -> None:
    upstream = connect(server := flight_server_process())
    relay = connect(flight_server_process(**NEAR))
    put(upstream, "d", [1])
    generation = upstream.action("statistics")["datasets"]["d"]["generation"]
    with pytest.raises(pa.ArrowInvalid, match="has generation"):
        relay.create("d", flight=server.location, dataset="d", generation="another")
    relay.create("d", flight=server.location, dataset="d", generation=generation)
    assert relay.read(flight.Ticket(b"d"))["n"].to_pylist() == [1]


def test_a_relay_has_a_token_for_its_upstream_and_shows_it_nowhere(
    flight_server_process: Start, connect: Connect, files: Path
) -> None:
    server = flight_server_process(source_roots=files, token="upstream-secret")
    relay = connect(near := flight_server_process(**NEAR))
    with pytest.raises(pa.ArrowInvalid, match="wants another 'token'"):
        relay.create("d", flight=server.location, dataset="d", token="wrong-secret")
    with pytest.raises(KeyError, match="there is no dataset 'd'"):
        relay.create("d", flight=server.location, dataset="d", token="upstream-secret")
    shown = json.dumps([relay.action("statistics"), relay.action("why")]) + "\n".join(near.log + server.log)
    assert "secret" not in shown


def test_an_upstream_that_is_not_there_is_unavailable(flight_server_process: Start, connect: Connect) -> None:
    relay = connect(flight_server_process(**NEAR))
    with pytest.raises(flight.FlightUnavailableError, match="does not answer"):
        relay.create("d", flight="grpc://127.0.0.1:1", dataset="d")


def test_a_relay_whose_upstream_takes_a_read_and_is_silent_fails_at_the_deadline(
    flight_server_process: Start, connect: Connect
) -> None:
    relay = connect(flight_server_process(**NEAR, put_idle_seconds=1))
    with SilentServer() as silent:
        relay.create("d", flight=f"grpc://127.0.0.1:{silent.port}", dataset="d")
        try:
            with pytest.raises(flight.FlightUnavailableError, match="gave nothing for 1 s"):
                relay.tables("d")
        finally:
            silent.speak.set()


class PlainServer(flight.FlightServerBase):
    """pyarrow's own server with one dataset: no generations, no totals in trailers, no JSON tickets."""

    gets = 0

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        endpoint = flight.FlightEndpoint(b"\x00opaque", [])
        return flight.FlightInfo(table_of(0).schema, descriptor, [endpoint], -1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        assert ticket.ticket == b"\x00opaque"
        self.gets += 1
        return flight.RecordBatchStream(table_of(0))


class SilentServer(PlainServer):
    """The same; its reads wait for ``speak``."""

    def __init__(self) -> None:
        super().__init__()
        self.speak = threading.Event()

    def do_get(self, context: Any, ticket: Any) -> Any:
        self.speak.wait(DEADLINE_SECONDS)
        return super().do_get(context, ticket)


class Contradicting(PlainServer):
    """One whose streams do not fit its FlightInfo: they have other columns, or are not there."""

    streams: pa.Table | None = pa.table({"n": pa.array([1.5])})
    schema = table_of(0).schema

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        endpoint = flight.FlightEndpoint(b"opaque", [])
        return flight.FlightInfo(self.schema, descriptor, [endpoint], -1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        if self.streams is None:
            raise KeyError("no such stream")
        return flight.RecordBatchStream(self.streams)


def test_an_upstream_that_contradicts_itself_for_good_fails_and_is_no_new_generation(
    flight_server_process: Start, connect: Connect
) -> None:
    relay = connect(flight_server_process(source_failure_seconds=0, **NEAR))
    with Contradicting() as plain:
        generation = relay.create("d", flight=f"grpc://127.0.0.1:{plain.port}", dataset="d")
        ticket = relay.info("d").endpoints[0].ticket
        for _ in range(3):
            with pytest.raises(
                flight.FlightInternalError,
                match=r"FlightInfo .*n: int64, word: dictionary.*stream .*n: double",
            ) as failed:
                relay.read(ticket)
            assert "cast the batches" not in str(failed.value)
        plain.streams = None
        for _ in range(2):
            with pytest.raises(flight.FlightInternalError, match=r"lists .* and does not find"):
                relay.read(ticket)
        plain.streams = table_of(0)  # mended
        assert same_rows(relay.read(ticket), table_of(0))
        assert relay.action("statistics")["datasets"]["d"]["generation"] == generation


def test_a_relay_of_a_server_of_another_kind_follows_a_changed_schema(
    flight_server_process: Start, connect: Connect
) -> None:
    relay = connect(flight_server_process(source_failure_seconds=0, **NEAR))
    with Contradicting() as plain:
        generation = relay.create("d", flight=f"grpc://127.0.0.1:{plain.port}", dataset="d")
        assert plain.streams is not None
        plain.schema = plain.streams.schema
        with pytest.raises(flight.FlightUnavailableError, match="new generation"):
            relay.read(relay.info("d").endpoints[0].ticket)
        eventually(lambda: _generation_after_a_read(relay) != generation, expected=True)
        assert relay.tables("d")[0].equals(plain.streams)


def put(client: Client, dataset: str, numbers: list[int], **command: Any) -> None:
    """Write a dataset of one partition."""
    schema = pa.schema([("n", pa.int64())])
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"dataset": dataset, **command}).encode())
    writer, _ = client.flight.do_put(descriptor, schema)
    writer.write_batch(pa.record_batch([numbers], schema))
    writer.close()


def _generation_after_a_read(client: Client) -> str:
    with suppress(flight.FlightUnavailableError):
        client.read(flight.Ticket(b"d"))
    return str(client.action("statistics")["datasets"]["d"]["generation"])


@pytest.mark.long
def test_sources_that_are_dropped_while_flights_are_listed_end_no_list(
    flight_server_process: Start, connect: Connect, tmp_path: Path
) -> None:
    for number in range(200):
        with pa.ipc.new_file(tmp_path / f"{number}.arrow", pa.schema([("n", pa.int8())])):
            pass
    server = flight_server_process(source_roots=tmp_path)
    client = connect(server)
    # Long names, so that the list is far longer than what gRPC takes ahead of its reader.
    names = [f"{number:02}-{'x' * 190}" for number in range(20)]
    for name in names:
        client.create(name, format="ipc", path=str(tmp_path))
    with RawFlight(server.location, ahead_bytes=64 << 10) as raw:
        listing = iter(raw.call("ListFlights", b""))
        next(listing)
        for name in names:
            client.action("drop", dataset=name)
        assert len(list(listing)) < len(names) - 1
