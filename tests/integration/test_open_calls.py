"""Calls over gRPC whose requests do not arrive: they take bounded memory, end, and keep no room from others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.open_calls import OpenCalls, begun_message
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, field
from tests.support.server_process import ServerProcess

MIB = 1 << 20
SIZE_BYTES = 15 * MIB
SINGLE = ("GetFlightInfo", "PollFlightInfo", "GetSchema", "DoGet", "DoAction", "ListFlights", "ListActions")

Start = Callable[..., ServerProcess]


def sent_bytes(calls: OpenCalls, numbers: list[int], quiet_seconds: float = 1.0) -> int:
    """What the server takes of messages whose last byte never comes, until it takes no more."""
    data, at = begun_message(SIZE_BYTES, bytes(SIZE_BYTES - 1)), dict.fromkeys(numbers, 0)
    deadline = time.monotonic() + quiet_seconds
    while time.monotonic() < deadline:
        for number in numbers:
            if taken := calls.send(number, data[at[number] : at[number] + MIB]):
                at[number] += taken
                deadline = time.monotonic() + quiet_seconds
        while calls.take(0):
            pass
    return sum(at.values())


@pytest.mark.parametrize("method", [*SINGLE, "DoPut"])
def test_a_call_without_a_token_is_refused_before_its_request_has_come(
    flight_server_process: Start, method: str
) -> None:
    server = flight_server_process(memory_limit="64MiB", token="secret")
    with OpenCalls(server.location) as calls:
        numbers = [calls.begin(method) for _ in range(20)]
        calls.wait_for_end(*numbers)
        assert {calls.ended[number]["grpc-status"] for number in numbers} == {"16"}


@pytest.mark.parametrize("method", ["Handshake", "DoAction"])
def test_requests_that_never_arrive_whole_take_bounded_memory_and_end(
    flight_server_process: Start, method: str
) -> None:
    server = flight_server_process(memory_limit="64MiB", stall_seconds=3)
    before = server.peak_rss_bytes()
    with OpenCalls(server.location) as calls, RawFlight(server.location) as raw:
        numbers = [calls.begin(method) for _ in range(20)]
        assert sent_bytes(calls, numbers) >= 3 * SIZE_BYTES - 3
        assert "x" not in raw.action("statistics")["datasets"]  # a good call is served meanwhile
        calls.wait_for_end(*numbers)
        assert {calls.ended[number]["grpc-status"] for number in numbers} == {"14"}
    assert server.peak_rss_bytes() - before < 100 * MIB
    assert server.events("internal_error") == []


def test_a_request_that_comes_slowly_is_served_if_no_others_wait(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB")
    message = field(1, b"locations")
    with OpenCalls(server.location) as calls:
        number = calls.begin("DoAction")
        for byte in begun_message(len(message), message)[:-1]:
            calls.send(number, bytes([byte]))
        assert not calls.take(1.0) or number not in calls.ended
        calls.send(number, message[-1:], end=True)
        calls.wait_for_end(number)
        assert calls.ended[number]["grpc-status"] == "0"


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


@pytest.mark.parametrize("method", ["DoPut", "DoGet"])
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
