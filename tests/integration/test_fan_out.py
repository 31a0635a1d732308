"""One dataset, many readers, with pyarrow alone: streaming, late, slow, cancelled; each gets all or an error."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.polling import eventually
from tests.support.raw_flight import OpenPut, RawFlight, Refused, path, put_messages
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"http_port": "-1", "memory_limit": "256MiB"}

pytestmark = pytest.mark.usefixtures("spotless")

READERS = 50
FRAMES = 40
ROWS = 8192


def frame(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.full(ROWS, number)})


def numbers(reader: Any) -> list[int]:
    """The frames that a reader has got, each by its one value."""
    found = []
    for chunk in reader:
        # A batch may have several frames.
        rows = chunk.data["n"].to_numpy().reshape(-1, ROWS)
        assert (rows == rows[:, :1]).all()
        found += rows[:, 0].tolist()
    return found


def subscriptions(raw: RawFlight) -> list[dict[str, Any]]:
    partitions = raw.action("statistics", {"dataset": "d"})["datasets"]["d"]["partitions"]
    found: list[dict[str, Any]] = partitions["0"]["subscriptions"]
    return found


def test_fifty_threads_read_a_dataset_while_it_is_written(server: ServerProcess, raw: RawFlight) -> None:
    before = raw.action("statistics")
    first, *frames = put_messages(path("d"), [frame(number) for number in range(FRAMES)])
    slow_may_go_on = threading.Event()
    stalled = threading.Event()

    def read(kind: str) -> list[int] | str:
        with flight.connect(server.location) as client:
            reader = client.do_get(flight.Ticket(b"d"))
            if kind == "cancelling":
                reader.read_chunk()
                reader.cancel()
                return kind
            if kind == "slow":
                reader.read_chunk()
                stalled.set()
                assert slow_may_go_on.wait(60)
                return [0, *numbers(reader)]
            return numbers(reader)

    kinds = ["slow", *["cancelling"] * 5, *["plain"] * (READERS - 6)]
    with ThreadPoolExecutor(READERS) as threads:
        early: list[Future[list[int] | str]] = []
        late: list[Future[list[int] | str]] = []
        try:
            with OpenPut(raw) as open_put:
                open_put.send(first)
                eventually(lambda: "d" in raw.action("statistics")["datasets"], expected=True)
                early = [threads.submit(read, kind) for kind in kinds[: READERS // 2]]
                for number, message in enumerate(frames):
                    open_put.send(message)
                    if number == FRAMES // 2:
                        late = [threads.submit(read, kind) for kind in kinds[READERS // 2 :]]
                assert stalled.wait(60)
            # All but the slow one end while it stands still.
            done, _ = wait([*early[1:], *late], timeout=60)
            assert len(done) == READERS - 1
        finally:
            slow_may_go_on.set()
        got = [each.result() for each in (*early, *late)]
    assert got.count("cancelling") == 5
    assert got.count(list(range(FRAMES))) == READERS - 5
    after = raw.action("statistics")
    assert after["encodes"] - before["encodes"] == FRAMES
    assert after["frames_out"] - before["frames_out"] >= FRAMES * (READERS - 5)
    eventually(lambda: len(subscriptions(raw)), 0)


def test_statistics_and_why_show_each_reader_s_place(raw: RawFlight, server: ServerProcess) -> None:
    first, *frames = put_messages(path("d"), [frame(number) for number in range(3)])
    with flight.connect(server.location) as client, OpenPut(raw) as open_put:
        for message in (first, *frames):
            open_put.send(message)
        eventually(
            lambda: raw.action("statistics")["datasets"].get("d", {}).get("partition_states"), {"open": 1}
        )
        reader = client.do_get(flight.Ticket(b"d"))
        for _ in frames:
            reader.read_chunk()
        eventually(lambda: [each["position"] for each in subscriptions(raw)], [3])
        (shown,) = subscriptions(raw)
        assert shown["lag_bytes"] == 0

        def waiting() -> list[tuple[str, str]]:
            waits = raw.action("why", {"dataset": "d"})["waits"]
            return sorted((each["waiting_for"], each["peer"]) for each in waits if each["partition"] == 0)

        (writer,) = (each["peer"] for each in raw.action("why")["waits"] if each["waiting_for"] == "writer")
        # Until gRPC says that the last frame is written, the server waits for this reader.
        eventually(waiting, [("producer", shown["peer"]), ("writer", writer)])


def test_dropping_a_dataset_ends_its_readers_and_its_producer_with_the_reason(
    raw: RawFlight, server: ServerProcess
) -> None:
    first, message = put_messages(path("d"), [frame(0)])
    open_put = OpenPut(raw)
    open_put.send(first)
    open_put.send(message)
    eventually(lambda: "d" in raw.action("statistics")["datasets"], expected=True)
    with flight.connect(server.location) as client:
        reader = client.do_get(flight.Ticket(b"d"))
        reader.read_chunk()
        raw.action("drop", {"dataset": "d"})
        with pytest.raises(
            flight.FlightInternalError, match=r"'d' was dropped by the client .* while partition 0 was in use"
        ):
            reader.read_chunk()
    open_put.send(message)
    with pytest.raises(
        Refused, match=r"dataset 'd' was dropped by the client .* while partition 0 was in use"
    ):
        open_put.finish()
    raw.put(put_messages(path("d"), [frame(1)]))
    assert len(raw.get(b"d")) == 2


def test_a_reader_that_leaves_before_the_schema_leaves_nothing(raw: RawFlight) -> None:
    raw.action("create", {"dataset": "d"})
    for _ in range(10):
        call = raw.call("DoGet", b"\x0a\x01d")
        eventually(lambda: len(raw.action("why", {"dataset": "d"})["waits"]), 1)
        call.cancel()
        eventually(lambda: len(raw.action("why", {"dataset": "d"})["waits"]), 0)
    assert subscriptions(raw) == []
