"""Reading the frames from one number to before another, on both lanes of a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import InvalidRequest, Released, Ticket
from spark_client.connection import LaneChoice, RemoteServer, Timeouts
from spark_client.lanes.read_stream import ReadStream
from tests.support.bulk import get
from tests.support.durable import action
from tests.support.merging import batches_from, partition_stream
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")

LANES: list[LaneChoice] = ["bulk", "grpc"]
FRAMES, ROWS = 20, 1000
QUICK = Timeouts()

Start = Callable[..., ServerProcess]


@pytest.fixture
def client(process: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(process.location) as made:
        yield made


def frame(number: int, rows: int = ROWS) -> pa.RecordBatch:
    words = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(rows) % 3, pa.int32()), pa.array([f"{number // 5} {word}" for word in "abc"])
    )
    return pa.record_batch({"n": pa.array(np.arange(number * rows, (number + 1) * rows)), "word": words})


def put(client: flight.FlightClient, name: str, frames: int = FRAMES, rows: int = ROWS) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), frame(0).schema)
    with writer:
        for number in range(frames):
            writer.write_batch(frame(number, rows))


def read(
    server: RemoteServer, lane: LaneChoice, name: str, start: int, until: int | None, *places: str
) -> tuple[list[pa.RecordBatch], ReadStream]:
    """The batches of the range, by a stream that may resume."""
    known = server.flight_info(name).endpoints[0]
    locations = list(places) or [location.uri.decode() for location in known.locations]
    generation = Ticket.parse(known.ticket.ticket).generation
    ticket = Ticket(name, 0, generation, start, until=until)
    stream = partition_stream(server, ticket, locations=locations, lane=lane)
    batches = [*batches_from(stream)]
    stream.close()
    return batches, stream


def rows_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch["n"].to_pylist()]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("wanted", [(0, 7), (7, 13), (13, 20), (0, 20), (4, 4), (20, 20)])
def test_a_range_has_exactly_its_frames_and_the_dictionaries_in_force(
    server: RemoteServer, client: flight.FlightClient, name: str, lane: LaneChoice, wanted: tuple[int, int]
) -> None:
    start, until = wanted
    put(client, name)
    batches, stream = read(server, lane, name, start, until)
    expected = [frame(number) for number in range(start, until)]
    assert [batch.to_pylist() for batch in batches] == [batch.to_pylist() for batch in expected]
    assert (stream.cursor.next_frame, stream.cursor.rows) == (until, ROWS * (until - start))


def test_the_trailers_are_the_totals_of_the_range(
    process: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    put(client, name)
    url = f"{process.http}/v1/datasets/{name}/partitions/0"
    answer = get(f"{url}?from=3&until=5")
    totals = {
        "x-flight-shuffle-rows": str(2 * ROWS),
        "x-flight-shuffle-frames": "2",
        "x-flight-shuffle-from": "3",
        "x-flight-shuffle-until": "5",
    }
    assert totals.items() <= answer.trailers.items()
    assert answer.trailers["x-flight-shuffle-crc32c"] != get(url).trailers["x-flight-shuffle-crc32c"]
    assert "x-flight-shuffle-until" not in get(url).trailers


@pytest.mark.parametrize("lane", LANES)
def test_a_range_that_the_partition_does_not_have_is_refused(
    server: RemoteServer, client: flight.FlightClient, name: str, lane: LaneChoice
) -> None:
    put(client, name)
    for start, until in ((0, 21), (21, 22)):
        with pytest.raises(InvalidRequest, match="has 20 frames"):
            read(server, lane, name, start, until)
    with pytest.raises(InvalidRequest, match="4 is before 'from', which is 5"):
        read(server, lane, name, 5, 4)


def test_until_goes_with_one_partition_and_is_a_number(
    process: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    put(client, name)
    dataset = f"{process.http}/v1/datasets/{name}"
    for url in (f"{dataset}?until=3", f"{dataset}/partitions/0?until=-1", f"{dataset}/partitions/0?until=x"):
        answer = get(url)
        assert answer.status == 400
        assert b"until" in answer.body
    with pytest.raises(pa.ArrowInvalid, match="until"):
        client.do_get(flight.Ticket(b'{"dataset": "%s", "until": "3"}' % name.encode())).read_all()


@pytest.mark.parametrize("lane", LANES)
def test_a_broken_range_is_read_on_from_the_next_frame_and_never_past_its_end(
    process: ServerProcess, server: RemoteServer, client: flight.FlightClient, name: str, lane: LaneChoice
) -> None:
    put(client, name, rows=100_000)
    assert process.http is not None
    with Proxy.to(process.location if lane == "grpc" else process.http) as proxy:
        # Behind some of the range's frames: of about 1.2 MB each.
        proxy.cut_after(5_000_000)
        place = proxy.location if lane == "grpc" else proxy.http
        batches, stream = read(server, lane, name, 6, 15, place)
        assert proxy.cuts == 1
    assert stream.resumes >= 1
    assert rows_of(batches) == list(range(600_000, 1_500_000))


@pytest.mark.parametrize("lane", LANES)
def test_a_range_of_a_spilled_partition_is_read_from_disk(
    flight_server_process: Start, name: str, lane: LaneChoice
) -> None:
    process = flight_server_process(memory_limit="16MiB")
    with flight.connect(process.location) as client:
        put(client, name, frames=40, rows=100_000)
        eventually(lambda: action(client, "statistics")["spilled_frames"] > 10, True)
        made = RemoteServer(process.location, timeouts=QUICK)
        try:
            batches, _ = read(made, lane, name, 11, 29)
        finally:
            made.close()
    assert rows_of(batches) == list(range(1_100_000, 2_900_000))


@pytest.mark.parametrize("lane", LANES)
def test_an_open_partition_gives_the_range_and_then_ends(
    process: ServerProcess, server: RemoteServer, client: flight.FlightClient, name: str, lane: LaneChoice
) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), frame(0).schema)
    with writer:
        for number in range(6):
            writer.write_batch(frame(number))
        batches, _ = read(server, lane, name, 2, 5)
    assert rows_of(batches) == list(range(2 * ROWS, 5 * ROWS))


@pytest.mark.parametrize("lane", LANES)
def test_retention_releases_a_frame_when_every_range_that_has_it_was_read(
    server: RemoteServer, client: flight.FlightClient, name: str, lane: LaneChoice
) -> None:
    action(client, "create", dataset=name, retention={"readers": 1})
    put(client, name)
    read(server, lane, name, 0, 8)
    with pytest.raises(Released):
        read(server, lane, name, 0, 8)
    batches, _ = read(server, lane, name, 8, 20)
    assert rows_of(batches) == list(range(8 * ROWS, 20 * ROWS))
