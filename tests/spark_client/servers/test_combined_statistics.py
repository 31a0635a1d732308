"""Statistics of several servers: sums of what each says, and each server once."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flight_server.protocol import NotFound
from spark_client import ShuffleClient
from spark_client.cli import main
from spark_client.connection import Unreachable
from tests.support.durable import table
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, everything, spread

WORKERS = (sys.executable, "-m", "flight_server")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    started = [ServerProcess.start(memory_limit="64MiB") for _ in range(3)]
    yield started
    for server in started:
        server.close()


@pytest.fixture
def client(servers: list[ServerProcess]) -> Iterator[ShuffleClient]:
    with ShuffleClient(",".join(each.location for each in servers)) as found:
        yield found
        for each in {info.name for info in found.datasets()}:
            for server in servers:
                with ShuffleClient(server.location) as one:
                    if any(info.name == each for info in one.datasets()):
                        one.drop(each)


def alone(server: ServerProcess, name: str | None = None) -> dict[str, Any]:
    with ShuffleClient(server.location) as one:
        return one.statistics(name)


def test_a_server_that_is_asked_at_two_locations_counts_once(servers: list[ServerProcess]) -> None:
    spread("twice", servers[:2])
    apart = alone(servers[0], "twice")["datasets"]["twice"]
    locations = servers[0].location, servers[0].location.replace("127.0.0.1", "localhost")
    with ShuffleClient(",".join(locations)) as one:
        part = one.statistics("twice")["datasets"]["twice"]
        assert (part["rows"], part["bytes"], part["whole"]) == (apart["rows"], apart["bytes"], apart["whole"])
        assert part["whole"]["rows"] == len(everything(2))
        assert one.statistics()["memory"]["limit_bytes"] == 64 << 20
        one.drop("twice")


def test_numbers_are_sums_and_a_spread_dataset_is_one(
    client: ShuffleClient, servers: list[ServerProcess]
) -> None:
    spread("s", servers)
    client.put("alone", table(10))
    apart = [alone(server) for server in servers]
    found = client.statistics()
    assert found["datasets"].keys() == {"s", "alone"}
    assert found["count"] == 2
    assert found["frames_in"] == sum(each["frames_in"] for each in apart)
    assert found["memory"]["limit_bytes"] == 3 * (64 << 20)
    assert found["memory"]["used_bytes"] == sum(each["memory"]["used_bytes"] for each in apart) > 0
    assert found["draining"] is False
    whole = found["datasets"]["s"]
    assert (whole["rows"], whole["partition_count"], whole["sealed"]) == (
        len(everything(3)),
        PARTITIONS,
        True,
    )
    assert whole["bytes"] == sum(each["datasets"]["s"]["bytes"] for each in apart)
    assert found["datasets"]["alone"]["rows"] == 10
    assert {each["whole"] for each in found["datasets"].values()} == {None}
    assert {each["datasets"]["s"]["whole"]["rows"] for each in apart} == {whole["rows"]}


def test_of_one_dataset_the_servers_are_those_that_hold_it(
    client: ShuffleClient, servers: list[ServerProcess]
) -> None:
    spread("s", servers[:2])
    found = client.statistics("s")
    assert [each["location"] for each in found["servers"]] == [each.location for each in servers[:2]]
    partitions = found["datasets"]["s"]["partitions"]
    assert sum(each["rows"] for each in partitions.values()) == len(everything(2))
    assert {each["state"] for each in partitions.values()} == {"sealed"}
    portions = found["datasets"]["s"]["portions"]
    assert found["datasets"]["s"]["server_count"] == len(portions) == 2
    assert sum(each["rows"] for each in portions) == len(everything(2))
    assert [each["locations"][0] for each in portions] == [each.location for each in servers[:2]]
    with pytest.raises(NotFound):
        client.statistics("none")


def test_of_two_generations_the_later_one_counts(client: ShuffleClient, servers: list[ServerProcess]) -> None:
    spread("s", servers[2:], "ab" * 7 + "01")
    spread("s", servers[:2], "ab" * 7 + "02")
    found = client.statistics()["datasets"]["s"]
    assert (found["generation"], found["rows"]) == ("ab" * 7 + "02", len(everything(2)))


def test_each_server_is_listed_and_one_that_is_lost_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers = [ServerProcess.start(memory_limit="64MiB") for _ in range(3)]
    client = ShuffleClient(",".join(each.location for each in servers))
    listed = client.statistics()["servers"]
    assert [each["location"] for each in listed] == [each.location for each in servers]
    assert len({each["start"] for each in listed}) == 3
    assert all(each["gone"] is None for each in listed)
    assert all(each["memory_limit_bytes"] == 64 << 20 for each in listed)
    main(["servers", "-s", client.location])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [each.location for each in servers]
    assert all(re.search(r"start [0-9a-f]{16}  memory .* of 64.0 MiB, disk 0 B of ", line) for line in lines)
    spread("s", servers)
    servers[1].kill()
    part = client.statistics("s")["datasets"]["s"]
    assert part["rows"] < part["whole"]["rows"] == len(everything(3))
    assert {each["start"] for each in part["portions"]} - {*part["starts"]} == {listed[1]["start"]}
    listed = client.statistics()["servers"]
    assert [each["location"] for each in listed if each["gone"]] == [servers[1].location]
    with pytest.raises(SystemExit) as ended:
        main(["servers", "-s", client.location])
    assert ended.value.code == 1
    assert f"{servers[1].location}  start unknown  gone: " in capsys.readouterr().out
    client.close()
    for server in servers:
        server.close()


def test_where_no_server_answers_the_error_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    location = "grpc://127.0.0.1:1,grpc://127.0.0.1:2"
    with ShuffleClient(location) as client, pytest.raises(Unreachable):
        client.statistics()
    with pytest.raises(SystemExit) as ended:
        main(["servers", "-s", location])
    assert ended.value.code == 3
    assert "no server answers" in capsys.readouterr().err


def test_of_one_worker_the_others_are_listed_too(capsys: pytest.CaptureFixture[str]) -> None:
    with ServerProcess.start(workers=3, memory_limit="192MiB", command=WORKERS) as supervisor:
        first, second, _ = locations = supervisor.ready["locations"]
        main(["servers", "-s", first])
        assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {*locations}
        with ShuffleClient(f"{first},{second}") as client:
            listed = client.statistics()["servers"]
        assert [each["location"] for each in listed] == locations
        assert json.dumps(listed)
        for name, asked in (("one", first), ("two", f"{first},{second}")):
            with ShuffleClient(asked) as client:
                client.put(name, table(10))
                assert len(client.statistics(name)["servers"]) == 1  # only those that hold it
