"""What a ticket, a path and a descriptor mean, and what is said of those that mean nothing or two things."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.test_flight_client import BATCH, descriptor, put, read
from tests.support.bulk import get
from tests.support.durable import action
from tests.support.raw_flight import RawFlight, Refused, fields_of, path
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(empty_server: ServerProcess) -> ServerProcess:
    return empty_server


def url_of(server: ServerProcess, name: str, partition: int | None = 0) -> str:
    part = "" if partition is None else f"/partitions/{partition}"
    return f"{server.http}/v1/datasets/{name}{part}"


def test_a_text_with_a_number_at_its_end_is_a_partition_and_never_a_name(
    empty_server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, "a", BATCH)
    assert read(client, b"a/0") == get(url_of(empty_server, "a")).table()["n"].to_pylist() == [1, 2, 3]
    for name, place in (("a/0", "a"), ("a/partitions/0", "a/partitions"), ("2026/11", "2026")):
        with pytest.raises(pa.ArrowInvalid, match=f"but partition .* of '{place}': .* write '{place}-"):
            put(client, name, BATCH)
        with pytest.raises(pa.ArrowInvalid, match="is not a dataset name"):
            read(client, f'{{"dataset": "{name}"}}'.encode())
    assert get(url_of(empty_server, "a/0", partition=None)).status == 400


@pytest.mark.parametrize("name", ["day=2026-11-29", "a:b/c=d", "x/y=7"])
def test_a_name_may_have_colons_and_equal_signs(
    empty_server: ServerProcess, client: flight.FlightClient, name: str
) -> None:
    put(client, name, BATCH)
    (endpoint,) = client.get_flight_info(descriptor(name)).endpoints
    assert read(client, endpoint.ticket) == read(client, name.encode()) == [1, 2, 3]
    for url in (url_of(empty_server, name), endpoint.locations[-1].uri.decode()):
        assert get(url).table()["n"].to_pylist() == [1, 2, 3]


def test_a_descriptor_that_names_a_partition_is_answered_with_that_one_alone(
    client: flight.FlightClient, raw: RawFlight
) -> None:
    action(client, "create", dataset="d", partitions=3)
    info = client.get_flight_info(flight.FlightDescriptor.for_path("d", "2"))
    assert (info.total_records, len(info.endpoints)) == (-1, 1)
    for index in range(3):
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("d", str(index)), BATCH.schema)
        with writer:
            writer.write_batch(pa.record_batch({"n": [index] * (index + 1)}))
    whole = client.get_flight_info(descriptor("d"))
    generation = json.loads(whole.app_metadata)["generation"]
    for index in range(3):
        by_path = flight.FlightDescriptor.for_path("d", str(index))
        for named in (
            by_path,
            descriptor("d", partition=index),
            descriptor("d", partition=index, generation=generation),
        ):
            info = client.get_flight_info(named)
            assert info.descriptor == by_path
            assert [each.ticket for each in info.endpoints] == [whole.endpoints[index].ticket]
            assert info.total_records == index + 1
            assert [row for each in info.endpoints for row in read(client, each.ticket)] == [index] * (
                index + 1
            )
            assert client.get_schema(named).schema == BATCH.schema
        (polled,) = raw.ask("PollFlightInfo", path("d", str(index)))
        (endpoint,) = flight.FlightInfo.deserialize(fields_of(polled)[1]).endpoints
        assert endpoint.ticket == info.endpoints[0].ticket
        assert 2 not in fields_of(polled), "it is whole: there is nothing to ask for again"
    for nowhere in (flight.FlightDescriptor.for_path("d", "3"), descriptor("d", partition=3)):
        for ask in (client.get_flight_info, client.get_schema):
            with pytest.raises(KeyError, match="dataset 'd' has partitions 0 to 2, not 3"):
                ask(nowhere)
    with pytest.raises(Refused, match="partitions 0 to 2, not 3"):
        raw.ask("PollFlightInfo", path("d", "3"))
    for ask in (client.get_flight_info, client.get_schema):
        with pytest.raises(KeyError, match="generation"):
            ask(descriptor("d", generation="0123456789abcdef"))


def test_an_error_claims_of_a_generation_no_more_than_the_server_knows(client: flight.FlightClient) -> None:
    put(client, "d", BATCH)
    cases = {
        b'{"dataset": "d", "generation": "bogus"}': "generation 'bogus' of dataset 'd', which no server gives",
        b'{"dataset": "d", "generation": "0123456789abcdef"}': "not of this start of the server, at 2.* or is another",
        b'{"dataset": "never", "generation": "bogus"}': "no dataset 'never', and 'bogus' is no generation",
        b'{"dataset": "never", "generation": "0123456789abcdef"}': "'never' is not here: its generation .* or it is an",
        b"never": "there is no dataset 'never': it was never written",
    }
    for ticket, words in cases.items():
        with pytest.raises(KeyError, match=words):
            read(client, ticket)


def test_every_ticket_of_a_dropped_dataset_says_why_it_is_gone(client: flight.FlightClient) -> None:
    put(client, "x", BATCH)
    action(client, "drop", dataset="x")
    for ticket in (b"x", b"x/0", b'{"dataset":"x","partition":0}'):
        with pytest.raises(KeyError, match="there is no dataset 'x': it was dropped"):
            read(client, ticket)
    with pytest.raises(KeyError, match="there is no dataset 'y': it was never written"):
        read(client, b"y/0")


def test_a_date64_with_a_time_of_day_is_refused_with_what_helps(client: flight.FlightClient) -> None:
    times = pa.Array.from_buffers(pa.date64(), 1, [None, pa.py_buffer((86_400_001).to_bytes(8, "little"))])
    writer, _ = client.do_put(descriptor("d"), pa.schema({"n": pa.date64()}))
    with (
        pytest.raises(
            pa.ArrowInvalid, match=r"whole number of days; .* cast the column to timestamp\('ms'\)"
        ),
        writer,
    ):
        writer.write_batch(pa.record_batch({"n": times}))
