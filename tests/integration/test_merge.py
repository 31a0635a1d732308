"""The client's streams against a real server over real sockets, and a network that breaks."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.errors import DatasetDropped, NotFound, PartitionFailed, StaleTicket
from flight_server.memory import MemoryPool
from flight_server.protocol import PutCommand, Ticket
from spark_client.lanes import BrokenStream
from spark_client.streams import PartitionStream, StreamStalled, merge, merge_async, partition_streams
from spark_client.transport import ForkedProcess, Server, Timeouts
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("partition", pa.int64()), ("n", pa.int64())])
FRAMES, ROWS = 20, 500
QUICK = Timeouts(
    connect_seconds=5,
    call_seconds=10,
    first_message_seconds=10,
    stall_seconds=20,
    backoff_seconds=0.01,
    backoff_limit_seconds=0.05,
    slot_seconds=0.01,
    close_seconds=5,
)


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess.start() as started:
        yield started


@pytest.fixture
def server(process: ServerProcess) -> Iterator[Server]:
    made = Server(process.location, timeouts=QUICK)
    yield made
    made.close()


@pytest.fixture
def proxy(process: ServerProcess) -> Iterator[Proxy]:
    with Proxy.to(process.location) as made:
        yield made


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Server]:
    made = Server(proxy.location, timeouts=QUICK)
    yield made
    made.close()


_names = iter(range(1_000_000))


@pytest.fixture
def name() -> str:
    return f"merge/{next(_names)}"


def batch_of(partition: int, frame: int, rows: int = ROWS) -> pa.RecordBatch:
    numbers = pa.array(range(frame * rows, (frame + 1) * rows), pa.int64())
    return pa.record_batch([pa.array([partition] * rows, pa.int64()), numbers], schema=SCHEMA)


def create(server: Server, name: str, partitions: int = 1) -> None:
    server.action("create", {"dataset": name, "kind": "stream", "partitions": partitions})


def open_put(
    server: Server, name: str, partition: int = 0, mode: str = "create"
) -> flight.FlightStreamWriter:
    command = PutCommand(name, partition, mode=mode).encode()
    return server.open_put(flight.FlightDescriptor.for_command(command), SCHEMA)[0]


def put(server: Server, name: str, partition: int = 0, frames: int = FRAMES, mode: str = "create") -> None:
    writer = open_put(server, name, partition, mode)
    for frame in range(frames):
        writer.write_batch(batch_of(partition, frame))
    writer.close()


def put_all(server: Server, name: str, partitions: int, frames: int = FRAMES) -> None:
    create(server, name, partitions)
    for partition in range(partitions):
        put(server, name, partition, frames)


def streams_of(server: Server, name: str) -> list[PartitionStream]:
    return [
        PartitionStream(server, Ticket.parse(endpoint.ticket.ticket), lane="grpc")
        for endpoint in server.flight_info(name).endpoints
    ]


def read_all(stream: PartitionStream) -> list[int]:
    numbers: list[int] = []
    while (batch := stream.read()) is not None:
        numbers += batch["n"].to_pylist()
    stream.close()
    return numbers


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


EVERYTHING = list(range(FRAMES * ROWS))


def test_merge_reads_every_partition_whole(server: Server, name: str) -> None:
    put_all(server, name, 5)
    pool = MemoryPool(40_000)
    with merge(streams_of(server, name), pool=pool, timeouts=QUICK) as merged:
        assert merged.schema == SCHEMA
        table = pa.Table.from_batches(merged, SCHEMA)
    for partition in range(5):
        mine = table.filter(pa.compute.equal(table["partition"], partition))
        assert mine["n"].to_pylist() == EVERYTHING
    assert pool.used_bytes == 0


async def test_async_merge_reads_every_partition_whole(server: Server, name: str) -> None:
    put_all(server, name, 3)
    async with merge_async(streams_of(server, name), timeouts=QUICK) as merged:
        assert sum([batch.num_rows async for batch in merged]) == 3 * FRAMES * ROWS


def test_a_dataset_without_a_row_is_read_whole(server: Server, name: str) -> None:
    put(server, name, frames=0)
    with merge(streams_of(server, name), timeouts=QUICK) as merged:
        assert merged.schema == SCHEMA
        assert list(merged) == []


def test_the_endpoints_of_a_flight_info_become_streams(server: Server, name: str) -> None:
    put_all(server, name, 3)
    streams = partition_streams(server, server.flight_info(name).endpoints, lane="grpc")
    assert [stream.partition for stream in streams] == [0, 1, 2]
    with merge(streams, order="stream", timeouts=QUICK) as merged:
        assert [batch["partition"][0].as_py() for batch in merged] == [0] * 20 + [1] * 20 + [2] * 20


def test_merge_reads_while_it_is_being_written(server: Server, name: str) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    with merge(streams_of(server, name), timeouts=QUICK) as merged:
        for frame in range(1, 10):
            assert next(merged) == batch_of(0, frame - 1)
            writer.write_batch(batch_of(0, frame))
        writer.close()
        assert len(list(merged)) == 1


# A network that breaks.


@pytest.mark.parametrize("into", [0.02, 0.3, 0.5, 0.75, 0.98])
def test_a_connection_that_breaks_anywhere_is_resumed_without_a_row_lost_or_twice(
    server: Server, proxy: Proxy, through: Server, name: str, into: float
) -> None:
    put(server, name)
    ticket = Ticket.parse(server.flight_info(name).endpoints[0].ticket.ticket)
    before = proxy.bytes_back
    assert read_all(PartitionStream(through, ticket, lane="grpc")) == EVERYTHING
    size_bytes = proxy.bytes_back - before
    stream = PartitionStream(through, ticket, lane="grpc")
    proxy.cut_after(int(size_bytes * into))
    assert read_all(stream) == EVERYTHING
    assert proxy.cuts == 1


def test_a_connection_that_breaks_at_each_frame_is_resumed_each_time(
    server: Server, proxy: Proxy, through: Server, name: str
) -> None:
    put(server, name)
    stream = PartitionStream(through, Ticket(name, 0), lane="grpc")
    numbers = []
    while (batch := stream.read()) is not None:
        numbers += batch["n"].to_pylist()
        proxy.cut()
    stream.close()
    assert numbers == EVERYTHING
    assert stream.resumes >= 1


def test_every_byte_of_a_small_read_can_be_the_last_one_of_its_connection(
    server: Server, proxy: Proxy, through: Server, name: str
) -> None:
    put(server, name, frames=2)
    ticket = Ticket.parse(server.flight_info(name).endpoints[0].ticket.ticket)
    before = proxy.bytes_back
    read_all(PartitionStream(through, ticket, lane="grpc"))
    size_bytes = proxy.bytes_back - before
    # A step that meets header, metadata, body, padding and trailers in some run.
    for cut_at in range(1, size_bytes, max(1, size_bytes // 40) | 1):
        stream = PartitionStream(through, ticket, lane="grpc")
        proxy.cut_after(cut_at)
        assert read_all(stream) == list(range(2 * ROWS)), f"cut after {cut_at} of {size_bytes} bytes"


def test_merged_streams_survive_cuts_of_their_shared_connections(
    server: Server, proxy: Proxy, through: Server, name: str
) -> None:
    put_all(server, name, 8)
    streams = [PartitionStream(through, Ticket(name, i), lane="grpc") for i in range(8)]
    rows: dict[int, list[int]] = {i: [] for i in range(8)}
    with merge(streams, timeouts=QUICK) as merged:
        for count, batch in enumerate(merged):
            rows[batch["partition"][0].as_py()] += batch["n"].to_pylist()
            if count in (3, 40, 90):
                proxy.cut()
    assert all(numbers == EVERYTHING for numbers in rows.values())


def test_a_server_that_stays_away_is_an_error_after_a_bounded_number_of_tries(
    server: Server, proxy: Proxy, through: Server, name: str
) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    stream = PartitionStream(through, Ticket(name, 0), lane="grpc")
    with merge([stream], timeouts=QUICK) as merged:
        next(merged)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(BrokenStream) as raised:
            next(merged)
    assert "beyond frame 1" in raised.value.message
    assert f"{QUICK.tries + 1} tries" in raised.value.message
    assert proxy.location in raised.value.message


def test_the_next_location_is_tried_when_the_first_one_is_gone(server: Server, name: str) -> None:
    put(server, name)
    with Proxy.to(server.location) as gone:
        nowhere = gone.location
    stream = PartitionStream(
        server, Ticket(name, 0), locations=[nowhere, "arrow-flight-reuse-connection://?"], lane="grpc"
    )
    assert read_all(stream) == EVERYTHING


def test_a_broken_stream_is_never_resumed_in_another_generation(
    server: Server, proxy: Proxy, through: Server, name: str
) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    stream = PartitionStream(through, Ticket(name, 0), lane="grpc")
    assert stream.read() == batch_of(0, 0)
    assert stream.generation is not None
    proxy.refuse()
    proxy.cut()
    server.action("drop", {"dataset": name})
    put(server, name, frames=3)
    proxy.refuse(refusing=False)
    with pytest.raises(StaleTicket, match="replaced or dropped after 1 of its frames"):
        stream.read()
    stream.close()


def test_a_dataset_that_is_dropped_while_it_is_read_is_the_servers_error(server: Server, name: str) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    with merge(streams_of(server, name), timeouts=QUICK) as merged:
        next(merged)
        server.action("drop", {"dataset": name})
        with pytest.raises((DatasetDropped, StaleTicket)):
            next(merged)


def test_an_unknown_dataset_and_a_stale_ticket_are_said_in_the_servers_words(
    server: Server, name: str
) -> None:
    with merge([PartitionStream(server, Ticket("no/such/thing", 0))], timeouts=QUICK) as merged:
        with pytest.raises(NotFound, match="no/such/thing") as raised:
            next(merged)
        assert "grpc" not in raised.value.message.lower()
    put(server, name)
    with (
        merge([PartitionStream(server, Ticket(name, 0, "other"))], timeouts=QUICK) as merged,
        pytest.raises(StaleTicket),
    ):
        next(merged)


@pytest.mark.xfail(strict=True, reason="the server takes a broken connection for the end of a put")
def test_a_producer_that_breaks_off_is_an_error_and_never_a_short_result(server: Server, name: str) -> None:
    with Proxy.to(server.location) as between:
        producer = Server(between.location, timeouts=QUICK)
        writer = open_put(producer, name)
        writer.write_batch(batch_of(0, 0))
        with merge(streams_of(server, name), timeouts=QUICK) as merged:
            next(merged)
            between.cut()
            with pytest.raises(PartitionFailed):
                list(merged)
        producer.close()


# Waiting.


def test_a_stall_names_stream_server_and_what_the_server_waits_for(process: ServerProcess, name: str) -> None:
    server = Server(process.location, timeouts=Timeouts(stall_seconds=0.3, close_seconds=5))
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    with merge(streams_of(server, name), timeouts=QUICK) as merged:
        next(merged)
        with pytest.raises(StreamStalled) as raised:
            next(merged)
    for word in ("partition 0", name, process.location, "producer"):
        assert word in raised.value.message
    server.close()


def test_a_dataset_that_nobody_describes_is_an_error_in_time(process: ServerProcess, name: str) -> None:
    server = Server(process.location, timeouts=Timeouts(first_message_seconds=0.5, close_seconds=5))
    create(server, name)
    stream = PartitionStream(server, Ticket(name, 0), lane="grpc")
    with merge([stream], timeouts=QUICK) as merged, pytest.raises(StreamStalled, match="no schema came"):
        next(merged)
    server.close()


def test_closing_ends_a_stream_that_waits_for_its_schema(server: Server, name: str) -> None:
    create(server, name)
    with merge([PartitionStream(server, Ticket(name, 0), lane="grpc")], timeouts=QUICK):
        until(lambda: bool(server.action("why", {"dataset": name})["waits"]), "the server waits")


def test_a_peer_that_accepts_and_never_answers_is_an_error_in_time(proxy: Proxy, name: str) -> None:
    server = Server(proxy.location, timeouts=Timeouts(connect_seconds=0.5, first_message_seconds=1, tries=1))
    proxy.hold()
    with (
        merge([PartitionStream(server, Ticket(name, 0), lane="grpc")], timeouts=QUICK) as merged,
        pytest.raises((StreamStalled, BrokenStream)),
    ):
        next(merged)
    proxy.release()
    server.close()


def test_closing_ends_streams_that_wait_for_a_producer(server: Server, name: str) -> None:
    create(server, name, 4)
    writers = [open_put(server, name, i) for i in range(4)]
    for i, writer in enumerate(writers):
        writer.write_batch(batch_of(i, 0))
    merged = merge(streams_of(server, name), timeouts=QUICK)
    for _ in range(4):
        next(merged)
    merged.close()
    assert merged.statistics().threads == 0
    until(lambda: not _readers(server, name), "the server has let go of the readers")


def test_a_collected_merge_lets_go_of_the_server(server: Server, name: str) -> None:
    writer = open_put(server, name)
    writer.write_batch(batch_of(0, 0))
    merged = merge(streams_of(server, name), timeouts=QUICK)
    next(merged)
    del merged
    gc.collect()
    until(lambda: not _readers(server, name), "the server has let go of the reader")


def _readers(server: Server, name: str) -> list[object]:
    partitions = server.action("statistics", {"dataset": name})["datasets"][name]["partitions"]
    return [reader for partition in partitions.values() for reader in partition["subscriptions"]]


# Windows and connections.


def test_one_stream_that_nobody_reads_starves_no_other_through_a_small_window(
    process: ServerProcess, name: str
) -> None:
    server = Server(process.location, timeouts=QUICK, max_connections=1, window_bytes=65_535)
    put_all(server, name, 6, frames=40)
    with server.calling() as (client, _):
        unread = client.do_get(flight.Ticket(Ticket(name, 5).encode()))
        with merge(streams_of(server, name)[:5], order="stream", timeouts=QUICK) as merged:
            assert sum(batch.num_rows for batch in merged) == 5 * 40 * ROWS
        assert unread.read_all().num_rows == 40 * ROWS
    server.close()


def test_hundreds_of_streams_share_a_few_connections(server: Server, name: str) -> None:
    put_all(server, name, 300, frames=1)
    with Proxy.to(server.location) as between:
        client = Server(between.location, timeouts=QUICK)
        streams = [PartitionStream(client, Ticket(name, i), lane="grpc") for i in range(300)]
        with merge(streams, timeouts=QUICK) as merged:
            assert sum(batch.num_rows for batch in merged) == 300 * ROWS
        assert between.connections <= 4
        client.close()


def test_errors_of_calls_at_the_same_time_are_not_mixed_up(server: Server) -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        for i in range(20):
            wanted = f"nobody/{number}/{i}"
            try:
                server.flight_info(wanted)
            except NotFound as error:
                if wanted not in error.message:
                    wrong.append(error.message)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_server_travels_by_pickle_and_is_shared_where_it_arrives(server: Server, name: str) -> None:
    put(server, name, frames=1)
    data = pickle.dumps(server)
    first, second = pickle.loads(data), pickle.loads(data)
    assert first is second
    assert first.flight_info(name).total_records == ROWS
    first.close()


def test_a_forked_child_of_a_process_that_used_grpc_gets_an_error_and_does_not_hang(
    server: Server, name: str
) -> None:
    put(server, name, frames=1)
    pid = os.fork()
    if pid == 0:
        try:
            server.flight_info(name)
        except ForkedProcess:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
