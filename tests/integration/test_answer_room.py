"""Large answers that are no frames: FlightInfos and echoes, at a real server with little memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest, Kind, dump_json
from tests.support import raw_put
from tests.support.bulk import get
from tests.support.raw_flight import RawFlight, field, flight_data, ipc_messages, path, put_messages
from tests.support.raw_put import RawPut
from tests.support.server_process import ServerProcess

PARTITIONS = 15_000
MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(memory_limit="32MiB", stall_seconds=1) as server:
        yield server


def peak_bytes(server: ServerProcess) -> int:
    with RawFlight(server.location) as raw:
        accounts = raw.action("statistics", {"limit": 1})["memory"]["accounts"]
    return int(accounts["answers"]["peak_bytes"])


def create_wide(server: ServerProcess) -> None:
    with RawFlight(server.location) as raw:
        raw.action("create", CreateRequest("wide", Kind.SHUFFLE, partitions=PARTITIONS, producers=1).encode())


def test_large_flight_infos_are_made_one_at_a_time_and_counted(server: ServerProcess) -> None:
    create_wide(server)

    def ask(rpc: str) -> int:
        with RawFlight(server.location) as raw:
            (answer,) = raw.ask(rpc, path("wide"))
            return len(answer)

    with ThreadPoolExecutor(6) as threads:
        sizes = list(threads.map(ask, ["GetFlightInfo"] * 6))
    assert max(sizes) > 2 * MIB
    assert 2 * max(sizes) <= peak_bytes(server) <= 2.5 * max(sizes)


def test_a_client_that_does_not_take_its_flight_info_is_ended_when_others_wait(server: ServerProcess) -> None:
    create_wide(server)
    channel = grpc.insecure_channel(
        server.location.removeprefix("grpc://"),
        options=[("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)],
    )
    with channel, RawFlight(server.location) as raw:
        stalled = channel.unary_stream("/arrow.flight.protocol.FlightService/GetFlightInfo")(
            path("wide"), timeout=60
        )
        while peak_bytes(server) == 0:
            pass
        (answer,) = raw.ask("GetFlightInfo", path("wide"))
        assert len(answer) > 2 * MIB
        assert raw.action("statistics")["readers_ended_as_too_slow"] == 1
        stalled.cancel()


DATASETS = 150


def create_many(server: ServerProcess) -> None:
    with RawFlight(server.location) as raw:
        for number in range(DATASETS):
            raw.action("create", CreateRequest(f"{'d' * 190}{number:03}").encode())


@pytest.mark.parametrize("report", ["statistics", "datasets"])
def test_large_reports_over_http_are_counted_and_whole(server: ServerProcess, report: str) -> None:
    create_many(server)

    def ask(_: int) -> int:
        return len(get(f"{server.http}/v1/{report}").json()["datasets"])

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(ask, range(6))) == [DATASETS] * 6
    # 2 MiB are the account's limit, or one answer.
    assert 64 << 10 < peak_bytes(server) <= 5 * MIB


@pytest.mark.long
def test_a_client_that_does_not_take_its_statistics_is_ended_when_others_wait(server: ServerProcess) -> None:
    create_many(server)
    with RawFlight(server.location, ahead_bytes=64 << 10) as silent, RawFlight(server.location) as raw:
        calls = [silent.call("DoAction", field(1, b"statistics")) for _ in range(20)]
        while peak_bytes(server) == 0:
            pass
        assert len(raw.action("statistics")["datasets"]) == DATASETS
        assert raw.action("statistics", {"limit": 1})["readers_ended_as_too_slow"] >= 1
        assert peak_bytes(server) <= 5 * MIB
        for call in calls:
            call.cancel()


def test_the_answers_of_plan_are_counted(server: ServerProcess) -> None:
    frames = 3000  # their plan is above what is not counted
    with RawFlight(server.location) as raw:
        raw_put.put(f"{server.http}/v1/put", put_messages(path("d"), [pa.record_batch({"n": [1]})] * frames))
        plan = {"dataset": "d", "target_bytes": 1}
        pieces = raw.action("plan", plan)["pieces"]
        assert [piece[:3] for piece in pieces] == [[0, number, number + 1] for number in range(frames)]
        assert peak_bytes(server) >= 2 * len(dump_json({"pieces": pieces}))


def echoing(metadata: Iterator[bytes]) -> tuple[bytes, list[bytes]]:
    """The first message of a put, and one for each app_metadata."""
    batch = pa.record_batch({"n": [1]})
    schema, message = ipc_messages(batch.schema, [batch])
    first = flight_data(schema.header, descriptor=path("d"))
    return first, [flight_data(message.header, message.body, metadata=each) for each in metadata]


def test_a_client_that_reads_late_gets_thousands_of_small_echoes(server: ServerProcess) -> None:
    wanted = [b"%d" % number for number in range(1500)]
    first, messages = echoing(iter(wanted))
    with RawFlight(server.location) as raw:
        assert [each for each in raw.put([first, *messages]) if each] == wanted


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_large_echoes_arrive_whole_and_are_counted(server: ServerProcess, lane: str) -> None:
    wanted = [bytes([number]) * MIB for number in range(4)]
    first, messages = echoing(iter(wanted))
    if lane == "grpc":
        with RawFlight(server.location) as raw:
            found = raw.put([first, *messages])
    else:
        found = []
        with RawPut(f"{server.http}/v1/put") as put:
            put.send(first)
            for message in messages:
                put.send(message)
                found.append(put.answer()[1])
            put.finish()
    assert [each for each in found if each] == wanted
    assert 2 * MIB <= peak_bytes(server) <= 6 * MIB


def test_puts_that_read_none_of_their_large_echoes_are_ended_when_another_waits(
    server: ServerProcess,
) -> None:
    first, messages = echoing(iter([b"x" * (3 * MIB)] * 3))
    with RawFlight(server.location, ahead_bytes=64 << 10) as silent, RawFlight(server.location) as raw:
        call = silent.call("DoPut", iter([first, *messages]))
        while peak_bytes(server) == 0:
            pass
        mine = [message.replace(path("d"), path("e")) for message in [first, *messages]]
        assert len([each for each in raw.put(mine) if each]) == 3
        assert raw.action("statistics")["readers_ended_as_too_slow"] >= 1
        call.cancel()
