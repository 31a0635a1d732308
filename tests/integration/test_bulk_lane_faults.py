"""Faults on the bulk lane: a reader never takes a part for the whole, and one reader's fault affects no other."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.bulk import Cut, RawGet, get
from tests.support.durable import action, put, table
from tests.support.held import message_bytes
from tests.support.http_source import HttpSource
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
MEBIBYTE = 1 << 20


def noise(mebibytes: int, seed: int = 0) -> pa.Table:
    """Random numbers, which nothing makes smaller."""
    values = np.random.default_rng(seed).integers(0, 1 << 60, mebibytes * MEBIBYTE // 8)
    return pa.table({"n": pa.array(values)})


def url_of(server: ServerProcess, name: str, query: str = "") -> str:
    return f"{server.http}/v1/datasets/{name}/partitions/0{query}"


def statistics(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = get(f"{server.http}/v1/statistics").json()
    return found


def exists(server: ServerProcess, name: str) -> bool:
    return bool(get(f"{server.http}/v1/datasets?prefix={name}").json()["datasets"])


def waiting_for(server: ServerProcess, name: str) -> list[str]:
    return [wait["waiting_for"] for wait in get(f"{server.http}/v1/why?dataset={name}").json()["waits"]]


def sends_bytes(server: ServerProcess) -> int:
    return int(statistics(server)["memory"]["accounts"]["sends"]["used_bytes"])


def readers(server: ServerProcess, name: str) -> list[str]:
    slowest = statistics(server)["slowest_readers"]
    return [each["peer"] for each in slowest if each["dataset"] == name]


@pytest.fixture
def server(empty_server: ServerProcess) -> ServerProcess:
    return empty_server


@pytest.fixture
def whole_answer(server: ServerProcess, client: flight.FlightClient) -> bytes:
    """The bytes of one answer, from its head to the end of its trailers, one chunk for each of three frames."""
    words = pa.array(["a", "b"]).dictionary_encode()
    schema = pa.schema([("w", words.type)])
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), schema)
    eventually(lambda: exists(server, "d"), expected=True)
    with writer, RawGet(url_of(server, "d")) as raw:
        status, headers = raw.head()
        assert status == 200
        chunks = raw.chunks()
        seen = [next(chunks)]
        for _ in range(3):
            writer.write_batch(pa.record_batch([words], schema=schema))
            seen.append(next(chunks))
        writer.close()
        seen += chunks
        trailers = raw.trailers
    head = "HTTP/1.1 200 OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    body = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in seen)
    end = "0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in trailers.items()) + "\r\n"
    return f"{head}\r\n".encode() + body + end.encode()


def read_as_others_do(url: str) -> int:
    """The rows that pyarrow finds in what urlopen opens."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return int(pa.ipc.open_stream(answer).read_all().num_rows)


def test_an_answer_cut_at_any_byte_is_an_error_for_ordinary_readers(whole_answer: bytes) -> None:
    cut_at = [0]
    end = whole_answer.index(b"\xff\xff\xff\xff\0\0\0\0\r\n") + 8
    # Closes where a server that was killed there would have.
    with HttpSource(lambda *_: [whole_answer[: cut_at[0]]], closes=True) as source:
        for cut_at[0] in [*range(1, end, 5), end - 1]:
            with pytest.raises((OSError, http.client.HTTPException, pa.ArrowInvalid)):
                read_as_others_do(source.url)
        # Behind Arrow's end marker every row has come; who reads on to the trailers sees the cut all the same.
        for cut_at[0] in range(end, len(whole_answer) - 1):
            with pytest.raises(Cut):
                get(source.url)
        cut_at[0] = len(whole_answer)
        assert read_as_others_do(source.url) == 6


def test_a_killed_server_leaves_no_reader_with_a_whole_looking_part(flight_server_process: Start) -> None:
    server = flight_server_process()
    client = flight.connect(server.location)
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), table(10).schema)
    eventually(lambda: exists(server, "d"), expected=True)
    with RawGet(url_of(server, "d")) as raw:
        raw.head()
        chunks = raw.chunks()
        next(chunks)
        for batch in table(10).to_batches(max_chunksize=5):
            writer.write_batch(batch)
            next(chunks)
        server.signal(signal.SIGKILL)
        server.wait()
        with pytest.raises(Cut):
            list(chunks)
    with client, pytest.raises(flight.FlightError):
        writer.close()


def test_a_reader_that_waits_for_frames_is_cut_when_their_producer_breaks_off(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    script = (
        "import sys, os, pyarrow as pa; from pyarrow import flight\n"
        "batch = pa.record_batch({'n': [1, 2, 3]})\n"
        "writer, _ = flight.connect(sys.argv[1]).do_put(flight.FlightDescriptor.for_path('d'), batch.schema)\n"
        "writer.write_batch(batch)\n"
        "sys.stdin.read(1); os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, server.location]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as producer:
        eventually(lambda: exists(server, "d"), expected=True)
        with RawGet(url_of(server, "d")) as reader:
            reader.head()
            chunks = reader.chunks()
            next(chunks)
            next(chunks)
            assert producer.stdin is not None
            producer.stdin.write(b"x")
            producer.stdin.flush()
            with pytest.raises(Cut):
                next(chunks)
    answer = get(url_of(server, "d"))
    assert answer.status == 500
    assert answer.json()["error"] == "producer_failed"


def test_readers_that_take_nothing_hold_no_room_are_not_ended_and_go_on_where_they_were(
    flight_server_process: Start,
) -> None:
    # The account is 2 MiB: two of them filled it if they held what they were given.
    server = flight_server_process(memory_limit="8MiB", stall_seconds=0.1)
    data = noise(24)
    with flight.connect(server.location) as client, ExitStack() as opened:
        put(client, data, chunk_rows=100 << 10, dataset="d")
        paused = [
            opened.enter_context(RawGet(url_of(server, "d"), receive_buffer_bytes=4 << 10)) for _ in range(6)
        ]
        for each in paused:
            each.head()
        eventually(lambda: waiting_for(server, "d"), ["reader"] * len(paused))
        eventually(lambda: sends_bytes(server), 0)
        for _ in range(3):
            assert get(url_of(server, "d")).table() == data
        eventually(lambda: waiting_for(server, "d"), ["reader"] * len(paused))
        for each in paused:
            assert pa.ipc.open_stream(b"".join(each.chunks())).read_all() == data
        assert statistics(server)["readers_ended_as_too_slow"] == 0
        assert statistics(server)["memory"]["peak_bytes"] <= 8 * MEBIBYTE


def test_a_reader_that_takes_nothing_is_cut_when_its_dataset_is_dropped(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with flight.connect(server.location) as client:
        put(client, noise(24), chunk_rows=100 << 10, dataset="d")
        with RawGet(url_of(server, "d"), receive_buffer_bytes=4 << 10) as paused:
            paused.head()
            eventually(lambda: waiting_for(server, "d"), ["reader"])
            action(client, "drop", dataset="d")
            eventually(lambda: message_bytes(statistics(server)), 0)
            eventually(lambda: statistics(server)["waits"], 0)
            with pytest.raises(Cut):
                list(paused.chunks())
        assert get(url_of(server, "d")).status == 404


@pytest.mark.parametrize("lane", ["bulk", "grpc"])
def test_readers_that_share_too_little_room_do_not_wait_for_each_other(
    flight_server_process: Start, lane: str
) -> None:
    # A frame takes nearly half of the account, so two readers that each kept one could wait for ever.
    server = flight_server_process(memory_limit="8MiB")
    data = noise(24)
    read: list[pa.Table] = []
    with flight.connect(server.location) as client:
        put(client, data, chunk_rows=115_000, dataset="d")

        def read_grpc() -> None:
            options = flight.FlightCallOptions(timeout=60)
            with flight.connect(server.location) as own:
                read.append(own.do_get(flight.Ticket(b"d"), options).read_all())

        def read_bulk() -> None:
            read.append(get(url_of(server, "d")).table())

        threads = [threading.Thread(target=read_bulk if lane == "bulk" else read_grpc) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [each.equals(data) for each in read] == [True] * 6


def test_a_reader_that_vanishes_frees_what_it_held(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, noise(32), dataset="d", chunk_rows=MEBIBYTE // 8)
    for _ in range(5):
        with RawGet(url_of(server, "d"), receive_buffer_bytes=4 << 10) as reader:
            reader.head()
            eventually(lambda: waiting_for(server, "d"), ["reader"])
        eventually(lambda: (sends_bytes(server), len(readers(server, "d"))), (0, 0))
    assert server.events("internal_error") == []


def test_http_1_0_is_refused_because_a_cut_could_not_be_seen(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, table(10), dataset="d")
    with RawGet(url_of(server, "d"), version="1.0") as raw:
        answer = raw.answer()
    assert (answer.status, answer.json()["error"]) == (400, "invalid_request")
