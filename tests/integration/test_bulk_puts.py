"""Puts on the bulk lane: what they become, their answers, attempts, authorization, TLS, drain and budgets."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import REUSE_CONNECTION
from tests.support import raw_put
from tests.support.bulk import get
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, command, commit, flight_data, ipc_messages, path, put_messages
from tests.support.raw_put import RawPut, Refused
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "256MiB"}

Start = Callable[..., ServerProcess]
MEBIBYTE = 1 << 20
BATCH = pa.record_batch({"n": [1, 2, 3]})
LARGE = pa.record_batch({"n": np.random.default_rng(0).integers(0, 1 << 60, MEBIBYTE // 8)})
WORDS = [
    pa.record_batch({"w": pa.array(words).dictionary_encode()}) for words in (["a"], ["b", "c"], ["a", "d"])
]


@pytest.fixture
def location(raw: RawFlight) -> str:
    found: str = raw.action("locations")["put_locations"][0]
    return found


def waits(server: ServerProcess) -> list[str]:
    return [each["waiting_for"] for each in get(f"{server.http}/v1/why").json()["waits"]]


def attempt(dataset: str, name: str, *, producer: int = 0, rows: int = 6) -> list[bytes]:
    """An attempt of two batches, to partitions 0 and 1, and a commit that says ``rows``."""
    descriptor = command({"dataset": dataset, "producer": producer, "attempt": name})
    return [*put_messages(descriptor, [BATCH, BATCH], metadata=iter([b"0", b"1"])), commit(rows, 2)]


def test_the_server_says_where_puts_are_taken(server: ServerProcess, raw: RawFlight) -> None:
    expected = [f"{server.http}/v1/put"]
    said = raw.action("locations")
    assert said["locations"] == [server.location, server.http]
    assert said["put_locations"] == expected
    assert raw.action("create", {"dataset": "where"})["put_locations"] == expected


def test_a_seal_is_answered_with_where_its_dataset_is_read(server: ServerProcess, raw: RawFlight) -> None:
    raw.action("create", {"dataset": "read-here", "kind": "shuffle", "partitions": 2})
    sealed = raw.action("seal", {"dataset": "read-here", "attempts": {}})
    assert sealed["read_locations"] == [REUSE_CONNECTION, server.location, server.http]


def test_a_server_without_http_takes_no_bulk_puts_and_says_so(flight_server_process: Start) -> None:
    server = flight_server_process(http_port=-1)
    with RawFlight(server.location) as raw:
        said = raw.action("locations")
        assert (said["locations"], said["put_locations"]) == ([server.location], [])


@pytest.mark.parametrize(
    "batches",
    [[BATCH] * 3, [LARGE] * 3, [BATCH, LARGE] * 40, [BATCH] * 500, WORDS, [BATCH.slice(0, 0)], []],
    ids=["small", "large", "mixed", "many", "dictionaries", "empty batch", "no batch"],
)
def test_what_is_put_is_what_do_put_would_have_kept(
    raw: RawFlight, location: str, batches: list[pa.RecordBatch], request: pytest.FixtureRequest
) -> None:
    name = f"same/{request.node.callspec.id.replace(' ', '-')}"
    schema = batches[0].schema if batches else BATCH.schema
    for lane in ("bulk", "grpc"):
        messages = put_messages(path(f"{name}/{lane}"), batches, schema=schema)
        if lane == "bulk":
            assert raw_put.put(location, messages) == []
        else:
            assert raw.put(messages) in ([], [b""])
    assert raw.get(f"{name}/bulk".encode()) == raw.get(f"{name}/grpc".encode())


def test_a_reader_has_each_frame_before_the_put_has_ended(server: ServerProcess, location: str) -> None:
    messages = put_messages(path("streaming"), [LARGE] * 3)
    with flight.connect(server.location) as client, RawPut(location) as put:
        put.send(*messages[:2])
        eventually(lambda: bool(get(f"{server.http}/v1/datasets?prefix=streaming").json()["datasets"]), True)
        reader = client.do_get(flight.Ticket(b"streaming"))
        assert reader.read_chunk().data == LARGE
        put.send(*messages[2:])
        assert put.finish() == []
        assert reader.read_all().num_rows == 2 * LARGE.num_rows


def test_a_commit_is_answered_before_the_put_is_accepted(raw: RawFlight, location: str) -> None:
    raw.action("create", {"dataset": "commit", "kind": "shuffle", "partitions": 2})
    with RawPut(location) as put:
        put.send(*attempt("commit", "a"))
        kind, data = put.answer()
        totals = json.loads(data)
        assert (kind, totals["committed"], totals["rows"]) == ("R", True, 6)
        assert put.finish() == []
    raw.action("seal", {"dataset": "commit", "attempts": {"0": "a"}})
    assert len(raw.get(b"commit/0")) == 2


def test_each_batch_with_metadata_is_echoed_where_nothing_is_committed(location: str) -> None:
    metadata = [b"one", b"two"]
    messages = put_messages(path("echo"), [BATCH, BATCH], metadata=iter(metadata))
    assert raw_put.put(location, messages) == metadata


def test_only_what_is_committed_of_attempts_is_ever_seen(raw: RawFlight, location: str) -> None:
    raw.action("create", {"dataset": "attempts", "kind": "shuffle", "partitions": 2})
    with RawPut(location) as put:  # breaks off
        put.send(*attempt("attempts", "broken")[:-1])
    with pytest.raises(Refused, match="commit"):  # ends without a commit
        raw_put.put(location, attempt("attempts", "without")[:-1])
    with pytest.raises(Refused, match="rows"):
        raw_put.put(location, attempt("attempts", "miscounted", rows=7))
    for name in ("retried", "duplicate"):
        assert json.loads(raw_put.put(location, attempt("attempts", name))[0])["committed"]
    sealed = raw.action("seal", {"dataset": "attempts", "attempts": {"0": "duplicate"}})
    assert (sealed["rows"], sealed["frames"]) == (6, 2)
    assert [len(raw.get(f"attempts/{index}".encode())) for index in (0, 1)] == [2, 2]
    with pytest.raises(Refused, match="sealed"):
        raw_put.put(location, attempt("attempts", "late"))


def test_two_puts_at_once_into_one_partition_do_not_mix(raw: RawFlight, location: str) -> None:
    first, *rest = put_messages(path("twice"), [BATCH] * 3)
    with RawPut(location) as one, RawPut(location) as other:
        one.send(first)
        eventually(lambda: "twice" in raw.action("statistics")["datasets"], True)
        other.send(first, *rest)
        with pytest.raises(Refused, match="one producer"):
            other.answers()
        one.send(*rest)
        assert one.finish() == []
    assert raw.get(b"twice")[1:] == rest


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"headers": ["Content-Length: 0"]}, 400),
        ({"headers": ["Upgrade: websocket", "Connection: Upgrade", "Content-Length: 0"]}, 400),
        ({"headers": ["Upgrade: flight-put", "Content-Length: 0"]}, 400),
        ({"headers": ["Upgrade: flight-put", "Connection: keep-alive", "Content-Length: 0"]}, 400),
        ({"headers": ["Upgrade: flight-put", "Connection: Upgrade", "Transfer-Encoding: chunked"]}, 400),
        ({"method": "GET"}, 405),
        ({"method": "PUT"}, 405),
    ],
)
def test_a_request_for_anything_else_is_refused_in_http(
    location: str, options: dict[str, Any], status: int
) -> None:
    with pytest.raises(Refused) as refused:
        RawPut(location, **options)
    assert (refused.value.status, refused.value.body["error"]) == (status, "invalid_request")


def test_the_upgrade_may_stand_among_other_words_and_in_other_letters(location: str) -> None:
    headers = ["connection: keep-alive, upgrade", "upgrade: Flight-Put"]
    assert raw_put.put(location, put_messages(path("letters"), [BATCH]), headers=headers) == []


def test_a_drain_lets_running_puts_end_and_refuses_new_ones(flight_server_process: Start) -> None:
    """Those that outlast its grace are told, see ``test_bulk_puts_faults``."""
    server = flight_server_process(drain_grace_seconds=60)
    location = f"{server.http}/v1/put"
    messages = put_messages(path("d"), [BATCH] * 2)
    with RawPut(location) as running, RawPut(location) as beginning:
        running.send(messages[0])
        eventually(lambda: "d" in get(f"{server.http}/v1/statistics").json()["datasets"], True)
        eventually(lambda: waits(server), ["writer", "writer"])
        server.signal(signal.SIGTERM)
        eventually(lambda: get(f"{server.http}/readyz").status, 503)
        with pytest.raises(Refused) as refused:
            RawPut(location)
        assert (refused.value.status, refused.value.body["error"]) == (503, "draining")
        beginning.send(*put_messages(path("new"), [BATCH]))
        with pytest.raises(Refused) as told:
            beginning.finish()
        assert told.value.body["error"] == "draining"
        running.send(*messages[1:])
        assert running.finish() == []
    assert server.wait() == 0


def test_a_held_back_producer_goes_on_when_there_is_room(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="16MiB", disk_limit="1MiB", budget_deadline_seconds=60)
    location = f"{server.http}/v1/put"
    with RawFlight(server.location) as raw, RawPut(location) as put:
        raw_put.put(location, put_messages(path("filling"), [LARGE] * 8))
        messages = put_messages(path("d"), [LARGE] * 8)
        for message in messages[:4]:
            put.send(message)
        eventually(lambda: waits(server), ["budget"])
        assert [each["dataset"] for each in raw.action("why", {"dataset": "d"})["waits"]] == ["d"]
        raw.action("drop", {"dataset": "filling"})
        put.send(*messages[4:])
        assert put.finish() == []
        assert raw.get(b"d")[1:] == messages[1:]


def test_hundreds_of_idle_puts_cost_little_and_hold_up_no_other(flight_server_process: Start) -> None:
    server = flight_server_process()
    location = f"{server.http}/v1/put"
    before_bytes = server.rss_bytes()
    with ExitStack() as idle:
        for _ in range(300):
            idle.enter_context(RawPut(location))
        eventually(lambda: waits(server).count("writer"), 300)
        assert raw_put.put(location, put_messages(path("d"), [LARGE] * 10)) == []
        # Less than what one read of each would take, if each had memory of its own for it.
        assert server.rss_bytes() - before_bytes < 300 * (64 << 10) + 10 * MEBIBYTE
    eventually(lambda: len(waits(server)), 0)


def test_a_message_that_is_announced_and_never_comes_takes_no_memory(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="512MiB")
    before_bytes = server.rss_bytes()
    with ExitStack() as stack:
        puts = [stack.enter_context(RawPut(f"{server.http}/v1/put")) for _ in range(20)]
        for number, put in enumerate(puts):
            put.send(put_messages(path(f"d{number}"), [BATCH])[0])
            put.raw((60 * MEBIBYTE).to_bytes(4, "big") + b"x" * 1000)
        eventually(lambda: waits(server), ["writer"] * 20)
        eventually(lambda: get(f"{server.http}/v1/statistics").json()["puts"], 20)
        assert server.rss_bytes() - before_bytes < 60 * MEBIBYTE
        puts[0].raw(b"y" * MEBIBYTE)
    eventually(lambda: len(waits(server)), 0)


def test_a_client_that_takes_no_answers_is_served_to_its_end(
    server: ServerProcess, raw: RawFlight, location: str
) -> None:
    count, metadata = 2_000, b"m" * 4_000
    first, batch = ipc_messages(BATCH.schema, [BATCH])
    with RawPut(location, receive_buffer_bytes=4096) as put:
        put.send(flight_data(first.header, descriptor=path("unread")))
        put.send(*[flight_data(batch.header, batch.body, metadata=metadata)] * count)
        put.raw(raw_put.END)
        eventually(lambda: raw.action("statistics")["datasets"].get("unread", {}).get("sealed"), True)
        assert len(raw.get(b"unread")) == count + 1
