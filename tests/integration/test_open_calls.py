"""Calls over gRPC whose requests do not arrive: they take bounded memory, end, and keep no room from others."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pyarrow as pa
import pytest

from tests.support import raw_flight
from tests.support.open_calls import OpenCalls, begun_message
from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, field, path, put_messages
from tests.support.raw_put import RawPut, Refused, framed
from tests.support.server_process import ServerProcess

MIB = 1 << 20
SIZE_BYTES = 15 * MIB
BATCH = pa.record_batch({"n": [1, 2, 3]})
HEALTH = "/grpc.health.v1.Health/Check"
SINGLE = ("GetFlightInfo", "PollFlightInfo", "GetSchema", "DoGet", "DoAction", "ListFlights", "ListActions")

Start = Callable[..., ServerProcess]


def sent_bytes(
    calls: OpenCalls, numbers: list[int], quiet_seconds: float = 1.0, part_bytes: int = SIZE_BYTES - 1
) -> int:
    """What the server takes of ``part_bytes`` of each message, until it takes no more; the rest never comes."""
    data, at = begun_message(SIZE_BYTES, bytes(part_bytes)), dict.fromkeys(numbers, 0)
    deadline = time.monotonic() + quiet_seconds
    while time.monotonic() < deadline:
        for number in numbers:
            if taken := calls.send(number, data[at[number] : at[number] + MIB]):
                at[number] += taken
                deadline = time.monotonic() + quiet_seconds
        while calls.take(0):
            pass
    return sum(at.values())


def test_a_call_without_a_token_is_refused_before_its_request_has_come(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB", token="secret")
    with OpenCalls(server.location) as calls:
        numbers = [calls.begin(method) for method in (*SINGLE, "DoPut") for _ in range(20)]
        calls.wait_for_end(*numbers)
        assert {calls.ended[number]["grpc-status"] for number in numbers} == {"16"}


@pytest.mark.parametrize("method", ["DoAction", pytest.param(HEALTH, marks=pytest.mark.long)])
def test_requests_that_never_arrive_whole_take_bounded_memory_and_end(
    flight_server_process: Start, method: str
) -> None:
    server = flight_server_process(memory_limit="64MiB", stall_seconds=3)
    before = server.peak_rss_bytes()
    with OpenCalls(server.location) as calls, RawFlight(server.location) as raw:
        numbers = [calls.begin(method) for _ in range(20)]
        sent_bytes(calls, numbers)
        assert "x" not in raw.action("statistics")["datasets"]  # a good call is served meanwhile
        calls.wait_for_end(*numbers)
        assert {calls.ended[number]["grpc-status"] for number in numbers} == {"14"}
    assert server.peak_rss_bytes() - before < 100 * MIB
    assert server.events("internal_error") == []


@pytest.mark.parametrize("method", ["DoPut", pytest.param("DoAction", marks=pytest.mark.long)])
def test_messages_half_sent_on_many_connections_are_counted_and_bounded(
    flight_server_process: Start, method: str
) -> None:
    server = flight_server_process(memory_limit="64MiB", token="secret")
    before = server.peak_rss_bytes()
    with ExitStack() as stack, RawFlight(server.location, token="secret") as raw:
        connections = [stack.enter_context(OpenCalls(server.location, token="secret")) for _ in range(30)]
        for connection in connections:  # 420 MiB, of which the server has room for 64
            sent_bytes(connection, [connection.begin(method)], 0.1, SIZE_BYTES - MIB)
            assert raw.action("statistics")["datasets"] == {}
        account = raw.action("statistics")["memory"]["accounts"]["arriving"]
        assert 2 * SIZE_BYTES < account["peak_bytes"] < 100 * MIB
        ended = [each for each in connections if each.take(0.0) or each.ended]
        assert len(ended) >= 20
    assert server.peak_rss_bytes() - before < 150 * MIB
    with RawFlight(server.location, token="secret") as raw:
        eventually(lambda: raw.action("statistics")["memory"]["accounts"]["arriving"]["used_bytes"], 0)


def arriving_bytes(raw: RawFlight) -> int:
    used_bytes: int = raw.action("statistics")["memory"]["accounts"]["arriving"]["used_bytes"]
    return used_bytes


def test_refused_puts_leave_nothing_in_the_account_of_an_idle_put_on_their_connection(
    flight_server_process: Start,
) -> None:
    server = flight_server_process(memory_limit="64MiB")
    large = pa.record_batch({"n": pa.array(range(MIB // 8), pa.int64())})
    with RawFlight(server.location) as raw:
        raw.put(put_messages(path("taken"), [large]))
        with OpenPut(raw) as idle:
            first, *rest = put_messages(path("idle"), [BATCH])
            idle.send(first)
            for _ in range(15):
                with pytest.raises(raw_flight.Refused, match="sealed"):
                    raw.put(put_messages(path("taken"), [large] * 8))
            eventually(lambda: arriving_bytes(raw) < 64 << 10, True, 10.0)
            idle.send(rest[0])
        assert raw.action("locations")


@pytest.mark.long
def test_half_sent_messages_are_bounded_though_calls_of_their_connection_end_unread(
    flight_server_process: Start,
) -> None:
    server = flight_server_process(memory_limit="64MiB")
    before = server.peak_rss_bytes()
    refused = put_messages(path("taken"), [BATCH])
    with OpenCalls(server.location) as calls, RawFlight(server.location) as raw:
        raw.put(refused)
        halves = []
        for _ in range(30):  # 420 MiB
            number = calls.begin("DoPut")
            halves.append(calls.begin("DoPut"))
            sent_bytes(calls, halves[-1:], 0.1, SIZE_BYTES - MIB)
            message = begun_message(len(refused[0]), refused[0])
            while number not in calls.ended and (message := message[calls.send(number, message) :]):
                calls.take(0.1)
            calls.wait_for_end(number)
        assert sum(number in calls.ended for number in halves) >= 10
    assert server.peak_rss_bytes() - before < 250 * MIB


def test_messages_half_sent_on_the_bulk_lane_are_bounded_by_the_same_account(
    flight_server_process: Start,
) -> None:
    server = flight_server_process(memory_limit="64MiB")
    before = server.peak_rss_bytes()
    (first, _) = put_messages(path("d"), [BATCH])
    part = framed(bytes(8 * MIB))[: 7 * MIB]
    with ExitStack() as stack, RawFlight(server.location) as raw:
        puts = [stack.enter_context(RawPut(f"{server.http}/v1/put")) for _ in range(20)]
        for number, put in enumerate(puts):
            with suppress(ConnectionError):
                put.send(first.replace(path("d"), path(chr(ord("a") + number))))
                put.raw(part)
        for put in puts[:10]:
            with pytest.raises(Refused, match="not whole takes more than its room"):
                put.answers()
        account = raw.action("statistics")["memory"]["accounts"]["arriving"]
        assert 4 * 7 * MIB < account["peak_bytes"] <= 72 * MIB
    assert server.peak_rss_bytes() - before < 120 * MIB


def test_silent_calls_take_no_place_from_others_and_are_not_ended_for_them(
    flight_server_process: Start,
) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with ExitStack() as stack, RawFlight(server.location) as raw:
        silent = [stack.enter_context(OpenCalls(server.location)) for _ in range(12)]
        numbers = [each.begin(method) for each, method in zip(silent, (*SINGLE, "DoPut") * 2, strict=False)]
        for each, number in zip(silent, numbers, strict=True):
            each.send(number, begun_message(MIB, bytes(1000)))
        for _ in range(50):
            raw.action("locations")
        for each, number in zip(silent, numbers, strict=True):
            while each.take(0.0):
                pass
            assert number not in each.ended


def test_requests_that_come_slowly_on_many_connections_are_all_served(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with ExitStack() as stack, RawFlight(server.location) as raw:
        connections = [stack.enter_context(OpenCalls(server.location)) for _ in range(6)]
        requests = []
        for number in range(6):
            body = f'{{"dataset":"slow {number}"'.replace(" ", "") + " " * (3 * MIB) + ',"kind":"shuffle"}'
            message = field(1, b"create") + field(2, body.encode())
            requests.append(begun_message(len(message), message))
        numbers = [each.begin("DoAction") for each in connections]
        for part in range(4):  # each in quarters, by turns
            for each, number, request in zip(connections, numbers, requests, strict=True):
                size = len(request) // 4 + 1
                data = request[part * size : (part + 1) * size]
                while data:
                    data = data[each.send(number, data, end=part == 3) :]
                    each.take(0.0 if not data else 0.1)
            raw.action("locations")
        for each, number in zip(connections, numbers, strict=True):
            each.wait_for_end(number)
            assert each.ended[number]["grpc-status"] == "0", each.ended[number]
        assert len(raw.action("statistics")["datasets"]) == 6


def test_a_request_that_comes_slowly_is_served_after_the_deadline_of_one_that_has_stopped(
    flight_server_process: Start,
) -> None:
    server = flight_server_process(memory_limit="64MiB", stall_seconds=1)
    message = field(1, b"create") + field(2, b'{"dataset":"d","kind":"shuffle"' + b" " * (256 << 10) + b"}")
    request = begun_message(len(message), message)
    size = len(request) // 8 + 1
    with OpenCalls(server.location) as slow, OpenCalls(server.location) as silent:
        number, stopped = slow.begin("DoAction"), silent.begin("DoAction")
        for part in range(8):
            slow.send(number, request[part * size : (part + 1) * size], end=part == 7)
            slow.take(0.4)
        silent.wait_for_end(stopped)
        slow.wait_for_end(number)
        assert slow.ended[number]["grpc-status"] == "0"


def test_silent_calls_of_one_connection_end_no_call_of_another(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with OpenCalls(server.location) as silent, OpenCalls(server.location) as other:
        message = field(1, b"locations")
        request = begun_message(len(message), message)
        number = other.begin("DoAction")
        other.send(number, request[:-1])
        numbers = [silent.begin("DoGet") for _ in range(800)]
        silent.wait_for_end(*numbers[:250])
        assert not other.take(0.0) or number not in other.ended
        other.send(number, request[-1:], end=True)
        other.wait_for_end(number)
        assert other.ended[number]["grpc-status"] == "0"


@pytest.mark.parametrize("method", ["DoGet", pytest.param("DoPut", marks=pytest.mark.long)])
def test_of_too_many_calls_that_send_nothing_the_oldest_end_and_a_good_call_is_served(
    flight_server_process: Start, method: str
) -> None:
    server = flight_server_process(memory_limit="64MiB")
    before = server.peak_rss_bytes()
    with OpenCalls(server.location) as calls, RawFlight(server.location) as raw:
        numbers = [calls.begin(method) for _ in range(3000)]
        calls.wait_for_end(*numbers[:2400])
        assert {calls.ended[number]["grpc-status"] for number in numbers[:2400]} == {"14"}
        assert raw.action("statistics")["datasets"] == {}
        assert len(calls.ended) < 2700
    assert server.peak_rss_bytes() - before < 120 * MIB
    with RawFlight(server.location) as raw:
        eventually(lambda: raw.action("why")["waits"], [])
    assert server.events("internal_error") == []


def test_a_request_above_grpc_s_own_limit_is_refused_before_it_has_come(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB")
    before = server.peak_rss_bytes()
    with OpenCalls(server.location) as calls:
        number = calls.begin("DoAction")
        calls.send(number, begun_message(45 * MIB, b"{"))
        calls.wait_for_end(number)
        assert "larger than max (47185920 vs. 20971520)" in calls.ended[number]["grpc-message"]
    assert server.peak_rss_bytes() - before < 20 * MIB
