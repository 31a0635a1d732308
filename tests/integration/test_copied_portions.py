"""A dataset over real servers, each portion with a copy on the next one: what a client finds when a server is gone."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import ServerLost, copy_name
from flight_server.protocol.wire import field
from spark_client.connection import Reading, RemoteServer, Timeouts
from spark_client.lanes import gone_locations
from spark_client.merge import DatasetRef
from tests.support.bulk import get
from tests.support.durable import action
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, command_of, everything, put, rows_of, spread

REUSE = "arrow-flight-reuse-connection://?"
QUICK = Timeouts(tries=3, backoff_seconds=0.01, backoff_limit_seconds=0.02)
IMPATIENT = Timeouts(
    tries=3,
    backoff_seconds=0.01,
    backoff_limit_seconds=0.02,
    connect_seconds=1,
    first_message_seconds=1,
    stall_seconds=1,
    why_seconds=0.1,
)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    with ServerProcess.start() as one, ServerProcess.start() as two, ServerProcess.start() as three:
        yield [one, two, three]


@pytest.fixture
def two() -> Iterator[list[ServerProcess]]:
    with ServerProcess.start() as one, ServerProcess.start() as other:
        yield [one, other]


@pytest.fixture(autouse=True)
def nothing_was_found_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone_locations, "_until", {})


def ref_of(server: ServerProcess, name: str, lane: Any = "auto", timeouts: Timeouts = QUICK) -> DatasetRef:
    return DatasetRef.find(RemoteServer(server.location, reading=Reading(lane=lane), timeouts=timeouts), name)


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.column(0).to_pylist()]


def of_server(number: int) -> list[int]:
    return [row for partition in range(PARTITIONS) for row in rows_of(number, partition)]


def test_each_endpoint_has_the_locations_of_both_servers_and_either_serves_its_ticket(
    servers: Sequence[ServerProcess],
) -> None:
    spread("both", servers, copied=True)
    for server in servers:
        with flight.connect(server.location) as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path("both"))
        assert info.total_records == len(everything(3))
        assert len(info.endpoints) == 3
        for number, endpoint in enumerate(info.endpoints):
            uris = [location.uri.decode() for location in endpoint.locations]
            holders = {servers[number].location, servers[(number + 1) % 3].location}
            assert {uri for uri in uris if uri.startswith("grpc")} == holders
            for uri in uris:
                if uri.startswith("http"):
                    found = get(uri).table()
                else:
                    with flight.connect(server.location if uri == REUSE else uri) as client:
                        found = client.do_get(endpoint.ticket).read_all()
                assert sorted(found["n"].to_pylist()) == sorted(of_server(number)), uri


def test_a_server_lists_a_dataset_once_whatever_it_has_of_it(servers: Sequence[ServerProcess]) -> None:
    spread("listed", servers, copied=True)
    with flight.connect(servers[0].location) as client:
        (info,) = client.list_flights(b"listed")
    assert info.descriptor.path == [b"listed"]


def test_a_server_that_has_copies_only_leads_to_all_rows(two: Sequence[ServerProcess]) -> None:
    first, second = two
    generation, parts = secrets.token_hex(8), [(0, [1, 2]), (1, [3])]
    answer = put(first.location, command_of("d", generation, 0), parts)
    copy = copy_name("d", answer["start"])
    backup = put(second.location, command_of(copy, generation, 0), parts)
    listed = [{key: answer[key] for key in ("start", "rows", "bytes")}]
    listed[0]["locations"] = [*answer["locations"], *backup["locations"]]
    with flight.connect(second.location) as client:
        seal = {"generation": generation, "attempts": {"0": "1"}, "start": backup["start"], "servers": listed}
        assert action(client, "seal", dataset=copy, **seal)["rows"] == 3
    first.kill()
    for lane in ("grpc", "auto"):
        assert rows(ref_of(second, "d", lane).read_each(range(PARTITIONS))) == [1, 2, 3]


def test_a_drop_and_a_renewal_are_for_the_copies_too(two: Sequence[ServerProcess]) -> None:
    generation = secrets.token_hex(8)
    spread("kept", two, generation, copied=True)
    with flight.connect(two[0].location) as client:
        assert action(client, "renew", dataset="kept", generation=generation)["lease_left_seconds"] > 50
        assert action(client, "drop", dataset="kept", generation=generation) == {
            "dropped": "kept",
            "generation": generation,
            "server_count": 2,
        }
        assert action(client, "statistics")["memory"]["used_bytes"] == 0
        with pytest.raises(KeyError, match=r"there is no dataset 'kept'|'kept' is not here"):
            action(client, "renew", dataset="kept", generation=generation)
    with flight.connect(two[1].location) as client:
        # As by any Flight client.
        info = client.get_flight_info(flight.FlightDescriptor.for_path("kept"))
        list(client.do_action(flight.Action("CancelFlightInfo", field(1, info.serialize()))))
        assert action(client, "statistics")["memory"]["used_bytes"] == 0


def test_a_copy_is_sealed_with_the_rows_of_its_portion_only(two: Sequence[ServerProcess]) -> None:
    generation = secrets.token_hex(8)
    answer = put(two[0].location, command_of("d", generation, 0), [(0, [1, 2])])
    copy = copy_name("d", answer["start"])
    backup = put(two[1].location, command_of(copy, generation, 0), [(0, [1])])
    mine = {key: answer[key] for key in ("start", "locations", "rows", "bytes")}
    other = {key: backup[key] for key in ("start", "locations", "rows", "bytes")}
    seal = {"dataset": copy, "generation": generation, "attempts": {"0": "1"}, "start": backup["start"]}
    with flight.connect(two[1].location) as client:
        with pytest.raises(pa.ArrowInvalid, match="has 2 rows, and it has 1"):
            action(client, "seal", **seal, servers=[mine])
        with pytest.raises(pa.ArrowInvalid, match=r"the server of this copy, whose start is .* is not in it"):
            action(client, "seal", **seal, servers=[other])


def test_the_name_of_a_copy_is_for_copies(servers: Sequence[ServerProcess]) -> None:
    name = copy_name("mine", "0" * 16)
    with (
        flight.connect(servers[0].location) as client,
        pytest.raises(pa.ArrowInvalid, match="'~' is in the names of copies"),
    ):
        action(client, "create", dataset=name, kind="shuffle", partitions=1)


@pytest.mark.parametrize("lane", ["grpc", "bulk", "auto"])
def test_one_of_two_servers_is_enough(two: Sequence[ServerProcess], lane: str) -> None:
    spread("d", two, copied=True)
    ref = ref_of(two[1], "d", lane)
    two[0].kill()
    for _ in range(2):
        assert sorted(rows(ref.read_each(range(PARTITIONS)))) == everything(2)
    two[1].kill()
    with pytest.raises(ServerLost):
        rows(ref.read_each(range(PARTITIONS)))


def two_copies(
    two: Sequence[ServerProcess], name: str, frames: int, frame_rows: int, lane: str
) -> tuple[str, Any]:
    """A partition, whose copy has other bytes: where the lane reaches the first server, and the locations of both
    without that one.
    """
    generation = secrets.token_hex(8)
    parts = [(0, range(number * frame_rows, (number + 1) * frame_rows)) for number in range(frames)]
    answer = put(two[0].location, command_of(name, generation, 0), parts)
    copy = copy_name(name, answer["start"])
    backup = put(two[1].location, command_of(copy, generation, 0), parts, "zstd")
    listed = [{key: answer[key] for key in ("start", "locations", "rows", "bytes")}]
    for server, dataset, start in ((two[0], name, answer["start"]), (two[1], copy, backup["start"])):
        with flight.connect(server.location) as client:
            seal = {"dataset": dataset, "generation": generation, "attempts": {"0": "1"}, "start": start}
            action(client, "seal", **seal, servers=listed)
    kind = "http" if lane == "bulk" else "grpc"
    (location,) = (each for each in answer["locations"] if each.startswith(kind))
    return location, [*backup["locations"], *(each for each in answer["locations"] if each != location)]


def through(proxy: Proxy, ref: DatasetRef, others: Sequence[str]) -> DatasetRef:
    """Both have a gRPC location, by which a stream sees that there are two."""
    there = proxy.http if ref.server.reading.lane == "bulk" else proxy.location
    return replace(ref, portions=(replace(ref.portions[0], locations=(there, *others)),))


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_a_stream_that_is_cut_goes_on_at_the_copy_in_the_middle_of_a_partition(
    two: Sequence[ServerProcess], lane: str
) -> None:
    location, others = two_copies(two, "long", 20, 1000, lane)
    for cut_bytes in (20_000, 60_000, 120_000):
        with Proxy.to(location) as proxy:
            proxy.cut_after(cut_bytes)
            assert rows(through(proxy, ref_of(two[1], "long", lane), others).read(0)) == [*range(20_000)]
            assert proxy.cuts == 1


def test_a_stream_whose_server_falls_silent_goes_on_at_the_copy(two: Sequence[ServerProcess]) -> None:
    location, others = two_copies(two, "large", 64, 1 << 16, "bulk")
    with Proxy.to(location) as proxy:
        ref = through(proxy, ref_of(two[1], "large", "bulk", IMPATIENT), others)
        found = ref.read(0)
        count = next(found).num_rows
        proxy.hold()
        count += sum(batch.num_rows for batch in found)
        assert count == 64 << 16
        assert gone_locations.is_gone(proxy.http)
        proxy.release()


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_a_silent_server_costs_one_time_out_and_later_streams_begin_elsewhere(
    two: Sequence[ServerProcess], lane: str
) -> None:
    spread("d", two, copied=True)
    ref = ref_of(two[1], "d", lane, IMPATIENT)
    os.kill(two[0].pid, signal.SIGSTOP)
    try:
        assert sorted(rows(ref.read_each(range(PARTITIONS)))) == everything(2)
        streams = ref.portion_streams(range(PARTITIONS))
        for stream in streams:
            stream.open()
            assert stream.resumes == 0
            assert stream.address.location in (two[1].location, two[1].http)
            stream.close()
    finally:
        os.kill(two[0].pid, signal.SIGCONT)
