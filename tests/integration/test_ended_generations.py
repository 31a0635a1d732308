"""Generations without a name, which only paused readers hold, at a real server with a small disk."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from tests.support.raw_flight import RawFlight, command, put_messages
from tests.support.server_process import ServerProcess

MIB = 1 << 20
FRAMES = 20


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(
        memory_limit="16MiB", disk_limit="48MiB", segment_size="4MiB", stall_seconds=1
    ) as server:
        yield server


def overwrite(raw: RawFlight) -> None:
    """Put 20 MiB in place of what there is."""
    batches = [pa.record_batch({"bytes": pa.array([os.urandom(MIB)])}) for _ in range(FRAMES)]
    raw.put(put_messages(command({"dataset": "d", "mode": "overwrite"}), batches))


@contextmanager
def paused_over_grpc(server: ServerProcess) -> Iterator[None]:
    with RawFlight(server.location, ahead_bytes=64 << 10) as raw:
        call = raw.call("DoGet", b"\x0a\x01d")
        next(call)
        yield
        call.cancel()


@contextmanager
def paused_over_http(server: ServerProcess) -> Iterator[None]:
    assert server.http is not None
    parts = urlsplit(server.http)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        connection.connect((parts.hostname, parts.port))
        connection.sendall(
            f"GET /v1/datasets/d/partitions/0 HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        yield


Pause = Callable[[ServerProcess], AbstractContextManager[None]]


@pytest.mark.parametrize("pause", [paused_over_grpc, pytest.param(paused_over_http, marks=pytest.mark.long)])
def test_producers_get_the_disk_of_generations_that_only_paused_readers_hold(
    server: ServerProcess, pause: Pause
) -> None:
    with RawFlight(server.location) as raw:
        overwrite(raw)
        with pause(server):
            overwrite(raw)
            with pause(server):
                for _ in range(3):
                    overwrite(raw)
                assert raw.action("statistics")["readers_ended_as_too_slow"] >= 1


def test_what_an_ended_generation_holds_is_listed_until_its_reader_leaves(server: ServerProcess) -> None:
    def ended(name: str) -> dict[str, Any]:
        with RawFlight(server.location) as raw:
            found: dict[str, Any] = raw.action(name)["ended"]
            return found

    with RawFlight(server.location) as raw:
        overwrite(raw)
        (before,) = raw.action("statistics")["datasets"].values()
        with paused_over_http(server):
            overwrite(raw)
            for name in ("statistics", "why"):
                found = ended(name)
                (generation,) = found.pop("generations")
                assert (generation["dataset"], generation["generation"]) == ("d", before["generation"])
                assert generation["readers"] == found["count"] == 1
                assert found["disk_bytes"] == generation["disk_bytes"] >= 16 * MIB
                assert found["resident_bytes"] == generation["resident_bytes"]
        while ended("why")["count"]:
            pass
