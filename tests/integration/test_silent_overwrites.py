"""Overwrites by one put that are open and say nothing: they are listed, and can be dropped, at a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, Refused, command, path, put_messages
from tests.support.server_process import ServerProcess

MIB = 1 << 20
FRAMES = 8


@pytest.fixture
def raw() -> Iterator[RawFlight]:
    with (
        ServerProcess.start(
            memory_limit="16MiB", disk_limit="32MiB", segment_size="4MiB", budget_deadline_seconds=1
        ) as server,
        RawFlight(server.location) as connected,
    ):
        connected.put(put_messages(path("d"), [batch()]))
        yield connected


def batch() -> pa.RecordBatch:
    return pa.record_batch({"bytes": pa.array([os.urandom(MIB)])})


def staged(raw: RawFlight, action: str = "why") -> list[dict[str, Any]]:
    writes: list[dict[str, Any]] = raw.action(action)["staged"]["writes"]
    return writes


def overwriting(raw: RawFlight, frames: int) -> OpenPut:
    """An overwrite of which so many frames have arrived, and no more will."""
    before = sum(each["rows"] for each in staged(raw))
    put = OpenPut(raw)
    for message in put_messages(command({"dataset": "d", "mode": "overwrite"}), [batch()] * frames):
        put.send(message)
    eventually(lambda: sum(each["rows"] for each in staged(raw)), before + frames)
    return put


def test_silent_overwrites_that_fill_the_disk_are_listed_and_a_drop_makes_room(raw: RawFlight) -> None:
    overwrites = [overwriting(raw, FRAMES) for _ in range(3)]
    more = put_messages(path("more"), [batch() for _ in range(2 * FRAMES)])
    with pytest.raises(Refused, match="did not become free") as refused:
        raw.put(more)
    assert refused.value.status == "UNAVAILABLE"
    for action in ("why", "statistics"):
        listed = staged(raw, action)
        assert [(each["dataset"], each["mode"], each["rows"]) for each in listed] == [
            ("d", "overwrite", FRAMES)
        ] * 3
        assert all(each["bytes"] > FRAMES * MIB for each in listed)
    for each in staged(raw)[:2]:
        raw.action("drop", {"dataset": "d", "generation": each["generation"]})
    assert len(staged(raw)) == 1
    raw.put(more)
    assert len(raw.get(b"d")) == 2
    for dropped in overwrites[:2]:
        with pytest.raises(Refused, match="dropped"):
            dropped.finish()
    overwrites[2].finish()
    assert len(raw.get(b"d")) == 1 + FRAMES
    assert staged(raw) == []
