"""A dataset over three real servers: what each says of it, and a stock client that reads it whole."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_client.merge import Portion
from spark_client.servers.partition_sizes import filled_bits
from tests.support.bulk import get
from tests.support.durable import action
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, command_of, everything, put, rows_of, spread

REUSE = "arrow-flight-reuse-connection://?"


def info_of(server: ServerProcess, *path: str) -> flight.FlightInfo:
    with flight.connect(server.location) as client:
        return client.get_flight_info(flight.FlightDescriptor.for_path(*path))


def read(server: ServerProcess, info: flight.FlightInfo) -> list[int]:
    """All rows, from the first location of each endpoint, as a client does that knows nothing of this service."""
    found: list[int] = []
    for endpoint in info.endpoints:
        uri = endpoint.locations[0].uri.decode()
        with flight.connect(server.location if uri == REUSE else uri) as client:
            found += client.do_get(endpoint.ticket).read_all().to_pydict()["n"]
    return sorted(found)


def test_any_server_leads_a_stock_client_to_all_rows(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]]
) -> None:
    for server in servers:
        info = info_of(server, "d")
        assert len(info.endpoints) == 3
        assert read(server, info) == everything(3)
        assert info.total_records == len(everything(3))
        assert info.total_bytes == sum(each["bytes"] for each in listed)


def test_the_locations_of_an_endpoint_are_those_of_its_server_on_both_lanes(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]]
) -> None:
    mine, other, _ = info_of(servers[0], "d").endpoints
    assert mine.locations[0].uri.decode() == REUSE
    assert other.locations[0].uri.decode() == servers[1].location
    bulk = other.locations[1].uri.decode()
    assert bulk.startswith(f"{servers[1].http}/v1/datasets/d?")
    expected = sorted(row for part in range(PARTITIONS) for row in rows_of(1, part))
    assert sorted(get(bulk).table().to_pydict()["n"]) == expected


def test_one_partition_has_an_endpoint_for_each_server_and_its_totals_are_not_known(
    servers: Sequence[ServerProcess], listed: list[dict[str, Any]]
) -> None:
    info = info_of(servers[1], "d", "2")
    assert (len(info.endpoints), info.total_records) == (3, -1)
    assert read(servers[1], info) == sorted(row for server in range(3) for row in rows_of(server, 2))


def test_two_puts_that_create_it_write_one_dataset_and_another_generation_is_refused(
    servers: Sequence[ServerProcess],
) -> None:
    location, generation = servers[0].location, secrets.token_hex(8)
    for producer in (0, 1):
        put(location, command_of("twice", generation, producer), [(0, [producer])])
    with flight.connect(location) as client:
        sealed = action(client, "seal", dataset="twice", generation=generation, attempts={"0": "1", "1": "1"})
    assert sealed["rows"] == 2
    for other, refused in (
        (command_of("twice", secrets.token_hex(8), 2), "generation"),
        (command_of("twice", generation, 2, create={"partitions": 7}), "another partitions"),
        (command_of("thrice", "none", 2), "16 hexadecimal digits"),
        (command_of("thrice", generation, 2, create={}), "needs 'partitions'"),
    ):
        with pytest.raises((pa.ArrowInvalid, KeyError), match=refused):
            put(location, other, [(0, [1])])


def test_a_dataset_is_dropped_with_its_last_attempt_that_fails(servers: Sequence[ServerProcess]) -> None:
    generation, location = secrets.token_hex(8), servers[0].location
    names = ("never", "once")
    put(location, command_of("once", generation, 0), [(0, [1])])
    with flight.connect(location) as client:
        for name in names:
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command_of(name, generation, 7)))
            writer, _ = client.do_put(descriptor, pa.schema([("n", pa.int64())]))
            writer.write_with_metadata(pa.record_batch({"n": [1]}), b"0")
            with pytest.raises(pa.ArrowInvalid, match="without its commit message"):
                writer.close()
        listed = {info.descriptor.path[0].decode() for info in client.list_flights()}
        assert listed & {*names} == {"once"}
        sealed = action(client, "seal", dataset="once", generation=generation, attempts={"0": "1"})
        assert sealed["rows"] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start": "feed"}, "this one's is"),
        ({"servers": []}, "1 to 1000 servers"),
        ({"servers": [{"start": "a", "locations": ["grpc://a:1"], "rows": 0, "bytes": 0}]}, "is not in it"),
        ({"servers": [{"start": "a", "locations": ["file:///x"], "rows": 0, "bytes": 0}]}, "'locations' are"),
        (
            {"servers": [{"start": "a", "locations": ["grpc://ä:1"], "rows": 0, "bytes": 0}]},
            "'locations' are",
        ),
        ({"servers": [{"start": "a", "locations": ["grpc://a:1"], "rows": 0}]}, "needs 'locations'"),
        ({"rows": 2}, "has 2 rows, and it has 1"),
        ({"twice": True}, "a start comes twice"),
    ],
)
def test_a_seal_that_lists_servers_wrongly_changes_nothing(
    servers: Sequence[ServerProcess], change: dict[str, Any], said: str
) -> None:
    name, generation = f"wrong/x{secrets.token_hex(4)}", secrets.token_hex(8)
    answer = put(servers[0].location, command_of(name, generation, 0), [(0, [1])])
    mine = {key: answer[key] for key in ("start", "locations", "rows", "bytes")}
    wrong: dict[str, Any] = {
        "servers": [mine | {"rows": change.get("rows", 1)}] * (2 if "twice" in change else 1)
    }
    wrong |= {key: value for key, value in change.items() if key in ("start", "servers")}
    seal: dict[str, Any] = {"dataset": name, "generation": generation, "attempts": {"0": "1"}}
    with flight.connect(servers[0].location) as client:
        with pytest.raises((pa.ArrowInvalid, KeyError), match=said):
            action(client, "seal", **seal, **wrong)
        facts = json.loads(client.get_flight_info(flight.FlightDescriptor.for_path(name)).app_metadata)
        assert facts["sealed"] is False
        for _ in range(2):  # repeating is harmless
            assert (
                action(client, "seal", **seal, start=mine["start"], servers=[mine])["start"] == mine["start"]
            )
        with pytest.raises(pa.ArrowInvalid, match="sealed with another one"):
            action(client, "seal", **seal, servers=[mine, mine | {"start": "other"}])


def test_a_late_put_begins_no_run_that_was_dropped(servers: Sequence[ServerProcess]) -> None:
    name, token = f"late/x{secrets.token_hex(4)}", secrets.token_hex(7)
    location = servers[0].location
    put(location, command_of(name, token + "02", 0), [(0, [1])])
    with flight.connect(location) as client:
        action(client, "drop", dataset=name, generation=token + "02")
        with pytest.raises(KeyError):  # this server never had it
            action(client, "drop", dataset=f"{name}/b", generation=token + "02")
        for late, run in [(name, "02"), (name, "01"), (f"{name}/b", "02")]:
            with pytest.raises(pa.ArrowException, match="the driver has dropped generation"):
                put(location, command_of(late, token + run, 1), [(0, [1])])
        assert not list(client.list_flights(name.encode()))
        for later in (token + "03", secrets.token_hex(8)):
            put(location, command_of(name, later, 0), [(0, [1])])
            action(client, "drop", dataset=name, generation=later)


def test_of_what_was_dropped_its_readers_are_not_told_that_the_server_was_restarted(
    servers: Sequence[ServerProcess],
) -> None:
    """The generation is none that this server draws, but the start in the ticket is its own."""
    spread("dropped", servers[:1])
    (endpoint,) = info_of(servers[0], "dropped").endpoints
    with flight.connect(servers[0].location) as client:
        action(client, "drop", dataset="dropped")
        with pytest.raises(KeyError, match="was dropped by the client"):
            client.do_get(endpoint.ticket).read_all()
        refused = json.loads(get(endpoint.locations[-1].uri.decode()).body)
        assert (refused["error"], refused["restarted"]) == ("not_found", False)
        spread("dropped", servers[:1])
        with pytest.raises(
            KeyError, match="an earlier generation of dataset 'dropped', which was dropped by"
        ):
            client.do_get(endpoint.ticket).read_all()


def test_what_one_server_of_a_list_of_one_holds_is_relayed(servers: Sequence[ServerProcess]) -> None:
    """Its endpoint is for several partitions, and so has totals without a checksum."""
    spread("relayed", servers[:1])
    with (
        ServerProcess.start(source_flight=servers[0].location) as relay,
        flight.connect(relay.location) as client,
    ):
        source = {"flight": servers[0].location, "dataset": "relayed"}
        action(client, "create", dataset="relay", kind="source", source=source)
        assert read(relay, info_of(relay, "relay")) == everything(1)


def test_a_seal_names_the_largest_partitions_only_if_it_is_asked_to(servers: Sequence[ServerProcess]) -> None:
    name, generation = f"largest/x{secrets.token_hex(4)}", secrets.token_hex(8)
    parts = [(partition, [*range(100 * (1 + partition % 4))]) for partition in range(PARTITIONS)]
    put(servers[0].location, command_of(name, generation, 0), parts)
    with flight.connect(servers[0].location) as client:
        seal: dict[str, Any] = {"dataset": name, "generation": generation, "attempts": {"0": "1"}}
        whole, some = action(client, "seal", **seal), action(client, "seal", **seal, largest=2)
        sizes = whole["partition_bytes"]
        assert len(sizes) == PARTITIONS
        assert "rest_bytes" not in whole
        named = some["partition_bytes"]
        assert named.keys() == {"2", "3"}
        assert named.items() <= sizes.items()
        assert some["rest_bytes"] == sum(sizes.values()) - sum(named.values())
        with pytest.raises(pa.ArrowInvalid, match="largest"):
            action(client, "seal", **seal, largest=0)
    assert Portion((), filled_bits(whole)).has_rows(PARTITIONS) is False
    assert Portion((), filled_bits(some)).has_rows(0) is True
