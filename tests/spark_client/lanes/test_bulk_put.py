"""A put on the bulk lane against servers whose every byte is known."""

from __future__ import annotations

import json
import threading

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol.errors import AlreadyExists, FlightShuffleError, OutOfBudget
from spark_client.connection import RemoteServer, Timeouts, Writing
from spark_client.lanes.lane import BrokenStream
from spark_client.lanes.read_stream import StreamStalled
from tests.support.put_source import (
    LARGE,
    NOWHERE,
    SMALL,
    UPGRADED,
    PutSide,
    PutSource,
    committed,
    opened,
    said,
    write_forever,
)
from tests.support.raw_flight import fields_of

HASTY = Timeouts(connect_seconds=20, first_message_seconds=20, stall_seconds=0.2)
REFUSED = said(b"E", AlreadyExists("there is one already").to_json().encode())


# Puts that succeed.


def test_a_put_asks_for_the_upgrade_and_sends_what_a_doput_would(server: RemoteServer) -> None:
    got: list[bytes] = []

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        got.extend(side.messages())
        side.send(committed(30) + said(b"K"))

    with PutSource(serve) as source, opened(server, source) as stream:
        for partition in (0, 7, 12):
            stream.write(SMALL, partition)
        assert stream.commit() == {"committed": True, "rows": 30}
    (head,) = source.heads
    request, *lines = head.decode().split("\r\n")
    assert request == "POST /v1/put HTTP/1.1"
    assert {"Connection: Upgrade", "Upgrade: flight-put", "Content-Length: 0"} <= set(lines)
    assert "Authorization: Bearer secret" in lines
    messages = [fields_of(message) for message in got]
    assert [message.get(3) for message in messages] == [None, b"0", b"7", b"12", messages[-1][3]]
    assert json.loads(messages[-1][3]) == {"commit": {"rows": 30, "frames": 3}}
    assert 1 in messages[0]


def test_small_batches_of_a_shuffle_go_together_and_others_at_once(server: RemoteServer) -> None:
    arrived, wrote = threading.Semaphore(0), threading.Event()
    pieces: list[bytes] = []

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        side.message()
        side.message()
        arrived.release()
        assert wrote.wait(20)
        side.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            side.sock.recv(1)
        side.sock.settimeout(20)
        arrived.release()
        pieces.extend(side.messages())
        side.send(committed(70) + said(b"K"))

    with PutSource(serve) as source, opened(server, source) as stream:
        stream.write(SMALL)
        assert arrived.acquire(timeout=20), "what every reader may see does not wait for more"
        for partition in range(6):
            stream.write(SMALL, partition)
        wrote.set()
        assert arrived.acquire(timeout=20), "what no reader sees before the seal does"
        stream.commit()
    assert len(pieces) == 7


def test_what_happens_to_an_array_after_the_write_is_not_sent(server: RemoteServer) -> None:
    got: list[bytes] = []

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        got.extend(side.messages())
        side.send(committed(3 << 11) + said(b"K"))

    numbers = np.zeros(1 << 11, np.int64)
    with PutSource(serve) as source, opened(server, source) as stream:
        for value in (1, 2, 3):
            numbers[:] = value
            stream.write(pa.record_batch({"n": numbers}), 0)
        numbers[:] = 4
        stream.commit()
    bodies = [np.frombuffer(fields_of(message)[1000], np.int64) for message in got[1:-1]]
    assert [set(body.tolist()) for body in bodies] == [{1}, {2}, {3}]


def test_no_more_than_that_is_held_back(server: RemoteServer) -> None:
    arrived = threading.Event()

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        for _ in range(3):
            side.message()
        arrived.set()
        side.messages()
        side.send(committed(3 << 13) + said(b"K"))

    with PutSource(serve) as source, opened(server, source) as stream:
        for partition in range(3):
            stream.write(LARGE.slice(0, 1 << 13), partition)
        assert arrived.wait(20)
        stream.commit()


# The server's error wins over the connection's.


def test_an_error_is_raised_while_the_server_takes_nothing(server: RemoteServer) -> None:
    full, done = threading.Event(), threading.Event()

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        assert full.wait(20)
        side.send(REFUSED)
        assert done.wait(20), "and nothing is read meanwhile"

    with PutSource(serve) as source:
        stream = opened(server, source)
        # More than the kernel's buffers take, so that one of the writes waits when the error comes.
        timer = threading.Timer(0.3, full.set)
        timer.start()
        with pytest.raises(AlreadyExists, match="there is one already"):
            write_forever(stream)
        done.set()
        timer.join()


WRITING: dict[str, tuple[bytes, int, bytes, type[FlightShuffleError], str]] = {
    "an error with the upgrade": (REFUSED, 0, b"", AlreadyExists, "there is one already"),
    "an error before a reset": (b"", 100_000, REFUSED, AlreadyExists, "there is one already"),
    "an end": (said(b"K"), 0, b"", BrokenStream, "before all of it was sent"),
    "a break": (b"", 100_000, b"", BrokenStream, "'d' broke off.*{port}"),
}
"""What is sent with the upgrade, how much is read, and the rest left, what is sent then, and the error."""


@pytest.mark.parametrize("case", WRITING)
def test_what_comes_while_rows_are_sent_is_an_error(server: RemoteServer, case: str) -> None:
    first, read_bytes, answer, error, words = WRITING[case]

    def serve(side: PutSide) -> None:
        side.send(UPGRADED + first)
        side.exactly(read_bytes)
        side.send(answer)
        if not read_bytes:
            side.broken_off()

    with PutSource(serve) as source, pytest.raises(error, match=words.replace("{port}", str(source.port))):
        write_forever(opened(server, source))


BROKEN = "closed the connection|reset"
UNEXPECTED: dict[str, tuple[bytes, type[FlightShuffleError], str]] = {
    "nothing": (b"", BrokenStream, BROKEN),
    "half an answer": (committed(0)[:-3], BrokenStream, BROKEN),
    "an answer and no end": (committed(0), BrokenStream, BROKEN),
    "an end and no answer": (said(b"K"), FlightShuffleError, "did not confirm the commit"),
    "an unknown answer": (said(b"Z"), BrokenStream, "is not an answer to a put"),
    "garbage": (b"HTTP/1.1 500 Oops\r\n\r\n", BrokenStream, "is not an answer to a put"),
    "an answer of 4 GB": (b"R\xff\xff\xff\xff", BrokenStream, "is not an answer to a put"),
    "an error that is none": (said(b"E", b"oops"), BrokenStream, "is not an error of the server"),
    "an error": (
        said(b"E", OutOfBudget("no room", limit_bytes=7).to_json().encode()),
        OutOfBudget,
        "no room",
    ),
}


@pytest.mark.parametrize("case", UNEXPECTED)
def test_a_commit_that_is_not_accepted_has_failed(server: RemoteServer, case: str) -> None:
    data, error, words = UNEXPECTED[case]

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        side.messages()
        side.send(data)

    with PutSource(serve) as source, pytest.raises(error, match=words) as caught:
        opened(server, source).commit()
    assert error is not OutOfBudget or caught.value.detail == {"limit_bytes": 7}


@pytest.mark.parametrize("takes_rows", [False, True])
def test_a_server_that_stands_still_is_an_error_with_its_reasons(takes_rows: bool) -> None:
    server = RemoteServer(NOWHERE, timeouts=HASTY, writing=Writing("bulk"))
    gone = threading.Event()

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        if takes_rows:
            side.messages()
        assert gone.wait(20)

    with PutSource(serve) as source:
        stream = opened(server, source)
        with pytest.raises(
            StreamStalled, match=r"no further for 0\.2 s.*the server says it waits for: nothing"
        ):
            stream.commit() if takes_rows else write_forever(stream)
        gone.set()
    server.close()
