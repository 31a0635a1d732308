"""Retention by readers over a network that breaks: a frame goes when readers are known to have it, and not before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyarrow import flight

from flight_server.protocol import PutCommand, Ticket
from flight_server.protocol.errors import Released
from spark_client.connection import LaneChoice, Reading, RemoteServer
from spark_client.lanes.put_stream import PutStream
from spark_client.lanes.read_stream import ReadStream
from spark_client.merge import DatasetRef
from tests.support.merging import (
    EVERYTHING,
    FRAMES,
    QUICK,
    ROWS,
    SCHEMA,
    batch_of,
    batches_from,
    partition_stream,
    put,
    read_all,
)
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")

LARGE_ROWS, LARGE_FRAMES = 100_000, 6  # frames of 800 kB: each comes alone
LARGE = list(range(LARGE_ROWS * LARGE_FRAMES))

for_each_lane = pytest.mark.parametrize("lane", ["grpc", "bulk"])


@pytest.fixture
def counted(server: RemoteServer, name: str) -> Iterator[str]:
    """A whole dataset that goes when two readers have had it."""
    server.action("create", {"dataset": name, "retention": {"readers": 2}})
    put(server, name)
    yield name
    server.action("drop", {"dataset": name})


def frames_left(server: RemoteServer, name: str) -> int:
    statistics = server.action("statistics", {"dataset": name})["datasets"][name]
    return int(statistics["partitions"]["0"]["frames_left"])


def put_large(server: RemoteServer, name: str) -> None:
    """Write ``LARGE`` into a dataset that goes when two readers have had it."""
    server.action("create", {"dataset": name, "retention": {"readers": 2}})
    with PutStream(server, PutCommand(name, producer=0, attempt="a"), SCHEMA) as writing:
        for frame in range(LARGE_FRAMES):
            writing.write(batch_of(0, frame, LARGE_ROWS))
        writing.commit()


def stream_of(process: ServerProcess, server: RemoteServer, name: str, lane: LaneChoice) -> ReadStream:
    assert process.http is not None
    return partition_stream(server, Ticket(name, 0), locations=[process.location, process.http], lane=lane)


@for_each_lane
def test_frames_go_when_the_clients_have_said_that_they_have_them(
    process: ServerProcess, server: RemoteServer, counted: str, lane: LaneChoice
) -> None:
    assert read_all(stream_of(process, server, counted, lane)) == EVERYTHING
    assert frames_left(server, counted) == FRAMES
    last = stream_of(process, server, counted, lane)
    for batch in batches_from(last):
        assert batch.num_rows == ROWS
        assert frames_left(server, counted) == FRAMES, "the reader has not said that it has them"
    last.close()
    assert frames_left(server, counted) == 0
    with pytest.raises(Released, match="as many readers as its retention declares"):
        read_all(stream_of(process, server, counted, lane))


@for_each_lane
def test_a_reader_whose_connection_breaks_again_and_again_reads_all_and_counts_once(
    process: ServerProcess, server: RemoteServer, name: str, lane: LaneChoice
) -> None:
    assert process.http is not None
    put_large(server, name)
    with Proxy.to(process.http if lane == "bulk" else process.location) as between:
        through = RemoteServer(between.location if lane == "grpc" else process.location, timeouts=QUICK)
        stream = partition_stream(through, Ticket(name, 0), locations=[between.http], lane=lane)
        taken: list[int] = []
        between.cut_after(1_000_000)
        for batch in batches_from(stream):
            taken += batch["n"].to_pylist()
            between.cut_after(1_000_000)
        stream.close()
        through.close()
    assert taken == LARGE
    assert stream.resumes > 0
    assert frames_left(server, name) == LARGE_FRAMES, "two readers are wanted, and it is one"
    assert read_all(stream_of(process, server, name, lane)) == taken
    assert frames_left(server, name) == 0
    server.action("drop", {"dataset": name})


@for_each_lane
def test_a_task_that_is_tried_again_under_its_name_is_one_reader(
    process: ServerProcess, counted: str, lane: LaneChoice
) -> None:
    server = RemoteServer(process.location, timeouts=QUICK, reading=Reading(lane=lane))
    task = replace(DatasetRef.find(server, counted), reader="job")
    for _ in range(3):
        assert [n for batch in task.read(0) for n in batch["n"].to_pylist()] == EVERYTHING
        assert frames_left(server, counted) == FRAMES, "two readers are wanted, and it is one"
    other = replace(task, reader="another-job")
    for first, until in ((FRAMES - 2, FRAMES), (0, FRAMES - 2)):
        assert frames_left(server, counted) == FRAMES
        assert list(other.read_frames(0, first, until))
    assert frames_left(server, counted) == 0
    server.close()


def test_another_client_that_is_cut_may_begin_again_from_the_first_frame(
    process: ServerProcess, server: RemoteServer, name: str
) -> None:
    put_large(server, name)
    with Proxy.to(process.location) as between:
        for _ in range(3):
            between.cut_after(1_000_000)
            # A busy client may notice the cut before it has the schema.
            with (
                flight.connect(between.location) as client,
                pytest.raises(flight.FlightUnavailableError),
            ):
                client.do_get(flight.Ticket(name.encode())).read_all()
    assert frames_left(server, name) == LARGE_FRAMES, "a reader that broke off has passed nothing"
    for left in (LARGE_FRAMES, 0):
        with flight.connect(process.location) as client:
            assert client.do_get(flight.Ticket(name.encode())).read_all()["n"].to_pylist() == LARGE
        eventually(lambda: frames_left(server, name), left)
    server.action("drop", {"dataset": name})


def test_any_client_can_name_itself_and_acknowledge(
    process: ServerProcess, server: RemoteServer, counted: str
) -> None:
    generation = json.loads(server.flight_info(counted).app_metadata)["generation"]
    ticket = {"dataset": counted, "generation": generation, "partition": 0, "reader": "mine"}
    with flight.connect(process.location) as client:
        for name in ("mine", "other"):
            reading = client.do_get(flight.Ticket(json.dumps({**ticket, "reader": name}).encode()))
            assert reading.read_chunk().data.num_rows == ROWS
            body = json.dumps({**ticket, "reader": name, "frames": 1}).encode()
            list(client.do_action(("acknowledge", body)))
            reading.cancel()
    assert frames_left(server, counted) == FRAMES - 1


def test_a_reader_that_does_not_come_back_in_time_leaves_its_turn_to_another(name: str) -> None:
    with ServerProcess.start("--resume-seconds", "1") as process:
        server = RemoteServer(process.location, timeouts=QUICK)
        server.action("create", {"dataset": name, "retention": {"readers": 2}})
        put(server, name)
        generation = json.loads(server.flight_info(name).app_metadata)["generation"]
        ticket = {"dataset": name, "generation": generation, "partition": 0, "reader": "gone"}
        acknowledged = json.dumps({**ticket, "frames": FRAMES - 1}).encode()
        with flight.connect(process.location) as client:

            def acknowledge() -> bool:
                try:
                    list(client.do_action(("acknowledge", acknowledged)))
                except KeyError:  # it has its place no longer
                    return False
                return True

            reading = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
            reading.read_chunk()  # a reader has its place from its first frame
            # All but one: a reader that has all has had its turn.
            assert acknowledge()
            reading.read_all()
            eventually(acknowledge, False)
        assert read_all(stream_of(process, server, name, "bulk")) == EVERYTHING
        assert frames_left(server, name) == FRAMES
        server.close()
