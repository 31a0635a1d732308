"""A changelog whose rule names another one that does not fit: the create is refused, and a start is none the worse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.changelogs import numbers, snapshot
from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]

MESSAGES = pa.schema([("message", pa.int64()), ("kind", pa.string()), ("at", pa.int64())])
OTHER = pa.schema([("something", pa.string())])
SENT = pa.table([[1], ["send"], [5]], schema=MESSAGES)
TAKEN = pa.table([[1], ["recv"], [8]], schema=MESSAGES)


def pairs(emit: str) -> dict[str, Any]:
    return {
        "rule": "pair",
        "key": ["message"],
        "kind": "kind",
        "values": ["send", "recv"],
        "order_by": ["at"],
        "emit": emit,
    }


def test_a_create_that_is_refused_for_what_it_emits_leaves_nothing_to_the_next_start(
    flight_server_process: Start, tmp_path: Path
) -> None:
    server = flight_server_process(data_dir=tmp_path / "data")
    with flight.connect(server.location) as client:
        changelogs.create(client, "other", OTHER)
        changelogs.put(client, "other", pa.table([["kept"]], schema=OTHER))
        for emit, reason in (("other", "other"), ("messages", "cannot emit into itself")):
            with pytest.raises(pa.ArrowInvalid, match=reason):
                changelogs.create(client, "messages", MESSAGES, keep=pairs(emit))
        assert list(action(client, "statistics")["datasets"]) == ["other"]
    assert server.kill() == -9
    server = flight_server_process(data_dir=tmp_path / "data")
    with flight.connect(server.location) as client:
        assert snapshot(client, "other") == [("kept",)]
        assert list(action(client, "statistics")["datasets"]) == ["other"]


def test_a_start_goes_on_when_what_a_rule_emits_into_has_become_something_else(
    flight_server_process: Start, tmp_path: Path
) -> None:
    server = flight_server_process(data_dir=tmp_path / "data")
    with flight.connect(server.location) as client:
        changelogs.create(client, "messages", MESSAGES, keep=pairs("latencies"))
        changelogs.put(client, "messages", SENT)
        action(client, "drop", dataset="latencies")
        changelogs.create(client, "latencies", OTHER)
    assert server.terminate() == 0
    server = flight_server_process(data_dir=tmp_path / "data")
    with flight.connect(server.location) as client:
        assert snapshot(client, "messages") == [(1, "send", 5)]
        assert "'latencies'" in numbers(client, "messages")["not_emitting"]
        with pytest.raises(pa.ArrowInvalid, match="latencies"):
            changelogs.create(client, "messages", MESSAGES, keep=pairs("latencies"))
        action(client, "drop", dataset="latencies")
        changelogs.create(client, "messages", MESSAGES, keep=pairs("latencies"))
        assert "not_emitting" not in numbers(client, "messages")
        changelogs.put(client, "messages", TAKEN)
        eventually(lambda: snapshot(client, "latencies"), [(1, 5, 8, 3)])
