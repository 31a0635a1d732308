"""Dictionaries are counted, spilled and sent like frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.bulk import get
from tests.support.durable import put
from tests.support.paused import Lane, pause
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

MIB = 1 << 20
CONSTANT_BYTES = 150 * MIB  # what deploy/README.md says
Start = Callable[..., ServerProcess]


def coded(size_bytes: int, seed: int) -> pa.Table:
    """A few rows and a dictionary of about so many bytes."""
    values = pa.array(np.random.default_rng(seed).integers(0, 1 << 62, size_bytes // 8))
    indices = pa.array(np.arange(100, dtype=np.int32))
    return pa.table({"c": pa.DictionaryArray.from_arrays(indices, values)})


def statistics(server: ServerProcess) -> Any:
    """What the server counts."""
    return json.loads(get(f"{server.http}/v1/statistics").body)


def test_sealed_datasets_of_dictionaries_leave_room_for_producers_and_are_read_back(
    flight_server_process: Start,
) -> None:
    limit_bytes = 16 * MIB
    server = flight_server_process(memory_limit=limit_bytes, budget_deadline_seconds=20)
    tables = {f"d{number}": coded(3 * MIB // 2, number) for number in range(12)}
    with flight.connect(server.location) as client:
        for name, data in tables.items():
            put(client, data, dataset=name)
        plain = pa.table({"n": np.arange(3 * MIB)})
        put(client, plain, dataset="plain", chunk_rows=MIB // 8)
        for name, data in tables.items():
            assert client.do_get(flight.Ticket(name.encode())).read_all() == data
            assert get(f"{server.http}/v1/datasets/{name}").table() == data
        assert get(f"{server.http}/v1/datasets/plain").table() == plain
    shown = statistics(server)
    assert shown["memory"]["peak_bytes"] <= limit_bytes + 3 * MIB  # and a message that has just come
    assert server.events("internal_error") == []
    assert server.events("spiller_failed") == []


@pytest.mark.parametrize("lane", ["bulk", "grpc"])
def test_many_readers_that_take_nothing_do_not_hold_a_copy_of_the_dictionary_each(
    flight_server_process: Start, lane: Lane
) -> None:
    limit_bytes = 64 * MIB
    server = flight_server_process(memory_limit=limit_bytes, stall_seconds=0.5)
    data = coded(7 * MIB, 0)
    with flight.connect(server.location) as client, ExitStack() as opened:
        put(client, data, dataset="d")
        pause(opened, server, lane, "d", 20)
        assert get(f"{server.http}/v1/datasets/d").table() == data
        shown = statistics(server)
        assert shown["memory"]["accounts"]["sends"]["peak_bytes"] >= 7 * MIB
        assert shown["memory"]["peak_bytes"] <= limit_bytes
        assert server.peak_rss_bytes() <= limit_bytes + CONSTANT_BYTES
    eventually(lambda: statistics(server)["waits"], 0)
