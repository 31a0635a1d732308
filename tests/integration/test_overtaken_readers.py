"""A reader that stays behind while as many others as the retention declares have read everything.

What it has not taken yet is gone. It must be told so, on each lane and by each client: never a gap, and
never an end that looks clean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import Ticket
from flight_server.protocol.errors import Released
from spark_client.connection import LaneChoice, RemoteServer
from tests.support.bulk import Cut, RawGet, get
from tests.support.held import message_bytes
from tests.support.merging import QUICK, batches_from, partition_stream
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, field, refusal
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")

FRAMES = 64
FRAME_ROWS = (1 << 20) // 8  # 1 MiB: all of them are far more than sockets and windows take in advance
NAME = "d"


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess.start(memory_limit="512MiB") as started:
        yield started
    assert started.events("internal_error") == []


@pytest.fixture
def server(process: ServerProcess) -> Iterator[RemoteServer]:
    """A server with a whole dataset that goes as soon as one reader has passed it."""
    made = RemoteServer(process.location, timeouts=QUICK)
    made.action("create", {"dataset": NAME, "retention": {"readers": 1}})
    writer = made.open_put(flight.FlightDescriptor.for_path(NAME), batch(0).schema)[0]
    for number in range(FRAMES):
        writer.write_batch(batch(number))
    writer.close()
    yield made
    made.action("drop", {"dataset": NAME})
    eventually(lambda: message_bytes(made.action("statistics", {})), 0)
    made.close()


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.full(FRAME_ROWS, number)})


def overtake(process: ServerProcess) -> None:
    """Another reader reads to the end, from the first frame that is left, so that retention releases all frames."""
    start = 0
    while True:
        answer = get(f"{process.http}/v1/datasets/{NAME}/partitions/0?from={start}")
        if answer.status == 200:
            return
        # Frames that the slow reader has passed are released while it fills the buffers of its connection.
        assert answer.json()["first"] > start
        start = answer.json()["first"]


def take_all(take: Callable[[], pa.RecordBatch | None], taken: list[pa.RecordBatch]) -> None:
    while (following := take()) is not None:
        taken.append(following)


def check_released(code: str, detail: dict[str, Any], taken: int) -> None:
    """The error names the first frame left when the slow reader asked; the other may have read on since."""
    assert code == "released"
    assert (detail["dataset"], detail["partition"]) == (NAME, 0)
    assert taken < detail["first"] <= FRAMES


def test_pyarrow_s_client_is_told_after_the_frames_that_it_could_get(
    process: ServerProcess, server: RemoteServer
) -> None:
    with flight.connect(process.location) as client:
        reader = client.do_get(flight.Ticket(NAME.encode()))
        taken = [reader.read_chunk().data]
        overtake(process)
        with pytest.raises(KeyError, match=r"dataset 'd' partition 0: frame \d+ was released"):
            take_all(lambda: reader.read_chunk().data, taken)
    assert len(taken) < FRAMES
    assert taken == [batch(number) for number in range(len(taken))]


def test_the_error_is_typed_and_says_what_is_left(process: ServerProcess, server: RemoteServer) -> None:
    with RawFlight(process.location) as raw:
        call = raw.call("DoGet", field(1, NAME.encode()))
        messages = iter(call)
        next(messages)  # the schema
        taken = [next(messages)]
        overtake(process)
        with pytest.raises(grpc.RpcError) as caught:
            taken.extend(messages)
    refused = refusal(caught.value)
    assert refused.status == "NOT_FOUND"
    check_released(refused.detail["error"], refused.detail, len(taken))


def test_the_bulk_lane_is_cut_and_says_why_to_a_reader_that_reads_on(
    process: ServerProcess, server: RemoteServer
) -> None:
    url = f"{process.http}/v1/datasets/{NAME}/partitions/0"
    with RawGet(url, receive_buffer_bytes=64 << 10) as slow:
        assert slow.head()[0] == 200
        chunks = slow.chunks()
        next(chunks)
        overtake(process)
        with pytest.raises(Cut):
            list(chunks)
        assert slow.trailers == {}
    again = get(f"{url}?from={slow.chunk_count}")
    assert again.status == 404
    check_released(again.json()["error"], again.json(), slow.chunk_count)
    assert again.json()["first"] == FRAMES, "by now the other one has read everything"


@pytest.mark.parametrize("lane", ["grpc", "bulk", "auto"])
def test_our_client_raises_what_the_server_says(
    process: ServerProcess, server: RemoteServer, lane: LaneChoice
) -> None:
    assert process.http is not None
    locations = [process.location, process.http]
    slow = partition_stream(server, Ticket(NAME, 0), locations=locations, lane=lane)
    arriving = batches_from(slow)
    taken = [next(arriving)]
    overtake(process)
    with pytest.raises(Released, match="was released") as caught:
        taken.extend(arriving)
    slow.close()
    check_released(caught.value.code, caught.value.detail, len(taken))
    assert len(taken) < FRAMES
    assert taken == [batch(number) for number in range(len(taken))]


def test_a_reader_that_lacks_only_the_end_gets_it(process: ServerProcess, server: RemoteServer) -> None:
    overtake(process)
    ticket = json.dumps({"dataset": NAME, "from": FRAMES}).encode()
    with RawFlight(process.location) as raw:
        call = raw.call("DoGet", field(1, ticket))
        assert len(list(call)) == 1
        assert dict(call.trailing_metadata())["x-flight-shuffle-frames"] == str(FRAMES)
