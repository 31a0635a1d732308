"""Cutting batches into frames, and puts that are left or refused, on both lanes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest, Kind, PutCommand
from flight_server.protocol.errors import InvalidRequest
from spark_client.connection import RemoteServer, Writing
from spark_client.lanes.put_stream import FRAME_BYTES, MAX_FRAME_BYTES, PutStream, frames
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("x", pa.int64())])
BATCH = pa.record_batch({"x": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture(params=["grpc", "bulk"])
def server(request: pytest.FixtureRequest, empty_server: ServerProcess) -> Iterator[RemoteServer]:
    found = RemoteServer(empty_server.location, writing=Writing(request.param))
    yield found
    found.close()


def shuffle(server: RemoteServer, partitions: int = 4) -> PutCommand:
    server.action("create", CreateRequest("s", Kind.SHUFFLE, partitions=partitions).encode())
    return PutCommand("s", producer=0, attempt="1")


def send(server: RemoteServer, command: PutCommand, partition: int, count: int = 10_000) -> None:
    with PutStream(server, command, SCHEMA) as stream:
        for _ in range(count):
            stream.write(BATCH, partition)
        stream.commit()


def test_small_batches_are_one_frame_and_large_ones_are_cut_evenly() -> None:
    assert list(frames(BATCH)) == [BATCH]
    rows = 5 * FRAME_BYTES // 8
    large = pa.record_batch({"x": pa.array(range(rows), pa.int64())})
    parts = list(frames(large))
    assert 5 <= len(parts) <= 6
    assert max(part.num_rows for part in parts) <= FRAME_BYTES // 8
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([large]))


def test_no_frame_is_larger_than_clients_of_other_languages_take() -> None:
    lengths = [3_000_000, *([1] * 300_000), *([1000] * 9_000), 2_000_000, 3_500_000, *([0] * 1_000)]
    batch = pa.record_batch({"x": ["x" * length for length in lengths], "n": range(len(lengths))})
    parts = list(frames(batch))
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([batch]))
    assert max(map(pa.ipc.get_record_batch_size, parts)) <= MAX_FRAME_BYTES < 4 << 20
    assert len(parts) < 30


def test_a_batch_that_slices_do_not_make_smaller_is_one_frame() -> None:
    texts = pa.array([f"{number} {'x' * 100}" for number in range(100_000)])
    batch = pa.record_batch({"v": texts.cast(pa.string_view())})
    assert pa.ipc.get_record_batch_size(batch) > MAX_FRAME_BYTES
    assert [part.num_rows for part in frames(batch)] == [100_000]


def test_one_row_is_never_cut() -> None:
    huge = pa.record_batch({"x": ["x" * (3 * FRAME_BYTES)]})
    assert list(frames(huge)) == [huge]


def test_what_was_left_without_a_commit_is_not_there(server: RemoteServer) -> None:
    command, before = shuffle(server), server.action("statistics")["puts"]
    with PutStream(server, command, SCHEMA) as stream:
        stream.write(BATCH, 0)
    # The same attempt may come again when the server has seen that it broke off.
    eventually(lambda: [server.action("statistics")[key] for key in ("puts", "waits")], [before + 1, 0])
    send(server, command, 0, count=0)
    assert server.action("seal", {"dataset": "s"})["rows"] == 0


def test_a_refusal_while_writing_is_the_servers_own_sentence(server: RemoteServer) -> None:
    command = shuffle(server, partitions=2)
    with pytest.raises(InvalidRequest, match="partition 7, but there are partitions 0 to 1"):
        send(server, command, 7)
