"""A dozen calls of each kind, ended in each way, leave no object of ours: by reference counts alone."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

from flight_server import config
from flight_server.lanes.http import bulk_put
from flight_server.server import Server
from tests.support import raw_put
from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, Refused, command, commit, field, path, put_messages

CALLS = 12
BATCH = pa.record_batch({"n": [1, 2, 3], "w": pa.array(["a", "b", "a"]).dictionary_encode()})


def ours() -> Counter[str]:
    """How many objects there are of each of the server's classes.

    Not counted are errors: gRPC keeps the one that ends a call in a cycle with it. It holds a few texts.
    """
    kinds = (type(each) for each in gc.get_objects() if not isinstance(each, BaseException))
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("flight_server"))


def left_by(act: Callable[[RawFlight], None], before: Counter[str]) -> str:
    """Of which classes there are more objects than before, by more than some calls' worth; "" if of none."""
    more = (ours() - before).items()
    return ", ".join(f"{number} {kind} of {act.__name__}" for kind, number in more if number > CALLS // 4)


def whole_put(raw: RawFlight) -> None:
    raw.put(put_messages(path("d"), [BATCH, BATCH]))
    assert len(raw.get(b"d")) == 4
    raw.action("drop", {"dataset": "d"})


def refused_put(raw: RawFlight) -> None:
    with suppress(Refused):
        raw.put([*put_messages(path("d"), [BATCH]), b"\xff"])
    with suppress(Refused):
        raw.get(b"d")
    raw.action("drop", {"dataset": "d"})


def cancelled_put(raw: RawFlight) -> None:
    open_put = OpenPut(raw)
    for message in put_messages(path("d"), [BATCH]):
        open_put.send(message)
    eventually(lambda: "d" in raw.action("statistics")["datasets"], expected=True)
    open_put.cancel()
    eventually(
        lambda: raw.action("statistics", {"dataset": "d"})["datasets"]["d"]["partitions"]["0"]["state"],
        "failed",
    )
    raw.action("drop", {"dataset": "d"})


def bulk_puts(raw: RawFlight) -> None:
    messages = put_messages(path("d"), [BATCH])
    (location,) = raw.action("locations")["put_locations"]
    with raw_put.RawPut(location) as broken:
        broken.send(*messages)
        broken.raw(b"\0\1\0\0 and no more")
        eventually(lambda: "d" in raw.action("statistics")["datasets"], expected=True)
    eventually(
        lambda: raw.action("statistics", {"dataset": "d"})["datasets"]["d"]["partitions"]["0"]["state"],
        "failed",
    )
    with suppress(raw_put.Refused):
        raw_put.put(location, messages)
    raw.action("drop", {"dataset": "d"})
    raw_put.put(location, messages)
    raw.action("drop", {"dataset": "d"})


def stalled_puts(raw: RawFlight) -> None:
    """All at once: each takes as long as a put may be idle."""
    (location,) = raw.action("locations")["put_locations"]
    stalled = []
    for number in range(CALLS):
        first, *_, frame = map(raw_put.framed, put_messages(path(f"d{number}"), [BATCH]))
        for begun in (b"", first[:20], first + b"\0\1\0\0 and no more", first + frame):
            stalled.append(raw_put.RawPut(location))
            stalled[-1].raw(begun)
    for each in stalled:
        with each, suppress(raw_put.Refused):
            each.answers()
    for name in raw.action("statistics")["datasets"]:
        raw.action("drop", {"dataset": name})


def cancelled_get(raw: RawFlight) -> None:
    raw.action("create", {"dataset": "d"})
    with OpenPut(raw) as open_put:
        for message in put_messages(path("d"), [BATCH]):
            open_put.send(message)
        call = raw.call("DoGet", field(1, b"d"))
        for _ in range(3):
            next(call)
        call.cancel()
    raw.action("drop", {"dataset": "d"})


def shuffle(raw: RawFlight) -> None:
    raw.action("create", {"dataset": "d", "kind": "shuffle"})
    for attempt in ("a", "b", "broken"):
        descriptor = command({"dataset": "d", "producer": 0, "attempt": attempt})
        with suppress(Refused):
            last = [] if attempt == "broken" else [commit(3, 1)]
            raw.put([*put_messages(descriptor, [BATCH], metadata=iter([b"0"])), *last])
    raw.action("seal", {"dataset": "d"})
    assert len(raw.get(b"d")) == 3
    raw.action("drop", {"dataset": "d"})


def overwrite(raw: RawFlight) -> None:
    raw.put(put_messages(command({"dataset": "o", "mode": "overwrite"}), [BATCH]))


async def test_no_object_of_ours_outlives_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_put, "LOOK_SECONDS", 0.05)
    chosen = config.load(
        {"port": 0, "http_port": 0, "memory_limit": 64 << 20, "stall_seconds": 1, "put_idle_seconds": 1}
    )
    async with Server(chosen) as server:
        await asyncio.to_thread(_drive, server)


def _drive(server: Server) -> None:
    acts: list[Callable[[RawFlight], None]]
    acts = [whole_put, refused_put, cancelled_put, bulk_puts, stalled_puts, cancelled_get, shuffle, overwrite]
    with RawFlight(server.location) as raw:
        for act in acts:  # what is made once is made now
            act(raw)
        gc.collect()
        gc.disable()
        try:
            before = ours()
            for act in acts:
                for _ in range(1 if act is stalled_puts else CALLS):
                    act(raw)
                # What the last calls hold may still be on its way out.
                eventually(lambda: left_by(act, before), "")  # noqa: B023 (used at once)
        finally:
            gc.enable()
        raw.action("drop", {"dataset": "o"})
        eventually(lambda: raw.action("statistics")["memory"]["used_bytes"], 0)
