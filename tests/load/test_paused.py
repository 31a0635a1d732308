"""Readers that take nothing, more than there is room for, beside good ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.load.crowd import put
from tests.support.bulk import get
from tests.support.paused import Lane, pause
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

MIB = 1 << 20
FRAMES = 48  # of 1 MiB, more than fit the memory, so that some of them come back from disk
MEMORY_LIMIT_BYTES = 64 * MIB
CONSTANT_BYTES = 150 * MIB + 40 * MIB  # what deploy/README.md says, and these many readers' own objects


def statistics(server: ServerProcess) -> Any:
    """What the server counts."""
    return json.loads(get(f"{server.http}/v1/statistics").body)


def readers(server: ServerProcess) -> int:
    """How many read the dataset now."""
    shown = json.loads(get(f"{server.http}/v1/statistics?dataset=d").body)
    return len(shown["datasets"]["d"]["partitions"]["0"]["subscriptions"])


def frames_read(server: ServerProcess, lane: Lane) -> int:
    """One good reader."""
    if lane == "bulk":
        return sum(1 for _ in pa.ipc.open_stream(get(f"{server.http}/v1/datasets/d").body))
    with flight.connect(server.location) as client:
        return sum(1 for _ in client.do_get(flight.Ticket(b"d"), flight.FlightCallOptions(timeout=60)))


@pytest.mark.load
@pytest.mark.parametrize(
    ("lane", "good"),
    [
        ("bulk", "grpc"),
        ("grpc", "grpc"),
        *(pytest.param(lane, "bulk", marks=pytest.mark.long) for lane in ("bulk", "grpc")),
    ],
)
def test_readers_that_take_nothing_keep_no_room_from_good_ones(
    flight_server_process: Callable[..., ServerProcess], lane: Lane, good: Lane
) -> None:
    # No reader is ended: so what the good ones get is what the paused ones have not held.
    server = flight_server_process(memory_limit=MEMORY_LIMIT_BYTES)
    put(server.location, FRAMES)
    with ExitStack() as opened:
        # Over gRPC the unproven have 8 MiB, and each of them, paused or good, may hold 2 MiB and a little: a frame
        # that came back from disk, and the copy that gRPC has of it. Four would be one too many.
        paused = 300 if lane == "bulk" else 2
        pause(opened, server, lane, "d", paused)
        for _ in range(3):
            assert frames_read(server, good) == FRAMES
            eventually(lambda: readers(server), paused)
        shown = statistics(server)
        assert shown["readers_ended_as_too_slow"] == 0
        assert shown["memory"]["peak_bytes"] <= MEMORY_LIMIT_BYTES
        assert server.peak_rss_bytes() <= MEMORY_LIMIT_BYTES + CONSTANT_BYTES
    eventually(lambda: statistics(server)["waits"], 0)
    assert server.events("internal_error") == []


@pytest.mark.load
def test_of_too_many_readers_that_take_nothing_a_few_are_ended_and_good_ones_are_served(
    flight_server_process: Callable[..., ServerProcess],
) -> None:
    paused = 200
    server = flight_server_process(memory_limit=MEMORY_LIMIT_BYTES, stall_seconds=1)
    put(server.location, FRAMES)
    with ExitStack() as opened:
        pause(opened, server, "grpc", "d", paused)
        for _ in range(3):
            assert frames_read(server, "grpc") == FRAMES
            assert frames_read(server, "bulk") == FRAMES
        assert statistics(server)["readers_ended_as_too_slow"] < paused / 2
        assert server.peak_rss_bytes() <= MEMORY_LIMIT_BYTES + CONSTANT_BYTES
    eventually(lambda: statistics(server)["waits"], 0)
    assert server.events("internal_error") == []
