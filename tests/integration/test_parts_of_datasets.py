"""What a server answers about a dataset of which it holds a part only: never the part as if it were the whole."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import NotFound
from flight_server.protocol.wire import field
from spark_client import ShuffleClient
from tests.support.bulk import Cut, RawGet, get
from tests.support.durable import action
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, command_of, everything, put, rows_of, spread

ASK = "ask get_flight_info"


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    with ServerProcess.start() as one, ServerProcess.start() as two:
        yield [one, two]


@pytest.fixture(scope="module")
def generation(servers: Sequence[ServerProcess]) -> str:
    made = secrets.token_hex(8)
    spread("ex", servers, made)
    return made


def mine(number: int) -> list[int]:
    """What the server of that number holds."""
    return sorted(row for partition in range(PARTITIONS) for row in rows_of(number, partition))


@pytest.mark.parametrize(
    "asked",
    [
        b"ex",
        b"ex/0",
        {"partition": 0},
        {"partition": 0, "generation": "the present one"},
        {"partition": 0, "from": 0, "until": 1},
        {"partition": 0, "reader": "task"},
        {"partitions": "all"},
        {"partitions": [0, 1], "generation": "the present one"},
    ],
)
def test_a_ticket_without_a_start_is_refused_by_every_server_and_asks_for_flight_info(
    servers: Sequence[ServerProcess], generation: str, asked: bytes | dict[str, Any]
) -> None:
    if isinstance(asked, dict):
        named = {"generation": generation} if "generation" in asked else {}
        asked = json.dumps({"dataset": "ex", **asked, **named}).encode()
    for server in servers:
        with flight.connect(server.location) as client, pytest.raises(pa.ArrowInvalid, match=ASK) as refused:
            client.do_get(flight.Ticket(asked)).read_all()
        assert "'ex/0'" not in str(refused.value)


@pytest.mark.parametrize(
    "path",
    ["ex", "ex?partitions=0,1", "ex/partitions/0", "ex/partitions/0?from=0&until=1", "ex?generation={}"],
)
def test_a_path_without_a_start_is_refused_before_the_first_byte(
    servers: Sequence[ServerProcess], generation: str, path: str
) -> None:
    for method in ("GET", "HEAD"):
        with RawGet(f"{servers[1].http}/v1/datasets/{path.format(generation)}", method=method) as asked:
            assert asked.head()[0] == 400
    answer = get(f"{servers[0].http}/v1/datasets/{path.format(generation)}")
    assert ASK in answer.json()["message"]


def test_what_names_the_start_of_a_portion_reads_plans_and_renews_that_portion(
    servers: Sequence[ServerProcess], generation: str
) -> None:
    """All that FlightInfo gives, so a client that follows it has all rows."""
    with flight.connect(servers[0].location) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("ex"))
    for number, (server, endpoint) in enumerate(zip(servers, info.endpoints, strict=True)):
        start = json.loads(endpoint.ticket.ticket)["start"]
        (bulk,) = (each.uri.decode() for each in endpoint.locations if each.uri.startswith(b"http"))
        with flight.connect(server.location) as client:
            read = client.do_get(endpoint.ticket).read_all()
            one = json.dumps({"dataset": "ex", "partition": 0, "start": start}).encode()
            part = client.do_get(flight.Ticket(one)).read_all()["n"].to_pylist()
            renewed = client.do_action(flight.Action("RenewFlightEndpoint", field(1, endpoint.serialize())))
            assert len(list(renewed)) == 1
            with pytest.raises(pa.ArrowInvalid, match=ASK):
                action(client, "plan", dataset="ex", target_bytes=1)
            pieces = action(client, "plan", dataset="ex", target_bytes=1 << 30, start=start)["pieces"]
            without = wire_endpoint(json.dumps({"dataset": "ex", "partitions": "all"}).encode())
            with pytest.raises(pa.ArrowInvalid, match=ASK):
                list(client.do_action(flight.Action("RenewFlightEndpoint", field(1, without))))
        assert sorted(read["n"].to_pylist()) == mine(number)
        assert sorted(get(bulk).table()["n"].to_pylist()) == mine(number)
        assert part == rows_of(number, 0)
        assert len(pieces) == len([each for each in range(PARTITIONS) if rows_of(number, each)])


def wire_endpoint(ticket: bytes) -> bytes:
    serialized: bytes = flight.FlightEndpoint(ticket, []).serialize()
    return serialized


def test_a_dataset_of_one_server_is_read_by_its_name(servers: Sequence[ServerProcess]) -> None:
    spread("whole", servers[:1])
    with flight.connect(servers[0].location) as client:
        found = client.do_get(flight.Ticket(b'{"dataset": "whole", "partitions": "all"}')).read_all()
        facts = action(client, "statistics", dataset="whole")["datasets"]["whole"]
    assert sorted(found["n"].to_pylist()) == everything(1)
    assert sorted(get(f"{servers[0].http}/v1/datasets/whole").table()["n"].to_pylist()) == everything(1)
    assert facts["whole"] is None


@pytest.mark.parametrize("partitions", [{"partition": 3}, {"partitions": "all"}, {"partitions": [3, 0]}])
def test_a_read_that_began_before_the_seal_ends_with_the_refusal_and_no_totals(
    servers: Sequence[ServerProcess], partitions: dict[str, Any]
) -> None:
    """Server 0 has no rows of partition 3: also a read that gives none is not of the whole."""
    name, made, answers = f"early/x{secrets.token_hex(4)}", secrets.token_hex(8), []
    for producer, server in enumerate(servers):
        parts = [(each, rows_of(producer, each)) for each in range(PARTITIONS)]
        answers.append(put(server.location, command_of(name, made, producer), parts))
    listed = [{key: each[key] for key in ("start", "locations", "rows", "bytes")} for each in answers]
    number = partitions.get("partition")
    path = f"/v1/datasets/{name}" + ("" if number is None else f"/partitions/{number}")
    if isinstance(partitions.get("partitions"), list):
        path += "?partitions=3,0"
    with flight.connect(servers[0].location) as client, RawGet(f"{servers[0].http}{path}") as bulk:
        reader = client.do_get(flight.Ticket(json.dumps({"dataset": name, **partitions}).encode()))
        assert reader.schema.names == ["n"]
        assert bulk.head()[0] == 200
        chunks = bulk.chunks()
        next(chunks)  # the schema
        seal = {"dataset": name, "generation": made, "attempts": {"0": "1"}}
        action(client, "seal", **seal, start=answers[0]["start"], servers=listed)
        with pytest.raises(pa.ArrowInvalid, match=ASK):
            reader.read_all()
        with pytest.raises((Cut, ValueError)):
            list(chunks)


def test_an_acknowledgement_is_for_the_portion_whose_start_it_names(servers: Sequence[ServerProcess]) -> None:
    name, made = f"counted/x{secrets.token_hex(4)}", secrets.token_hex(8)
    create = {"kind": "shuffle", "partitions": 1, "generation": made, "retention": {"readers": 1}}
    answers = []
    for producer, server in enumerate(servers):
        command = {"dataset": name, "producer": producer, "attempt": "1", "generation": made}
        with flight.connect(server.location) as client:
            action(client, "create", dataset=name, **create)
            start = action(client, "locations")["start"]
        answer = put(server.location, command, [(0, [producer]), (0, [producer + 10])])
        answers.append({"start": start, "locations": [server.location], "rows": 2, "bytes": answer["bytes"]})
    place = {"dataset": name, "generation": made, "partition": 0, "reader": "task"}
    for producer, (server, mine) in enumerate(zip(servers, answers, strict=True)):
        start = mine["start"]
        with flight.connect(server.location) as client:
            seal = {"dataset": name, "generation": made, "attempts": {str(producer): "1"}}
            action(client, "seal", **seal, start=start, servers=answers)
            wanted = flight.Ticket(json.dumps({**place, "start": start}).encode())
            assert client.do_get(wanted).read_all().num_rows == 2
            with pytest.raises(pa.ArrowInvalid, match=ASK):
                action(client, "acknowledge", **place, frames=2)
            with pytest.raises(KeyError, match="held by the server with the start"):
                action(client, "acknowledge", **place, frames=2, start=answers[not producer]["start"])
            facts = action(client, "statistics", dataset=name)["datasets"][name]
            assert facts["partitions"]["0"]["frames_left"] == 2
            action(client, "acknowledge", **place, frames=2, start=start)
            facts = action(client, "statistics", dataset=name)["datasets"][name]
            assert facts["partitions"]["0"]["frames_left"] == 0


def test_reports_say_what_the_portion_is_a_part_of_and_where_the_rest_is(
    servers: Sequence[ServerProcess], generation: str
) -> None:
    whole = {"servers": 2, "rows": len(everything(2))}
    for number, server in enumerate(servers):
        with flight.connect(server.location) as client:
            facts = action(client, "statistics", dataset="ex")["datasets"]["ex"]
            (listed,) = get(f"{server.http}/v1/datasets?prefix=ex").json()["datasets"]
            renewed = action(client, "renew", dataset="ex", generation=generation)
        assert facts["rows"] == listed["rows"] == len(mine(number))
        assert facts["whole"] == listed["whole"]
        assert {key: facts["whole"][key] for key in whole} == whole
        assert sum(each["bytes"] for each in facts["portions"]) == facts["whole"]["bytes"]
        assert renewed["server_count"] == 2


def test_a_drop_says_that_others_have_the_rest(servers: Sequence[ServerProcess]) -> None:
    spread("gone", servers)
    with flight.connect(servers[0].location) as client:
        assert action(client, "drop", dataset="gone")["server_count"] == 2
    with flight.connect(servers[1].location) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("gone"))
        (result,) = client.do_action(flight.Action("CancelFlightInfo", field(1, info.serialize())))
        # CANCEL_STATUS_CANCELLING: what other servers have goes with its lease.
        assert result.body.to_pybytes() == b"\x08\x02"


def test_nothing_is_appended_to_a_part(servers: Sequence[ServerProcess]) -> None:
    """Other servers would not know of it, and a read that they lead to would lack it."""
    spread("closed", servers)
    with (
        flight.connect(servers[0].location) as client,
        pytest.raises(pa.ArrowInvalid, match="whose parts its seal lists: nothing can be appended"),
    ):
        action(client, "create", dataset="closed", kind="shuffle", mode="append", write="1")


def test_a_client_of_more_servers_than_have_parts_reads_and_drops_each_dataset_that_it_lists(
    servers: Sequence[ServerProcess],
) -> None:
    names = [f"some/n{number}" for number in range(8)]  # so that some names choose the server without a part
    for name in names:
        spread(name, servers)
    with ServerProcess.start() as third:
        locations = ",".join(each.location for each in (*servers, third))
        with ShuffleClient(locations) as client:
            assert [each.name for each in client.datasets("some/")] == names
            for name in names:
                assert sorted(client.get(name).read_all()["n"].to_pylist()) == everything(2)
                client.drop(name)
            assert client.datasets("some/") == []
            with pytest.raises(NotFound):
                client.get(names[0])
            with pytest.raises(NotFound):
                client.drop(names[0])
