"""Resources of a client that vanished are released: datasets by their lease, streams by keepalive."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import NotFound
from spark_client import ShuffleClient
from tests.support.durable import OPTIONS, action, names, put, table
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.raw_flight import varint
from tests.support.server_process import ServerProcess

# A living peer has as long again to answer a ping, however busy its machine.
KEEPALIVE_SECONDS = 2
LEASE_ENDED = r"ended with its lease of 3 s at .* UTC \(to keep one, create it with a longer lease_seconds"

Servers = Callable[..., ServerProcess]
BIG = pa.table({"bytes": [bytes(1 << 20)] * 24})

# Reads one frame, says so, and then does what it reads from standard input, which is nothing.
READER = """
import sys
from pyarrow import flight
reader = flight.connect(sys.argv[1]).do_get(flight.Ticket(sys.argv[2].encode()))
reader.read_chunk()
print("reading", flush=True)
sys.stdin.read()
"""


@contextmanager
def reader_process(location: str, ticket: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", READER, location, ticket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            yield process
        finally:
            process.kill()


def held(client: flight.FlightClient) -> tuple[int, int]:
    """How many subscriptions there are, and the bytes on their way to readers."""
    statistics = action(client, "statistics")
    subscriptions = sum(dataset["readers"] for dataset in statistics["datasets"].values())
    return subscriptions, statistics["memory"]["accounts"]["sends"]["used_bytes"]


def nothing_is_held(client: flight.FlightClient) -> Callable[[], bool]:
    return lambda: held(client) == (0, 0)


def test_a_reader_killed_by_sigkill_frees_what_it_held(flight_server_process: Servers) -> None:
    server = flight_server_process(http_port=-1)
    with closing(flight.connect(server.location)) as client:
        put(client, BIG, chunk_rows=1, dataset="d")
        with reader_process(server.location, "d") as process:
            assert held(client)[0] == 1
            process.kill()
            eventually(nothing_is_held(client), expected=True)


@pytest.mark.long
def test_a_reader_behind_a_dead_network_frees_what_it_held(flight_server_process: Servers) -> None:
    server = flight_server_process(http_port=-1, keepalive_seconds=KEEPALIVE_SECONDS)
    with closing(flight.connect(server.location)) as client, Proxy.to(server.location) as proxy:
        put(client, BIG, chunk_rows=1, dataset="d")
        with reader_process(proxy.location, "d"):
            assert held(client)[0] == 1
            proxy.hold()
            eventually(nothing_is_held(client), expected=True)


@pytest.mark.long
def test_a_slow_reader_that_is_alive_is_not_taken_for_a_dead_one(flight_server_process: Servers) -> None:
    server = flight_server_process(http_port=-1, keepalive_seconds=KEEPALIVE_SECONDS)
    with closing(flight.connect(server.location)) as client:
        put(client, BIG, chunk_rows=1, dataset="d")
        reader = client.do_get(flight.Ticket(b"d"), OPTIONS)
        reader.read_chunk()
        # The wait is the point: three keepalive periods without a byte taken by the application.
        time.sleep(3 * KEEPALIVE_SECONDS)
        assert sum(chunk.data.num_rows for chunk in reader) == BIG.num_rows - 1


@pytest.mark.long
def test_a_producer_behind_a_dead_network_fails_its_partition(flight_server_process: Servers) -> None:
    server = flight_server_process(http_port=-1, keepalive_seconds=KEEPALIVE_SECONDS)
    with closing(flight.connect(server.location)) as client, Proxy.to(server.location) as proxy:
        action(client, "create", dataset="d")
        with closing(flight.connect(proxy.location)) as producer:
            writer, _ = producer.do_put(flight.FlightDescriptor.for_path("d"), BIG.schema, OPTIONS)
            writer.write_batch(BIG.to_batches(max_chunksize=1)[0])
            reader = client.do_get(flight.Ticket(b"d"), OPTIONS)
            assert reader.read_chunk().data.num_rows == 1
            proxy.hold()
            with pytest.raises(flight.FlightInternalError, match="broke off"):
                reader.read_chunk()
            proxy.close()
            with pytest.raises((flight.FlightError, pa.ArrowException)):
                writer.close()


def test_a_dataset_whose_lease_has_ended_is_dropped_with_all_that_it_held(
    flight_server_process: Servers,
) -> None:
    # Longer than writing a small dataset takes on any machine.
    server = flight_server_process(http_port=-1, lease_seconds=3)
    with closing(flight.connect(server.location)) as client:
        put(client, table(), dataset="d")
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("open"), BIG.schema, OPTIONS)
        eventually(lambda: names(client) == set(), expected=True)
        with pytest.raises((flight.FlightError, pa.ArrowException), match=f"'open' {LEASE_ENDED}"):
            writer.close()
        eventually(lambda: action(client, "statistics")["memory"]["used_bytes"], 0)
        with pytest.raises(pa.ArrowKeyError, match=f"no dataset 'd': it {LEASE_ENDED}"):
            client.do_get(flight.Ticket(b"d"), OPTIONS).read_all()
        with ShuffleClient(server.location) as shuffle, pytest.raises(NotFound, match=f"it {LEASE_ENDED}"):
            shuffle.get("d")


def test_reading_writing_and_renewing_renew_the_lease(flight_server_process: Servers) -> None:
    server = flight_server_process(http_port=-1)
    with closing(flight.connect(server.location)) as client:
        for name in ("read", "renewed", "renewed_by_arrow"):
            action(client, "create", dataset=name, lease_seconds=1000)
            put(client, table(), dataset=name)
        endpoint = client.get_flight_info(flight.FlightDescriptor.for_path("renewed_by_arrow")).endpoints[0]
        action(client, "create", dataset="written", lease_seconds=1000)
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("written"), BIG.schema, OPTIONS)
        # The schema is there, so the put has begun.
        client.get_schema(flight.FlightDescriptor.for_path("written"), OPTIONS)
        action(client, "create", dataset="unused", lease_seconds=1000)
        eventually(lambda: leases_left(client)["unused"] < 999.8, expected=True)
        before = leases_left(client)
        assert max(before, key=before.__getitem__) == "unused", "it was made last"
        client.do_get(flight.Ticket(b"read"), OPTIONS).read_all()
        action(client, "renew", dataset="renewed")
        list(client.do_action(flight.Action("RenewFlightEndpoint", renewal(endpoint)), OPTIONS))
        writer.write_batch(BIG.slice(0, 1).to_batches()[0])
        writer.close()
        # Compared with each other at one moment: however long all this has taken, renewed is after unused.
        after = leases_left(client)
        assert {name for name in after if after[name] > after["unused"]} == set(before) - {"unused"}


def leases_left(client: flight.FlightClient) -> dict[str, float]:
    datasets = action(client, "statistics")["datasets"]
    return {name: dataset["lease_left_seconds"] for name, dataset in datasets.items()}


def renewal(endpoint: flight.FlightEndpoint) -> bytes:
    """A RenewFlightEndpointRequest."""
    serialized = bytes(endpoint.serialize())
    return b"\x0a" + varint(len(serialized)) + serialized
