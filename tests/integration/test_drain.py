"""The end of a server: which calls are refused, which may finish, with which errors, and which data stays."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pyarrow import flight

from tests.support.durable import OPTIONS, action, get, names, put, put_attempt, table
from tests.support.server_process import ServerProcess

DATA = table()
LONG_SECONDS, SHORT_SECONDS = 60.0, 1.0

Servers = Callable[..., ServerProcess]
WAYS: dict[str, Callable[[ServerProcess, flight.FlightClient], object]] = {
    "sigterm": lambda server, client: server.signal(signal.SIGTERM),
    "action": lambda server, client: action(client, "drain"),
}


@pytest.fixture(params=WAYS)
def drain(request: pytest.FixtureRequest) -> Callable[[ServerProcess, flight.FlightClient], object]:
    return WAYS[request.param]


def begin_put(client: flight.FlightClient, dataset: str, **options: object) -> Any:
    """A put that has written one batch, which readers have seen, and goes on."""
    action(client, "create", dataset=dataset, **options)
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(dataset), DATA.schema, OPTIONS)
    writer.write_batch(DATA.to_batches()[0])
    assert client.do_get(flight.Ticket(dataset.encode()), OPTIONS).read_chunk().data.num_rows
    return writer


def wait_until_draining(server: ServerProcess) -> Iterator[None]:
    """Wait for the health service to say so."""
    with grpc.insecure_channel(server.location.removeprefix("grpc://")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=LONG_SECONDS)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        yield
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


def refused(call: Callable[[], object]) -> dict[str, Any]:
    """What a call is refused with, as pyarrow shows it."""
    with pytest.raises(flight.FlightUnavailableError) as caught:
        call()
    refusal: dict[str, Any] = json.loads(caught.value.extra_info)
    return refusal


def test_a_drain_refuses_what_is_new_and_lets_finish_what_runs(
    flight_server_process: Servers, drain: Callable[[ServerProcess, flight.FlightClient], object]
) -> None:
    server = flight_server_process(http_port=-1, drain_grace_seconds=LONG_SECONDS)
    with closing(flight.connect(server.location)) as client:
        put(client, DATA, dataset="there")
        action(client, "create", dataset="shuffle", kind="shuffle", partitions=2)
        writer = begin_put(client, "running")
        reader = client.do_get(flight.Ticket(b"running"), OPTIONS)
        watching = wait_until_draining(server)
        next(watching)
        drain(server, client)
        next(watching, None)
        for call in (
            lambda: action(client, "create", dataset="new"),
            lambda: put(client, DATA, dataset="new"),
            lambda: put(client, DATA, dataset="there", mode="overwrite"),
            lambda: put_attempt(client, "shuffle", {0: DATA}),
            lambda: get(client, "there"),
        ):
            refusal = refused(call)
            assert refusal["error"] == "draining"
            assert refusal["retryable"] is True
        # What runs goes on in both directions, and what tells about it still answers.
        assert action(client, "statistics")["draining"] is True
        writer.write_batch(DATA.to_batches()[0])
        writer.close()
        assert reader.read_all().num_rows == 2 * DATA.num_rows
    assert server.wait() == 0


def test_streams_that_outlast_the_grace_are_told_why_they_end(
    flight_server_process: Servers, drain: Callable[[ServerProcess, flight.FlightClient], object]
) -> None:
    server = flight_server_process(http_port=-1, drain_grace_seconds=SHORT_SECONDS)
    with closing(flight.connect(server.location)) as client:
        writer = begin_put(client, "running")
        readers = [client.do_get(flight.Ticket(b"running"), OPTIONS) for _ in range(3)]
        told: list[dict[str, Any]] = []
        threads = [
            threading.Thread(target=lambda reader=reader: told.append(refused(reader.read_all)))
            for reader in readers
        ]
        for thread in threads:
            thread.start()
        drain(server, client)
        for thread in threads:
            thread.join()
        assert [each["error"] for each in told] == ["draining"] * 3
        assert server.wait() == 0
        with pytest.raises(flight.FlightUnavailableError, match="going down"):
            writer.close()


def test_a_reader_that_takes_nothing_does_not_hold_up_the_end(flight_server_process: Servers) -> None:
    server = flight_server_process(http_port=-1, drain_grace_seconds=SHORT_SECONDS)
    big = pa.table({"bytes": [b"x" * (1 << 20)] * 32})
    with closing(flight.connect(server.location)) as client:
        put(client, big, chunk_rows=1, dataset="d")
        reader = client.do_get(flight.Ticket(b"d"), OPTIONS)
        reader.read_chunk()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            reader.read_all()


def test_durable_data_is_on_disk_when_the_process_has_ended(
    tmp_path: Path, flight_server_process: Servers
) -> None:
    server = flight_server_process(http_port=-1, data_dir=tmp_path, drain_grace_seconds=LONG_SECONDS)
    with closing(flight.connect(server.location)) as client:
        writer = begin_put(client, "sealed_in_the_grace", durable=True)
        watching = wait_until_draining(server)
        next(watching)
        server.signal(signal.SIGTERM)
        next(watching, None)
        writer.close()
    assert server.wait() == 0
    server = flight_server_process(http_port=-1, data_dir=tmp_path)
    with closing(flight.connect(server.location)) as client:
        assert names(client) == {"sealed_in_the_grace"}
        assert get(client, "sealed_in_the_grace") == DATA
