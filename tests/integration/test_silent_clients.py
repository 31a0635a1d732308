"""Clients that connect or put and then say nothing: each ends at a deadline, and is named until then."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_client.connection import Closable
from tests.support.bulk import get
from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, command, commit, fields_of, path, put_messages
from tests.support.raw_flight import Refused as CallRefused
from tests.support.raw_put import RawPut, Refused, framed
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "64MiB", "put_idle_seconds": "1", "stall_seconds": "1"}

pytestmark = pytest.mark.usefixtures("spotless")

Start = Callable[..., ServerProcess]
BATCH = pa.record_batch({"n": [1, 2, 3]})
SHUFFLE = command({"dataset": "s", "producer": 3, "attempt": "x"})
FIRST, FRAME = put_messages(path("d"), [BATCH])
HALVES = (b"GET /healthz HTT", b"GET /healthz HTTP/1.1\r\nHost: a\r\n")


def address_of(server: ServerProcess) -> tuple[str, int]:
    parts = urlsplit(server.http or "")
    return str(parts.hostname), int(parts.port or 0)


def error_of_reading(raw: RawFlight, ticket: bytes) -> tuple[str, str]:
    with pytest.raises(CallRefused) as refused:
        raw.get(ticket)
    return str(refused.value.detail["error"]), refused.value.message


def test_a_silent_producer_on_the_grpc_lane_fails_its_partition_and_frees_the_name(raw: RawFlight) -> None:
    silent = OpenPut(raw)
    silent.send(FIRST)
    silent.send(FRAME)
    eventually(lambda: "d" in raw.action("statistics")["datasets"], expected=True)
    error, message = error_of_reading(raw, b"d")  # a reader waits with it
    assert error == "producer_failed"
    assert "no message came for 1 s (--put-idle-seconds)" in message
    with pytest.raises(CallRefused) as refused:
        silent.finish()
    assert refused.value.detail["error"] == "producer_stalled"
    assert refused.value.status == "UNAVAILABLE"
    assert "dataset 'd' partition 0" in refused.value.message
    raw.put([FIRST, FRAME])
    assert len(raw.get(b"d")) == 2


def test_a_silent_producer_on_the_bulk_lane_ends_between_messages_and_inside_one(
    server: ServerProcess, raw: RawFlight
) -> None:
    large = framed(put_messages(path("d"), [pa.record_batch({"n": range(100_000)})])[1])
    parts = [b"", framed(FRAME)[:4], framed(FRAME)[:-10], large[: len(large) // 2]]
    raw.action("create", {"dataset": "s", "kind": "shuffle"})
    with ExitStack() as stack:
        puts = [stack.enter_context(RawPut(f"{server.http}/v1/put")) for _ in parts]
        for number, (put, part) in enumerate(zip(puts, parts, strict=True)):
            put.send(put_messages(command({"dataset": "s", "producer": number, "attempt": "x"}), [BATCH])[0])
            put.raw(part)
        for number, (put, part) in enumerate(zip(puts, parts, strict=True)):
            with pytest.raises(Refused) as refused:
                put.answers()
            said = refused.value.body
            assert (said["error"], said["dataset"], said["producer"]) == ("producer_stalled", "s", number)
            assert ("--stall-seconds" if part else "--put-idle-seconds") in said["message"]
    eventually(lambda: raw.action("statistics")["datasets"]["s"]["attempt_states"], {})


def test_a_put_that_never_says_what_it_is_ends_too(server: ServerProcess, raw: RawFlight) -> None:
    with RawPut(f"{server.http}/v1/put") as put:
        with pytest.raises(Refused) as refused:
            put.answers()
        assert put.peer in refused.value.body["message"]
    silent = OpenPut(raw)
    with pytest.raises(CallRefused) as call_refused:
        silent.wait()
    assert call_refused.value.detail["error"] == "producer_stalled"


def test_a_connection_that_asks_for_nothing_is_closed(server: ServerProcess) -> None:
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(address_of(server), 30)) for _ in range(3)
        ]
        for connection, sent in zip(connections, (b"", *HALVES), strict=True):
            connection.sendall(sent)
        assert [connection.recv(1) for connection in connections] == [b""] * 3


def test_a_connection_that_has_asked_may_rest_before_it_asks_again(server: ServerProcess) -> None:
    with socket.create_connection(address_of(server), 30) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with socket.create_connection(one.getpeername(), 30) as silent:
            assert silent.recv(1) == b""  # the other one is older, and is not closed
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_why_names_the_dataset_and_the_producer_of_a_put_on_both_lanes(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with RawFlight(server.location) as raw:
        raw.action("create", {"dataset": "s", "kind": "shuffle"})
        first = put_messages(SHUFFLE, [BATCH])[0]
        with RawPut(f"{server.http}/v1/put") as put, OpenPut(raw) as open_put:
            put.send(first)
            open_put.send(FIRST)

            def named() -> list[Any]:
                waits = get(f"{server.http}/v1/why").json()["waits"]
                keys = ("waiting_for", "dataset", "partition", "producer", "deadline_seconds")
                return sorted((tuple(wait[key] for key in keys) for wait in waits), key=str)

            waits: list[Any] = [("writer", "d", 0, None, 900.0), ("writer", "s", None, 3, 900.0)]
            eventually(named, waits)
            put.send(commit(0, 0))
            put.finish()


class Attempts(Closable):
    """An attempt of the shuffle ``s`` on each lane: each has sent a frame, and is silent."""

    def __init__(self, server: ServerProcess, raw: RawFlight, **more: Any) -> None:
        self._raw = raw
        commands = [{"dataset": "s", "producer": number, "attempt": "x", **more} for number in range(2)]
        bulk, grpc = (put_messages(command(each), [BATCH], metadata=iter([b"0"])) for each in commands)
        self.bulk, self.grpc = RawPut(f"{server.http}/v1/put"), OpenPut(raw)
        self.bulk.send(*bulk)
        for message in grpc:
            self.grpc.send(message)

    def outlast_the_limit(self) -> None:
        """Return when both have been silent for longer than a producer may be that no lease holds."""

        def extended() -> list[int]:
            waits = self._raw.action("why")["waits"]
            return sorted(each["producer"] for each in waits if each["deadline_seconds"] > 1)

        eventually(extended, [0, 1])

    def commit(self) -> None:
        self.bulk.send(commit(3, 1))
        assert json.loads(self.bulk.finish()[0])["committed"]
        self.grpc.send(commit(3, 1))
        assert json.loads(fields_of(self.grpc.finish()[0])[1])["committed"]

    def check_ended(self) -> None:
        with pytest.raises(Refused, match="no message came for 1 s"):
            self.bulk.answers()
        with pytest.raises(CallRefused, match="no message came for 1 s"):
            self.grpc.wait()

    def close(self) -> None:
        self.bulk.close()
        self.grpc.cancel()


RENEWED = {"dataset": "s", "kind": "shuffle", "partitions": 1, "lease_seconds": 60}


def test_silent_attempts_go_on_while_a_client_renews_the_lease_of_their_shuffle(
    server: ServerProcess, raw: RawFlight
) -> None:
    raw.action("create", RENEWED)
    raw.action("renew", {"dataset": "s"})
    with Attempts(server, raw) as attempts:
        attempts.outlast_the_limit()
        attempts.commit()


def test_the_put_that_creates_a_shuffle_renews_its_lease_for_silent_attempts(
    server: ServerProcess, raw: RawFlight
) -> None:
    create = {"partitions": 1, "lease_seconds": 60}
    with Attempts(server, raw, generation="0123456789abcdef", create=create) as attempts:
        attempts.outlast_the_limit()
        attempts.commit()


def test_silent_attempts_of_a_staged_write_go_on_from_its_beginning(
    server: ServerProcess, raw: RawFlight
) -> None:
    staged = raw.action("create", {**RENEWED, "mode": "overwrite", "write": "w"})
    with Attempts(server, raw, generation=staged["generation"]) as attempts:
        attempts.outlast_the_limit()
        attempts.commit()
    raw.action("drop", {"dataset": "s", "generation": staged["generation"]})


@pytest.mark.parametrize("ending", ["lease", "drop", "seal"])
def test_silent_attempts_end_when_no_lease_holds_them_any_more(
    server: ServerProcess, raw: RawFlight, ending: str
) -> None:
    raw.action("create", {**RENEWED, "lease_seconds": 4 if ending == "lease" else 60})
    raw.action("renew", {"dataset": "s"})
    with Attempts(server, raw) as attempts:
        attempts.outlast_the_limit()
        if ending != "lease":
            raw.action(ending, {"dataset": "s"})
        attempts.check_ended()


def test_silent_attempts_of_a_shuffle_without_a_renewed_lease_end(
    server: ServerProcess, raw: RawFlight
) -> None:
    raw.action("create", RENEWED)
    with Attempts(server, raw) as attempts:
        attempts.check_ended()
