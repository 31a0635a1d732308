"""Clients of the bulk lane that end their input are disconnected, at a real server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.bulk import get
from tests.support.certificates import self_signed
from tests.support.durable import action, put
from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, path, put_messages
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
ROWS = 1 << 17
BATCH = pa.record_batch({"n": pa.array(range(ROWS), pa.int64())})
FRAMES = 20
"""20 MiB: more than the kernel keeps for a peer that reads nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(memory_limit="64MiB") as started:
        with RawFlight(started.location) as raw:
            raw.put(put_messages(path("d"), [BATCH] * FRAMES))
        yield started
        assert started.terminate() == 0, started.tail()


def asked(server: ServerProcess, dataset: str = "d", headers: str = "") -> socket.socket:
    """A connection that has asked for all of the dataset, and has read nothing."""
    parts = urlsplit(server.http or "")
    connection = socket.create_connection((parts.hostname, parts.port), 30)
    if parts.scheme == "https":
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection = trusting.wrap_socket(connection)
    head = f"GET /v1/datasets/{dataset} HTTP/1.1\r\nHost: {parts.netloc}\r\n{headers}\r\n"
    connection.sendall(head.encode())
    return connection


def waits(server: ServerProcess) -> Callable[[], list[str]]:
    return lambda: [wait["waiting_for"] for wait in get(f"{server.http}/v1/why").json()["waits"]]


def leave(connection: socket.socket) -> None:
    """Close it as a client that is done: with nothing unread, for which the kernel would send a reset."""
    connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):  # a part of TLS
        while connection.recv(1 << 20):
            pass
    connection.close()


def test_a_reader_that_ends_its_input_and_takes_nothing_is_cut(server: ServerProcess) -> None:
    with asked(server) as connection:
        eventually(waits(server), ["reader"])
        connection.shutdown(socket.SHUT_WR)
        eventually(lambda: "reader" in waits(server)(), expected=False)


def test_a_reader_that_has_left_is_cut(server: ServerProcess) -> None:
    connection = asked(server)
    eventually(waits(server), ["reader"])
    leave(connection)
    eventually(lambda: "reader" in waits(server)(), expected=False)


def test_a_reader_that_leaves_while_it_waits_for_a_producer_is_cut(server: ServerProcess) -> None:
    first, frame = put_messages(path("open"), [BATCH.slice(0, 10)])
    with RawFlight(server.location) as raw:
        put = OpenPut(raw)
        put.send(first)
        put.send(frame)
        eventually(lambda: "open" in raw.action("statistics")["datasets"], expected=True)
        connection = asked(server, "open")
        eventually(lambda: set(waits(server)()), {"writer", "producer"})
        leave(connection)
        eventually(lambda: "producer" in waits(server)(), expected=False)


@pytest.mark.parametrize("headers", ["", "Content-Length: 1\r\n"], ids=["asked", "without its body"])
def test_a_reader_that_leaves_over_tls_is_cut_at_once(
    flight_server_process: Start, tmp_path: Path, headers: str
) -> None:
    cert, key = self_signed(tmp_path)
    server = flight_server_process(tls_cert=cert, tls_key=key, memory_limit="64MiB")
    data = pa.Table.from_batches([BATCH] * FRAMES)
    with flight.connect(server.location, tls_root_certs=cert.read_bytes()) as client:
        put(client, data, chunk_rows=ROWS, dataset="d")

        def readers() -> list[str]:
            return [wait["waiting_for"] for wait in action(client, "why")["waits"]]

        connection = asked(server, headers=headers)
        eventually(readers, ["reader"])
        leave(connection)
        # Sooner than the TLS layer, which waits 30 s for such a peer.
        eventually(lambda: "reader" in readers(), expected=False, deadline_seconds=20)
