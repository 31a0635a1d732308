"""The bulk lane against servers whose every byte is known, and how addresses are chosen."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import Ticket, Versions
from flight_server.protocol.errors import (
    Forbidden,
    InvalidRequest,
    PartitionFailed,
    ServerLost,
)
from spark_client.connection import RemoteServer
from spark_client.lanes import PartitionCursor, PortionCursor, ReadStream, VersionCursor, read_stream
from spark_client.lanes.bulk_get import target_of
from spark_client.lanes.cursors import Cursor
from spark_client.lanes.lane import BrokenStream, Closed, LaneReader
from spark_client.lanes.read_stream import Address, addresses
from tests.support.http_source import END_OF_STREAM, HEAD, HttpSource, chunk, last_chunk, messages, well
from tests.support.merging import batches_from, partition_stream

pytestmark = pytest.mark.usefixtures("hasty")

SCHEMA = pa.schema([("n", pa.int64())])
BATCHES = [pa.record_batch({"n": pa.array(np.arange(i * 100, (i + 1) * 100))}) for i in range(5)]
ROWS = list(range(500))


def stream_of(
    server: RemoteServer, source: HttpSource, start: int = 0, generation: str | None = None
) -> ReadStream:
    return partition_stream(server, Ticket("d", 0, generation, start), locations=[source.url], lane="bulk")


def read_all(stream: ReadStream) -> list[int]:
    numbers: list[int] = []
    try:
        for batch in batches_from(stream):
            numbers += batch["n"].to_pylist()
    finally:
        stream.close()
    return numbers


def pieces(batches: list[pa.RecordBatch] = BATCHES, start: int = 0) -> list[bytes]:
    """A good answer, in one list: head, schema, batches, end marker, last chunk."""
    return list(well(batches, batches[0].schema)(f"/?from={start}", {}))


def test_a_whole_partition_is_read_from_an_aligned_buffer(server: RemoteServer) -> None:
    with HttpSource(well(BATCHES, SCHEMA)) as source:
        stream = stream_of(server, source)
        assert stream.open() == SCHEMA
        assert stream.cursor.generation == "g1"
        first, *rest = batches_from(stream)
        assert first == BATCHES[0]
        assert first["n"].buffers()[1].address % 8 == 0
        assert [number for batch in rest for number in batch["n"].to_pylist()] == ROWS[100:]
        stream.close()
        target, headers = source.requests[0]
        assert target.startswith("/v1/datasets/d/partitions/0?reader=")
        assert headers["authorization"] == "Bearer secret"
        assert headers["accept-encoding"] == "identity"


def test_a_body_of_announced_length_with_its_totals_in_the_headers_is_read(server: RemoteServer) -> None:
    body = b"".join([*messages(BATCHES, SCHEMA), END_OF_STREAM])
    totals = b"X-Flight-Shuffle-Rows: 500\r\nX-Flight-Shuffle-Frames: 5\r\n"
    head = HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"Content-Length: %d\r\n%s" % (len(body), totals))
    with HttpSource(lambda *_: [head, body]) as source:
        assert read_all(stream_of(server, source)) == ROWS


@pytest.mark.parametrize(
    ("what", "tail"),
    [
        ("without the end marker", [last_chunk(500, 5)]),
        ("without the last chunk", [chunk(END_OF_STREAM)]),
        ("without totals", [chunk(END_OF_STREAM), b"0\r\n\r\n"]),
        ("with more after the end marker", [chunk(END_OF_STREAM), chunk(b"more"), last_chunk(500, 5)]),
        ("with a chunk that lies about its size", [b"4\r\n" + END_OF_STREAM + b"\r\n"]),
        ("with a size that is no number", [b"xyz\r\n"]),
        ("with fewer frames than counted", [chunk(END_OF_STREAM), last_chunk(600, 6)]),
    ],
)
def test_an_end_that_is_not_the_end_is_never_taken_for_it(
    server: RemoteServer, what: str, tail: list[bytes]
) -> None:
    def answer(target: str, headers: dict[str, str]) -> Iterable[bytes]:
        start = int(target.partition("from=")[2] or 0)
        return [*pieces(start=start)[:-2], *tail]

    with HttpSource(answer, closes=True) as source:
        with pytest.raises(BrokenStream, match="could not be read beyond frame 5"):
            read_all(stream_of(server, source))
        assert len(source.requests) == server.timeouts.tries + 1, what


CURSORS: dict[str, Callable[[], Cursor]] = {
    "partition": lambda: PartitionCursor(Ticket("d", 0, "g")),
    "portion": lambda: PortionCursor("d", {0: 0}, generation="g", start=uuid.uuid4().hex),
    "changelog": lambda: VersionCursor(Ticket("d", versions=Versions(follow=True))),
}


@pytest.mark.parametrize("kind", CURSORS)
def test_the_error_of_the_last_try_says_what_each_lane_ended_with_and_counts_the_tries_that_were_made(
    server: RemoteServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lost server is asked no second time where its ports refuse.
    monkeypatch.setattr(read_stream, "refuses", lambda locations: False)
    http = "http://127.0.0.1:2"

    def failure() -> str:
        stream = ReadStream(server, CURSORS[kind](), locations=[http, server.location])
        with pytest.raises((BrokenStream, ServerLost)) as raised:
            stream.open()
        return str(raised.value)

    first, second = failure(), failure()
    at = server.location
    for message in (first, second):
        assert (
            f"; {server.timeouts.tries + 1} tries at {at}, the last: no server answers at {at}: start"
            in message
        )
    assert f", after one try at {http}: the connection failed: [Errno 111]" in first
    assert f", after no try at {http}: it has just failed: the connection failed: [Errno 111]" in second


def test_totals_that_contradict_what_was_read_are_an_error(server: RemoteServer) -> None:
    with (
        HttpSource(lambda *_: [*pieces()[:-1], last_chunk(499, 5)]) as source,
        pytest.raises(PartitionFailed, match="500 rows"),
    ):
        read_all(stream_of(server, source))


def test_a_server_that_gives_another_range_is_found_out(server: RemoteServer) -> None:
    """One that knows no ``until`` gives too much; one that gives too little is asked again, and then disbelieved."""
    ticket = Ticket("d", 0, "g1", 1, until=3)
    with HttpSource(well(BATCHES, SCHEMA)) as source:
        with pytest.raises(PartitionFailed, match="cannot be trusted"):
            read_all(partition_stream(server, ticket, locations=[source.url], lane="bulk"))
        assert "&from=1&until=3&" in source.requests[0][0]
    short = HEAD, *map(chunk, messages(BATCHES[1:2], SCHEMA)), chunk(END_OF_STREAM), last_chunk(100, 1, 1)
    with HttpSource(lambda *_: short) as source, pytest.raises(PartitionFailed, match="to before 3"):
        read_all(partition_stream(server, ticket, locations=[source.url], lane="bulk"))


def json_error(status: int, **body: object) -> list[bytes]:
    data = json.dumps(body).encode()
    return [b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data)]


def test_a_temporary_error_is_tried_again(server: RemoteServer) -> None:
    answers = iter([json_error(503, error="out_of_budget", message="full", retryable=True)])
    good = well(BATCHES, SCHEMA)
    with HttpSource(lambda target, headers: next(answers, None) or good(target, headers)) as source:
        assert read_all(stream_of(server, source)) == ROWS


def test_a_refusal_without_our_json_is_told_by_its_status(server: RemoteServer) -> None:
    with (
        HttpSource(lambda *_: [b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno"]) as source,
        pytest.raises(Forbidden, match="status 403"),
    ):
        read_all(stream_of(server, source))


def test_connections_are_used_again_and_stale_ones_replaced(server: RemoteServer) -> None:
    with HttpSource(well(BATCHES, SCHEMA)) as source:
        for _ in range(3):
            assert read_all(stream_of(server, source)) == ROWS
        assert source.connections == 1
        source._sockets[0].shutdown(2)
        assert read_all(stream_of(server, source)) == ROWS
        assert source.connections == 2


@pytest.mark.parametrize("resumable", [True, False])
def test_cancelling_ends_a_read_that_waits(server: RemoteServer, *, resumable: bool) -> None:
    """Without a generation a stream that breaks off is not resumed; one that is cancelled says so nevertheless."""
    stuck = threading.Event()

    def answer(target: str, headers: dict[str, str]) -> Iterable[bytes]:
        head, *rest = pieces()[:3]
        yield head if resumable else head.replace(b"-Generation", b"-Other")
        yield from rest
        stuck.wait(20)

    with HttpSource(answer, closes=True) as source:
        stream = stream_of(server, source)
        batches = batches_from(stream)
        assert next(batches) == BATCHES[0]
        assert (stream.cursor.generation is not None) is resumable
        timer = threading.Timer(0.05, stream.cancel)
        timer.start()
        with pytest.raises(Closed):
            next(batches)
        timer.join()
        stream.close()
        stuck.set()


def test_a_read_that_is_cancelled_while_it_opens_leaves_its_lane_to_others(server: RemoteServer) -> None:
    asked, stuck = threading.Event(), threading.Event()

    def answer(target: str, headers: dict[str, str]) -> Iterable[bytes]:
        asked.set()
        stuck.wait(20)
        yield from pieces()

    def cancel(stream: ReadStream) -> None:
        asked.wait(20)
        stream.cancel()

    with HttpSource(answer, closes=True) as source:
        stream = partition_stream(server, Ticket("d", 0), locations=[source.url, server.location])
        canceller = threading.Thread(target=cancel, args=(stream,))
        canceller.start()
        with pytest.raises(Closed):
            stream.open()
        canceller.join()
        stuck.set()
        assert (
            read_all(partition_stream(server, Ticket("d", 0), locations=[source.url, server.location]))
            == ROWS
        )


def test_a_cancel_between_the_choice_of_an_address_and_its_connection_is_not_lost(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpSource(well(BATCHES, SCHEMA)) as source:
        stream = partition_stream(server, Ticket("d", 0), locations=[source.url])
        reader_at = stream._reader_at

        def cancelled_first(*arguments: Any) -> LaneReader:
            stream.cancel()
            return reader_at(*arguments)

        monkeypatch.setattr(stream, "_reader_at", cancelled_first)
        with pytest.raises(Closed):
            stream.open()
        assert source.requests == []


def test_more_streams_than_connections_all_finish_though_the_open_ones_are_stuck(
    server: RemoteServer,
) -> None:
    stuck = threading.Event()
    good = well(BATCHES, SCHEMA)

    def answer(target: str, headers: dict[str, str]) -> Iterable[bytes]:
        if "/stuck/" in target:
            yield from pieces()[:2]
            stuck.wait(20)
            yield from pieces()[2:]
        else:
            yield from good(target, headers)

    with HttpSource(answer) as source:
        held = [
            partition_stream(server, Ticket("stuck", i), locations=[source.url], lane="bulk")
            for i in range(32)
        ]
        for stream in held:
            stream.open()
        assert read_all(stream_of(server, source)) == ROWS
        stuck.set()
        for stream in held:
            assert read_all(stream) == ROWS


# Addresses.


def test_addresses_are_the_endpoints_with_the_bulk_lane_first() -> None:
    server = RemoteServer("grpc://asked:1")
    given = [
        "arrow-flight-reuse-connection://?",
        "grpc://other:2",
        "http://bulk:3",
        "grpc://asked:1",
        "ucx://x:4",
    ]
    grpc = [Address("grpc", "grpc://asked:1"), Address("grpc", "grpc://other:2")]
    bulk = [Address("bulk", "http://bulk:3")]
    assert addresses(server, given, "auto") == bulk + grpc
    assert addresses(server, given, "grpc") == grpc
    assert addresses(server, given, "bulk") == bulk
    assert addresses(server, [], "auto") == [Address("grpc", "grpc://asked:1")]
    with pytest.raises(InvalidRequest, match="no bulk lane"):
        addresses(server, [], "bulk")


def test_a_location_with_a_path_keeps_it_and_its_query() -> None:
    ticket = Ticket("a/b", 3, "g", 7)
    assert target_of("http://h:1", ticket) == "/v1/datasets/a/b/partitions/3?generation=g&from=7"
    assert target_of("http://h:1/x/y?generation=old&z=1", ticket) == "/x/y?generation=g&z=1&from=7"
    ranged = Ticket("d", 0, until=9)
    assert target_of("http://h:1/x?until=3", ranged) == "/x?until=9"
