"""Changelogs from outside: pyarrow's own client and plain HTTP, against a real server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs, raw_put
from tests.support.changelogs import Row, folded, read, rows, signed, snapshot, steps, ticket
from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.rates import LATEST, RATES, rates_of
from tests.support.raw_flight import RawFlight, Refused, command, commit, fields_of, path, put_messages
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"memory_limit": "128MiB", "lease_seconds": "1000"}

Start = Callable[..., ServerProcess]


# Over HTTP


def over_http(
    server: ServerProcess, dataset: str, query: str = ""
) -> tuple[pa.Schema, list[changelogs.Step]]:
    """What ``urllib`` gets, by the version in each batch's custom metadata."""
    with urllib.request.urlopen(f"{server.http}/v1/datasets/{dataset}/partitions/0{query}") as answer:
        reader = pa.ipc.open_stream(answer)
        found: list[changelogs.Step] = []
        collected: list[Row] = []
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                assert collected == []
                return reader.schema, found
            collected += rows(batch)
            if metadata.get(b"last") == b"true":
                found.append(changelogs.Step(int(metadata[b"version"]), collected))
                collected = []


# Versions


def test_each_put_is_a_version_and_every_way_of_reading_says_which(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    created = changelogs.create(client, "ways", RATES, keep=LATEST, delay_seconds=3600)
    assert created["created"]
    assert read(client, "ways") == changelogs.Step(0, [])
    first = changelogs.put(client, "ways", rates_of(("EUR", 1, 1.1), ("JPY", 1, 160.0)), path=True)
    assert first | {"bytes": 0} == {
        "committed": True,
        "rows": 2,
        "bytes": 0,
        "generation": created["generation"],
        "start": action(client, "locations")["start"],
        "version": 1,
    }
    late = signed(rates_of(("EUR", 2, 1.2), ("JPY", 1, 160.0)), 1, -1, kind=pa.int8())
    assert changelogs.put(client, "ways", late, producer=0, attempt="1")["version"] == 2
    assert changelogs.put(client, "ways", rates_of(("EUR", 0, 9.9)))["version"] == 3
    at = {0: [], 1: [("EUR", 1, 1.1), ("JPY", 1, 160.0)], 2: [("EUR", 2, 1.2)], 3: [("EUR", 2, 1.2)]}
    for version, kept in at.items():
        assert snapshot(client, "ways", as_of=version) == kept
        assert read(client, "ways", as_of=version).version == version
        for later, then in at.items():
            if later >= version:
                changes = read(client, "ways", after=version, as_of=later)
                assert changes.version == later
                assert folded(kept, changes.rows) == then
    assert read(client, "ways", after=2).rows == []
    assert read(client, "ways", after=1, generation=created["generation"]).version == 3
    assert client.do_get(flight.Ticket(b"ways")).read_all() == rates_of(("EUR", 2, 1.2))
    assert client.do_get(flight.Ticket(b"ways/0")).read_all().num_rows == 1
    assert over_http(server, "ways") == (RATES, [changelogs.Step(3, [("EUR", 2, 1.2)])])
    schema, deltas = over_http(server, "ways", "?after=0&as_of=2")
    assert schema == RATES.append(pa.field("_diff", pa.int64(), nullable=False))
    assert deltas == [changelogs.Step(2, [("EUR", 2, 1.2, 1)])]
    assert [step.version for step in over_http(server, "ways", "?as_of=1")[1]] == [1]


def test_a_put_over_http_is_a_version_and_says_so(server: ServerProcess, client: flight.FlightClient) -> None:
    (location,) = changelogs.create(client, "posted", RATES)["put_locations"]
    batches = rates_of(("EUR", 1, 1.1)).to_batches()
    for version, descriptor in enumerate((path("posted"), command({"dataset": "posted"})), 1):
        (answer,) = raw_put.put(location, put_messages(descriptor, batches))
        assert json.loads(answer)["version"] == version
    attempt = command({"dataset": "posted", "producer": 4, "attempt": "a"})
    (answer,) = raw_put.put(location, [*put_messages(attempt, batches), commit(1, 1)])
    assert json.loads(answer) | {"bytes": 0, "generation": "", "start": ""} == {
        "committed": True,
        "rows": 1,
        "bytes": 0,
        "generation": "",
        "start": "",
        "version": 3,
    }
    with pytest.raises(raw_put.Refused, match="without its commit message") as refused:
        raw_put.put(location, put_messages(attempt, batches))
    assert refused.value.body["error"] == "invalid_request"
    assert snapshot(client, "posted") == [("EUR", 1, 1.1)] * 3


def test_each_commit_of_a_put_is_a_version_and_a_broken_put_keeps_those(
    server: ServerProcess, client: flight.FlightClient, raw: RawFlight
) -> None:
    (location,) = changelogs.create(client, "committed", RATES)["put_locations"]
    attempt = {"dataset": "committed", "producer": 0, "attempt": "a"}
    batches = rates_of(("EUR", 1, 1.1)).to_batches() * 3
    first, *data = put_messages(command(attempt), batches)
    puts = [first, data[0], commit(1, 1), *data[1:], commit(2, 2)]
    lanes: list[Callable[[list[bytes]], list[bytes]]] = [raw.put, partial(raw_put.put, location)]
    for lane, put in enumerate(lanes):
        answers = [json.loads(answer) for answer in put(puts)]
        assert [(each["version"], each["rows"]) for each in answers] == [(3 * lane + 1, 1), (3 * lane + 2, 2)]
        with pytest.raises((Refused, raw_put.Refused), match="without its commit message"):
            put([first, data[0], commit(1, 1), data[1]])
        assert changelogs.numbers(client, "committed")["upper"] == 3 * lane + 3
    once, *_ = put_messages(command(attempt | {"transaction": {"id": "job", "version": 1}}), batches)
    with pytest.raises(Refused, match="a batch came after the commit"):
        raw.put([once, data[0], commit(1, 1), data[1], commit(1, 1)])
    assert changelogs.numbers(client, "committed")["upper"] == 7
    assert len(snapshot(client, "committed")) == 9


def test_a_transaction_that_is_repeated_answers_the_version_that_it_made(client: flight.FlightClient) -> None:
    changelogs.create(client, "once", RATES)
    data = rates_of(("EUR", 1, 1.1))
    for number, version in ((1, 1), (2, 2), (9, 3), (2, 2), (1, 1)):
        answer = changelogs.put(client, "once", data, transaction={"id": "job", "version": number})
        assert answer["version"] == version
    with pytest.raises(
        pa.ArrowException, match="number 5 of transaction id 'job' was never committed, and 9 was"
    ):
        changelogs.put(client, "once", data, transaction={"id": "job", "version": 5})
    assert len(snapshot(client, "once")) == 3


def test_a_follower_gets_each_version_as_it_comes_on_both_lanes(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    changelogs.create(client, "followed", RATES, keep=LATEST)
    changelogs.put(client, "followed", rates_of(("EUR", 1, 1.0)))
    stream = client.do_get(ticket("followed", after=0, follow=True))
    url = f"{server.http}/v1/datasets/followed/partitions/0?after=0&follow=true"
    with urllib.request.urlopen(url) as answer:
        reader = pa.ipc.open_stream(answer)
        followed = steps(stream)
        for version in range(1, 6):
            step = next(followed)
            assert step.version == version
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            assert (metadata[b"version"], metadata[b"last"]) == (b"%d" % version, b"true")
            assert sorted(rows(batch)) == sorted(step.rows)
            assert ("EUR", version, float(version), 1) in step.rows
            assert len(step.rows) == (1 if version == 1 else 2)
            changelogs.put(client, "followed", rates_of(("EUR", version + 1, version + 1.0)))
    stream.cancel()
    eventually(lambda: changelogs.numbers(client, "followed")["followers"], 0)


def test_dictionary_columns_are_taken_and_come_back_by_value(client: flight.FlightClient) -> None:
    encoded = pa.dictionary(pa.int8(), pa.string())
    changelogs.create(client, "coded", pa.schema([("currency", encoded), ("time", pa.int64())]), keep=LATEST)
    table = pa.table({"currency": ["EUR", "JPY", "EUR", None], "time": [1, 2, 3, 4]})
    coded = table.set_column(
        0, "currency", table["currency"].combine_chunks().dictionary_encode().cast(encoded)
    )
    changelogs.put(client, "coded", coded)
    changelogs.put(client, "coded", table.slice(0, 1))
    found = client.do_get(flight.Ticket(b"coded")).read_all()
    assert found.schema.field("currency").type == pa.string()
    assert Counter(rows(found)) == Counter([("EUR", 3), ("JPY", 2), (None, 4)])


def test_a_changelog_is_kept_until_it_is_dropped(client: flight.FlightClient) -> None:
    """Other datasets of this server have a lease."""
    changelogs.create(client, "kept", RATES)
    assert action(client, "statistics", dataset="kept")["datasets"]["kept"]["lease_left_seconds"] is None
    changelogs.create(client, "leased", RATES, lease_seconds=50)
    assert action(client, "statistics", dataset="leased")["datasets"]["leased"]["lease_left_seconds"] > 0


# FlightInfo


def test_flight_info_has_one_endpoint_that_reads_the_newest_snapshot(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    created = changelogs.create(client, "info/described", RATES, keep=LATEST, delay_seconds=3600)
    info = client.get_flight_info(flight.FlightDescriptor.for_path("info/described"))
    (endpoint,) = info.endpoints
    for version in (1, 2):
        changelogs.put(client, "info/described", rates_of(("EUR", version, 1.0)))
        # A ticket that was given before reads the newest version, too.
        assert client.do_get(endpoint.ticket).read_all() == rates_of(("EUR", version, 1.0))
    (listed,) = client.list_flights(b"info/")
    assert json.loads(listed.app_metadata) == {
        "generation": created["generation"],
        "kind": "changelog",
        "sealed": False,
        "since": 0,
        "upper": 2,
    }
    assert (listed.schema, listed.total_records, listed.total_bytes) == (RATES, -1, -1)
    assert client.get_schema(listed.descriptor).schema == RATES
    (url,) = [place.uri.decode() for place in endpoint.locations if place.uri.startswith(b"http:")]
    with urllib.request.urlopen(url) as answer:
        assert pa.ipc.open_stream(answer).read_all() == rates_of(("EUR", 2, 1.0))


def test_polls_that_follow_each_other_miss_no_version(client: flight.FlightClient, raw: RawFlight) -> None:
    changelogs.create(client, "polled", RATES)

    def poll(descriptor: bytes) -> tuple[int, bytes]:
        """The newest version, and the descriptor to ask again with."""
        answer = fields_of(raw.ask("PollFlightInfo", descriptor)[0])
        return json.loads(flight.FlightInfo.deserialize(answer[1]).app_metadata)["upper"], answer[2]

    seen, again = poll(path("polled"))
    assert seen == 0
    for version in (1, 2):
        with ThreadPoolExecutor(1) as threads:
            polling = threads.submit(poll, again)
            eventually(lambda: len(action(client, "why", dataset="polled")["waits"]), 1)
            changelogs.put(client, "polled", rates_of(("EUR", 1, 1.0)))
            seen, again = polling.result()
        assert seen == version
    changelogs.put(client, "polled", rates_of(("EUR", 1, 1.0)))
    assert poll(again)[0] == 3
    assert client.get_flight_info(flight.FlightDescriptor.deserialize(again)).descriptor.path == [b"polled"]


# Limits


def test_readers_that_leave_leave_nothing(flight_server_process: Start) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with flight.connect(server.location) as client:
        changelogs.create(client, "left", RATES, keep=LATEST, delay_seconds=3600)
        data = pa.table(
            {"currency": [str(n) for n in range(200_000)], "time": range(200_000), "rate": [1.0] * 200_000}
        )
        changelogs.put(client, "left", data)
        for versions in ({}, {"after": 0}, {"after": 0, "follow": True}):
            stream = client.do_get(ticket("left", **versions))
            stream.read_chunk()
            stream.cancel()
        answer = urllib.request.urlopen(f"{server.http}/v1/datasets/left/partitions/0?after=0&follow=true")
        answer.read(100)
        answer.close()
        eventually(lambda: changelogs.numbers(client, "left")["followers"], 0)
        eventually(lambda: action(client, "statistics")["memory"]["accounts"]["sends"]["used_bytes"], 0)
        eventually(lambda: action(client, "why")["waits"], [])
        action(client, "drop", dataset="left")
        eventually(lambda: action(client, "statistics")["memory"]["used_bytes"], 0)
        eventually(lambda: action(client, "statistics")["disk"]["used_bytes"], 0)
