"""The client's reads of a dataset that is spread over real servers."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from flight_server.protocol import SealRequest, ServerLost, ServerPortion
from spark_client import ShuffleClient
from spark_client.connection import Reading, RemoteServer, Timeouts
from spark_client.lanes import cursors
from spark_client.lanes.read_stream import StreamStalled
from spark_client.merge import DatasetRef, Portion
from spark_client.servers.partition_sizes import filled_bits
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, everything, rows_of, spread, values

pytestmark = pytest.mark.usefixtures("hasty")

QUICK = Timeouts(tries=2)


def ref_of(server: ServerProcess, lane: Any = "auto") -> DatasetRef:
    remote = RemoteServer(server.location, reading=Reading(lane=lane), timeouts=QUICK)
    return DatasetRef.find(remote, "d")


@pytest.mark.parametrize(("lane", "asked"), [("grpc", 0), ("bulk", 1)])
def test_every_partition_is_read_from_all_servers_whichever_was_asked(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]], lane: str, asked: int
) -> None:
    ref = pickle.loads(pickle.dumps(ref_of(servers[asked], lane)))
    assert [portion.start for portion in ref.portions] == [each["start"] for each in listed]
    for partition in range(PARTITIONS):
        assert sorted(values(ref.read(partition))) == sorted(
            row for server in range(3) for row in rows_of(server, partition)
        )
    ref.server.close()


@pytest.mark.parametrize("lane", ["grpc", "auto"])
def test_a_server_that_is_gone_or_was_started_again_is_named_with_its_start(lane: str) -> None:
    with ServerProcess.start() as one, ServerProcess.start() as two:
        listed = spread("d", [one, two])
        ref = ref_of(one, lane)
        two.kill()
        with pytest.raises(ServerLost, match="'d'") as gone:
            values(ref.read_each(range(PARTITIONS)))
        assert (gone.value.detail["dataset"], gone.value.detail["start"]) == ("d", listed[1]["start"])
        # Which of its addresses are named depends on the lane.
        assert gone.value.detail["server"].split(", ")[-1] in listed[1]["locations"]
        with two.restart(), pytest.raises(ServerLost) as other:
            values(ref.read_each(range(PARTITIONS)))
        assert other.value.detail["start"] == listed[1]["start"]
        ref.server.close()


def test_a_server_whose_ports_refuse_is_lost_without_waiting_for_its_return() -> None:
    with ServerProcess.start() as one, ServerProcess.start() as two:
        spread("d", [one, two])
        patient = RemoteServer(one.location, timeouts=replace(QUICK, tries=1_000_000))
        ref = DatasetRef.find(patient, "d")
        two.kill()
        with pytest.raises(ServerLost):
            values(ref.read_each(range(PARTITIONS)))
        patient.close()


@pytest.mark.parametrize("lane", [pytest.param("grpc", marks=pytest.mark.long), "bulk"])
def test_a_silent_server_costs_a_process_one_deadline_until_it_answers_again(lane: Any) -> None:
    timeouts = replace(QUICK, first_message_seconds=0.5)
    with ServerProcess.start() as one, ServerProcess.start() as two:
        spread("d", [one, two])
        patient = RemoteServer(one.location, reading=Reading(lane=lane), timeouts=timeouts)
        ref = DatasetRef.find(patient, "d")
        os.kill(two.pid, signal.SIGSTOP)
        with pytest.raises(StreamStalled):
            values(ref.read_each(range(PARTITIONS)))
        slow = replace(
            ref, server=RemoteServer(one.location, timeouts=replace(timeouts, first_message_seconds=1000))
        )
        with pytest.raises(ServerLost, match="deadline"):
            values(slow.read_each(range(PARTITIONS)))
        os.kill(two.pid, signal.SIGCONT)
        assert sorted(values(slow.read_each(range(PARTITIONS)))) == everything(2)
        for server in (patient, slow.server):
            server.close()


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_a_stream_that_is_cut_goes_on_at_the_partition_and_frame_where_it_was(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]], lane: str
) -> None:
    ref = ref_of(servers[0], lane)
    assert servers[1].http is not None
    with Proxy.to(servers[1].http if lane == "bulk" else servers[1].location) as proxy:
        there = proxy.http if lane == "bulk" else proxy.location
        ref = replace(ref, portions=(replace(ref.portions[1], locations=(there,)),))
        expected = [row for partition in range(PARTITIONS) for row in rows_of(1, partition)]
        for size_bytes in range(300, 5000, 600):
            proxy.cut_after(size_bytes)
            assert values(ref.read_each(range(PARTITIONS))) == expected
        assert proxy.cuts > 2
    ref.server.close()


def test_one_stream_asks_for_many_partitions_in_several_requests(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "PARTITIONS_AT_ONCE", 2)
    ref = ref_of(servers[0])
    assert sorted(values(ref.read_each(range(PARTITIONS)))) == everything(3)
    ref.server.close()


def test_the_client_reads_it_by_its_name_from_any_server(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]]
) -> None:
    with ShuffleClient(servers[1].location) as client:
        assert sorted(client.get("d").read_all().column("n").to_pylist()) == everything(3)
        (found,) = (each for each in client.datasets() if each.name == "d")
        assert (found.partitions, found.rows) == (PARTITIONS, len(everything(3)))


def test_the_answers_to_the_seals_tell_which_server_has_rows_of_a_partition(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]]
) -> None:
    found = ref_of(servers[0])
    answers = []
    for number, server in enumerate(servers):
        remote = RemoteServer(server.location)
        shared = tuple(ServerPortion.of(each) for each in listed)
        request = SealRequest(
            "d", found.generation, {number: "1"}, start=listed[number]["start"], servers=shared
        )
        answers.append(remote.action("seal", request.encode()))
        remote.close()
    portions = [Portion(tuple(each["read_locations"]), filled_bits(each), each["start"]) for each in answers]
    ref = replace(found, portions=tuple(portions))
    assert [portion.start for portion in ref.portions] == [each["start"] for each in listed]
    assert [ref.portions[1].has_rows(part) for part in range(PARTITIONS)] == [
        bool(rows_of(1, part)) for part in range(PARTITIONS)
    ]
    assert len(ref.portion_streams([2])) == 2
    assert sorted(values(ref.read_each(range(PARTITIONS)))) == everything(3)
    ref.server.close()
