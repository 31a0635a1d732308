"""An error that a reader or writer got over is freed with its frames, which have sockets, without the collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import PutCommand, Ticket
from spark_client.connection import RemoteServer, Timeouts, Unreachable, Writing
from spark_client.lanes import put_stream
from spark_client.lanes.lane import BrokenStream
from spark_client.lanes.partition_stream import PartitionStream

pytestmark = pytest.mark.usefixtures("hasty")

NOWHERE = "grpc://127.0.0.1:1"
COMMAND = PutCommand("d", producer=0, attempt="1")


@pytest.fixture
def errors() -> Iterator[list[weakref.ref[Unreachable]]]:
    """The errors that :func:`failing` has raised; no collector runs meanwhile."""
    gc.disable()
    yield []
    gc.enable()


def failing(errors: list[weakref.ref[Unreachable]], times: int) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        if len(errors) < times:
            error = Unreachable("the connection failed")
            errors.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

    return call


@pytest.mark.parametrize("lane", ["auto", "bulk"])
def test_of_a_put(errors: list[weakref.ref[Unreachable]], lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_stream, "BulkWriter", failing(errors, 2))
    monkeypatch.setattr(put_stream, "GrpcWriter", lambda *_, **__: None)
    server, places = (
        RemoteServer(NOWHERE, writing=Writing(lane)),
        ["http://127.0.0.1:1", "http://127.0.0.1:2"],
    )
    try:
        put_stream.open_writing(server, COMMAND, pa.schema([]), places)
        assert lane == "auto"
    except Unreachable:
        assert lane == "bulk"
    assert [error() for error in errors] == [None, None]


@pytest.mark.parametrize("tries", [1, 2])
def test_of_a_read(
    errors: list[weakref.ref[Unreachable]], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionStream, "_begin", failing(errors, 2))
    timeouts = Timeouts(tries=tries)
    stream = PartitionStream(RemoteServer(NOWHERE, timeouts=timeouts), Ticket("d", 0))
    try:
        stream._connect(None)
    except BrokenStream:
        assert tries == 1
    assert [error() for error in errors] == [None, None]
