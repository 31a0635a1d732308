"""The client's reads of portions whose servers are gone and that objects have, too."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import PartitionFailed, ServerLost, index_of
from spark_client import ShuffleClient
from spark_client.connection import Reading, RemoteServer, Timeouts
from spark_client.lanes import read_stream
from spark_client.lanes.start_states import StartStates
from spark_client.merge import DatasetRef
from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, command_of, everything, rows_of, spread, values

pytestmark = pytest.mark.usefixtures("hasty")

QUICK = Timeouts(tries=2)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    with ServerProcess.start(offload_to=tmp_path) as one, ServerProcess.start(offload_to=tmp_path) as two:
        yield [one, two]


def ref_of(server: ServerProcess, lane: Any = "auto", **fields: Any) -> DatasetRef:
    remote = RemoteServer(server.location, reading=Reading(lane=lane), timeouts=QUICK)
    return replace(DatasetRef.find(remote, "d"), **fields)


def path_of(address: str | None) -> Path:
    assert address is not None
    return Path(address.removeprefix("file://"))


@pytest.mark.parametrize("lane", ["grpc", "auto"])
def test_what_a_killed_server_held_is_read_from_its_object(
    servers: Sequence[ServerProcess], tmp_path: Path, lane: str
) -> None:
    spread("d", servers, offload=str(tmp_path))
    ref = ref_of(servers[0], lane)
    servers[1].kill()
    assert sorted(values(ref.read_each(range(PARTITIONS)))) == everything(2)
    servers[0].kill()
    for partition in (4, 0):
        expected = sorted(row for server in range(2) for row in rows_of(server, partition))
        assert sorted(values(ref.read(partition))) == expected
    ref.server.close()


def test_another_start_at_the_same_port_does_not_hide_the_object(
    servers: Sequence[ServerProcess], tmp_path: Path
) -> None:
    spread("d", servers, offload=str(tmp_path))
    ref = ref_of(servers[0])
    with servers[0].restart(), servers[1].restart():
        assert sorted(values(ref.read_each(range(PARTITIONS)))) == everything(2)
    ref.server.close()


def written(server: ServerProcess, frames: Sequence[tuple[int, pa.RecordBatch]], **seals: Any) -> None:
    """Dataset ``d`` with these frames of partitions."""
    command = command_of("d", "00000000000000ab", 0)
    with flight.connect(server.location) as client:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
        writer, answers = client.do_put(descriptor, frames[0][1].schema)
        with writer:
            for partition, batch in frames:
                writer.write_with_metadata(batch, b"%d" % partition)
            totals = {"rows": sum(batch.num_rows for _, batch in frames), "frames": len(frames)}
            writer.write_metadata(json.dumps({"commit": totals}).encode())
            writer.done_writing()
            answer = json.loads(answers.read().to_pybytes())
        listed = {key: answer[key] for key in ("start", "locations", "rows", "bytes")}
        attempts = {"0": "1"}
        action(
            client, "seal", dataset="d", attempts=attempts, start=listed["start"], servers=[listed], **seals
        )


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_a_stream_that_is_cut_goes_on_in_the_object_where_it_was(
    tmp_path: Path, lane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever byte: in the middle of a partition, between two, and with dictionaries that it was not sent."""
    text = pa.array([f"word {number % 3}" for number in range(40)]).dictionary_encode()
    table = pa.table({"n": range(40), "text": text})
    frames = [(part, table.slice(start, 4).to_batches()[0]) for part in (0, 2) for start in range(0, 40, 4)]
    expected = [(part, row) for part, batch in frames for row in batch.to_pylist()]
    begun = set()
    with ServerProcess.start(offload_to=tmp_path) as server:
        written(server, frames, offload=str(tmp_path))
        reading = Reading(lane=lane)
        for size_bytes in range(2000, 16000, 1400):
            monkeypatch.setattr(read_stream, "STARTS", StartStates())
            with Proxy.to(str(server.http) if lane == "bulk" else server.location) as proxy:
                there = proxy.http if lane == "bulk" else proxy.location
                remote = RemoteServer(server.location, reading=reading, timeouts=QUICK)
                found = DatasetRef.find(remote, "d")
                locations = (there, found.portions[0].locations[-1])
                (stream,) = replace(
                    found, portions=(replace(found.portions[0], locations=locations),)
                ).portion_streams(range(3))
                proxy.cut_after(size_bytes)
                stream.open()
                proxy.refuse()
                rows, places = list[Any](), [stream.address]
                while (burst := stream.read_burst()) is not None:
                    rows += [(burst.part, row) for batch in burst.batches for row in batch.to_pylist()]
                    places.append(stream.address)
                assert rows == expected
                if len({*places}) == 2:
                    begun.add(places.index(places[-1]))
                stream.close()
                remote.close()
    assert len(begun) > 2, begun


def damaged(address: str | None, how: str) -> None:
    path = path_of(address)
    if how == "index":
        path = Path(index_of(str(path)))
    data = bytearray(path.read_bytes())
    if how == "short":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["short", "bit", "index"])
def test_a_damaged_object_is_an_error_that_names_it(
    servers: Sequence[ServerProcess], tmp_path: Path, how: str
) -> None:
    spread("d", servers, offload=str(tmp_path))
    ref = ref_of(servers[0])
    address = ref.portions[1].stored
    damaged(address, how)
    servers[1].kill()
    with pytest.raises(PartitionFailed) as failed:
        values(ref.read_each(range(PARTITIONS)))
    assert f"the object {address} of dataset 'd' is damaged" in str(failed.value)
    ref.server.close()


def test_an_object_that_is_not_there_is_a_lost_server(
    servers: Sequence[ServerProcess], tmp_path: Path
) -> None:
    spread("d", servers, offload=str(tmp_path))
    ref = ref_of(servers[0])
    path_of(index_of(ref.portions[1].stored or "")).unlink()
    servers[1].kill()
    with pytest.raises(ServerLost, match=r"the object .* is not there") as lost:
        values(ref.read_each(range(PARTITIONS)))
    assert lost.value.detail["start"] == ref.portions[1].start
    ref.server.close()


def test_large_partitions_come_in_pieces(tmp_path: Path) -> None:
    """Some of which the server has read back from its disk."""
    batch = pa.record_batch({"n": pa.array(range(1 << 17), pa.int64())})
    frames = [(part, batch) for part in range(2) for _ in range(24)]
    with ServerProcess.start(offload_to=tmp_path, memory_limit="32MiB") as server:
        written(server, frames, offload=str(tmp_path))
        ref = ref_of(server)
        server.kill()
    (stream,) = ref.portion_streams([1, 0])
    bursts = [len(burst.batches) for burst in iter(stream.read_burst, None)]
    assert sum(bursts) == 48
    assert len(bursts) > 8
    assert stream.cursor.rows == batch.num_rows * 24
    stream.close()
    ref.server.close()


def test_a_silent_server_costs_its_deadline_and_no_rows(
    servers: Sequence[ServerProcess], tmp_path: Path
) -> None:
    spread("d", servers, offload=str(tmp_path))
    ref = ref_of(servers[0])
    short = Timeouts(tries=0, connect_seconds=0.5, first_message_seconds=0.5, stall_seconds=1.0)
    remote = RemoteServer(servers[0].location, timeouts=short)
    servers[1].signal(signal.SIGSTOP)
    try:
        assert sorted(values(replace(ref, server=remote).read_each(range(PARTITIONS)))) == everything(2)
    finally:
        servers[1].signal(signal.SIGCONT)
    remote.close()
    ref.server.close()


@pytest.mark.parametrize("lane", [pytest.param("grpc", marks=pytest.mark.long), "bulk"])
def test_a_server_that_a_broken_network_hid_is_read_again_when_it_is_back(
    servers: Sequence[ServerProcess], tmp_path: Path, lane: Any
) -> None:
    """A connection that is reset is no refusal: the start is silent, not lost."""
    spread("d", servers, offload=str(tmp_path))
    with Proxy.to(servers[1].location) as grpc, Proxy.to(str(servers[1].http)) as http:
        ref = ref_of(servers[0], lane)
        portion = ref.portions[1]
        locations = (http.http, grpc.location, portion.locations[-1])
        ref = replace(ref, portions=(replace(portion, locations=locations),))
        expected = sorted(row for partition in range(PARTITIONS) for row in rows_of(1, partition))
        for proxy in (grpc, http):
            proxy.refuse()
        assert sorted(values(ref.read_each(range(PARTITIONS)))) == expected
        for proxy in (grpc, http):
            proxy.refuse(refusing=False)
        path_of(portion.stored).unlink()

        def rows_again() -> list[int]:
            try:
                return sorted(values(ref.read_each(range(PARTITIONS))))
            except ServerLost:  # gRPC waits for a while before it connects again
                return []

        eventually(rows_again, expected)
        ref.server.close()


def test_the_client_reads_by_name_what_has_lost_a_server(
    servers: Sequence[ServerProcess], tmp_path: Path
) -> None:
    spread("d", servers, offload=str(tmp_path))
    servers[1].kill()
    with ShuffleClient(servers[0].location, timeouts=QUICK) as client:
        assert sorted(client.get("d").read_all().column("n").to_pylist()) == everything(2)


def test_a_server_that_has_dropped_one_dataset_is_asked_for_the_next(
    servers: Sequence[ServerProcess], tmp_path: Path
) -> None:
    spread("dropped", servers, offload=str(tmp_path))
    spread("d", servers, offload=str(tmp_path))
    ref = ref_of(servers[0])
    dropped = DatasetRef.find(ref.server, "dropped")
    for server in servers:
        with flight.connect(server.location) as client:
            action(client, "drop", dataset="dropped")
    with pytest.raises(ServerLost):
        values(dropped.read_each(range(PARTITIONS)))
    for portion in ref.portions:
        path_of(portion.stored).unlink()
    assert sorted(values(ref.read_each(range(PARTITIONS)))) == everything(2)
    ref.server.close()
