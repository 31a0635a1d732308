"""``bench``: bounded, leaves nothing, and advises what it has measured."""

from __future__ import annotations

from typing import Literal

import pytest

from spark_client import ShuffleClient
from spark_client.commands import run
from spark_client.commands.bench import Measured, settings
from tests.support.commands import Command
from tests.support.server_process import ServerProcess

SESSION = "spark.flight.shuffle"


def test_both_lanes_are_measured_both_ways_and_nothing_is_left(command: Command) -> None:
    said = command("bench", "--seconds", "0.4", "--mib", "8", "--json")
    assert said.code == 0
    (found,) = said.lines
    ways = [(e["lane"], e["direction"], e["streams"]) for e in found["measured"]]
    assert ways == [(lane, way, n) for lane in ("bulk", "grpc") for n in (1, 4) for way in ("put", "get")]
    assert all(0 < e["size_bytes"] <= 8 << 20 for e in found["measured"])
    assert found["round_trip_seconds"] > 0
    assert {*found["settings"]} == {f"{SESSION}.lane", f"{SESSION}.compression"}
    people = command("bench", "--seconds", "0.1", "--mib", "4").out
    assert f"--conf {SESSION}.lane=" in people
    with ShuffleClient(command.location) as client:
        assert client.datasets() == []


def test_a_server_without_http_is_measured_by_grpc_alone(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with ServerProcess.start(http_port=-1, memory_limit="64MiB") as server:
        assert run(["bench", "-s", server.location, "--seconds", "0.1", "--mib", "4"]) == 0
    assert b"lane=grpc    # the HTTP port is not reached" in capfdbinary.readouterr().out


@pytest.mark.parametrize(
    ("bulk", "grpc", "lane", "codec"),
    [
        (1000, 900, "auto", "auto"),
        (900, 1000, "auto", "auto"),
        (700, 1000, "grpc", "auto"),
        (100, 100, "auto", "lz4"),
        (20, 20, "auto", "zstd"),
    ],
)
def test_settings_follow_from_what_was_measured(bulk: int, grpc: int, lane: str, codec: str) -> None:
    ways: tuple[Literal["put", "get"], ...] = ("put", "get")
    found = [
        Measured(name, way, 1, rate << 20, 1.0)
        for name, rate in (("bulk", bulk), ("grpc", grpc))
        for way in ways
    ]
    advised = settings(found)
    assert advised[f"{SESSION}.lane"][0] == lane
    assert advised[f"{SESSION}.compression"][0] == codec
