"""Large answers that are no frames: FlightInfos and echoes, at a real server with little memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from flight_server.protocol import CreateRequest, Kind
from tests.support.raw_flight import RawFlight, path
from tests.support.server_process import ServerProcess

PARTITIONS = 30_000
MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(memory_limit="32MiB", stall_seconds=1) as server:
        yield server


def peak_bytes(server: ServerProcess) -> int:
    with RawFlight(server.location) as raw:
        accounts = raw.action("statistics")["memory"]["accounts"]
    return int(accounts["sends"]["accounts"]["answers"]["peak_bytes"])


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
    assert max(sizes) > 5 * MIB
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
        assert len(answer) > 5 * MIB
        assert raw.action("statistics")["readers_ended_as_too_slow"] == 1
        stalled.cancel()
