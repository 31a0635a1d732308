"""Reads of the bulk lane that end before their stream does, as the server's side of the connection sees them."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest

from flight_server.protocol import Ticket
from spark_client.connection import RemoteServer
from spark_client.lanes.read_stream import ReadStream
from tests.support.forked_child import in_child
from tests.support.http_source import HEAD, HttpSource, chunk, messages
from tests.support.merging import batches_from, partition_stream
from tests.support.polling import eventually

BATCH = pa.record_batch({"n": pa.array(range(100), pa.int64())})
RESET = {errno.ECONNRESET, errno.EPIPE}
"""The second one where the end of the input came before the reset."""

TCP_ESTABLISHED = 1


@pytest.fixture
def source() -> Iterator[HttpSource]:
    left = threading.Event()

    def answer(target: str, headers: dict[str, str]) -> Iterable[bytes]:
        yield HEAD
        yield from map(chunk, messages([BATCH], BATCH.schema)[:2])
        left.wait(20)

    with HttpSource(answer, closes=True) as made:
        yield made
        left.set()


def error_of(source: HttpSource) -> int:
    return source._sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@pytest.mark.parametrize("end", [ReadStream.cancel, lambda stream: None], ids=["cancelled", "closed"])
def test_a_read_that_ends_early_resets_its_connection(
    server: RemoteServer, source: HttpSource, end: Callable[[ReadStream], None]
) -> None:
    stream = partition_stream(server, Ticket("d", 0, None, 0), locations=[source.url], lane="bulk")
    assert next(batches_from(stream)) == BATCH
    end(stream)
    stream.close()
    eventually(lambda: error_of(source) in RESET, expected=True)


def test_a_forked_child_that_closes_a_read_leaves_the_connection_to_its_parent(
    server: RemoteServer, source: HttpSource
) -> None:
    stream = partition_stream(server, Ticket("d", 0, None, 0), locations=[source.url], lane="bulk")
    assert next(batches_from(stream)) == BATCH

    def child() -> None:
        stream.cancel()
        stream.close()

    in_child(child)
    state = source._sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    assert state == bytes([TCP_ESTABLISHED])
    stream.close()
