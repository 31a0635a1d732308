"""Requests that make no sense: each is refused with the status that fits, and changes nothing."""

from __future__ import annotations

import json

import pytest

from tests.integration.bad_input.data import BATCH, SCHEMA, WORDS, refused
from tests.support.polling import eventually
from tests.support.raw_flight import (
    DESCRIPTOR,
    OpenPut,
    RawFlight,
    command,
    field,
    flight_data,
    path,
    put_messages,
)

BAD_STARTS: dict[str, tuple[list[bytes], str]] = {
    "nothing at all": ([], "ended before its first message"),
    "no descriptor": ([flight_data(SCHEMA.header)], "must carry the descriptor"),
    "a descriptor and no schema": ([field(DESCRIPTOR, path("d"))], "ended before its schema"),
    "a descriptor that is garbage": (
        [flight_data(SCHEMA.header, descriptor=b"\xff")],
        "not a FlightDescriptor",
    ),
    "a path of three elements": (
        [flight_data(SCHEMA.header, descriptor=path("a", "0", "x"))],
        "not 3 elements",
    ),
    "a partition of a name not created": (
        [flight_data(SCHEMA.header, descriptor=path("a", "3"))],
        "create it with the number of its partitions",
    ),
    "a command that is not JSON": ([flight_data(SCHEMA.header, descriptor=command(b"{"))], "not UTF-8 JSON"),
    "a command with an unknown key": (
        [flight_data(SCHEMA.header, descriptor=command({"dataset": "d", "shard": 1}))],
        "unknown key 'shard'; known are dataset, ",
    ),
    "a producer without attempt": (
        [flight_data(SCHEMA.header, descriptor=command({"dataset": "d", "producer": 1}))],
        "go together",
    ),
    "an unknown mode": (
        [flight_data(SCHEMA.header, descriptor=command({"dataset": "d", "mode": "append"}))],
        "'create' or 'overwrite', not 'append'",
    ),
    "overwriting partition 1": (
        [
            flight_data(
                SCHEMA.header, descriptor=command({"dataset": "d", "partition": 1, "mode": "overwrite"})
            )
        ],
        "writes partition 0 and no other",
    ),
    **{
        f"the name {name!r}": ([flight_data(SCHEMA.header, descriptor=path(name))], "is not a dataset name")
        for name in ("", "a..b", "x" * 201, "./x", "a//b")
    },
}


@pytest.mark.parametrize("case", BAD_STARTS)
def test_a_bad_start_of_a_put_leaves_no_dataset_behind(raw: RawFlight, case: str) -> None:
    messages, words = BAD_STARTS[case]
    error = refused(lambda: raw.put(messages))
    assert error.status == "INVALID_ARGUMENT"
    assert words in error.message
    assert list(raw.action("statistics")["datasets"]) == ["bystander"]


def test_a_put_into_a_name_that_exists_is_refused_and_changes_nothing(raw: RawFlight) -> None:
    error = refused(lambda: raw.put(put_messages(path("bystander"), [BATCH])))
    assert (error.status, error.detail["error"]) == ("INVALID_ARGUMENT", "already_exists")
    assert "overwrite" in error.message


def test_a_second_producer_of_a_partition_is_refused_while_the_first_goes_on(raw: RawFlight) -> None:
    raw.action("create", {"dataset": "d", "partitions": 2})
    first, *rest = put_messages(path("d", "1"), [BATCH, BATCH])
    with OpenPut(raw) as open_put:
        open_put.send(first)
        eventually(
            lambda: "1" in raw.action("statistics", {"dataset": "d"})["datasets"]["d"]["partitions"],
            expected=True,
        )
        error = refused(lambda: raw.put(put_messages(path("d", "1"), [BATCH])))
        assert error.status == "INVALID_ARGUMENT"
        assert "dataset 'd' partition 1 is being written" in error.message
        for message in rest:
            open_put.send(message)
    assert len(raw.get(b"d/1")) == 3


def test_a_refused_put_does_not_decide_the_schema(raw: RawFlight) -> None:
    raw.action("create", {"dataset": "d", "partitions": 2})
    error = refused(lambda: raw.put(put_messages(path("d", "2"), [WORDS])))
    assert (error.status, error.detail["partition"]) == ("NOT_FOUND", 2)
    raw.put(put_messages(path("d", "0"), [BATCH]))


BAD_TICKETS: dict[str, tuple[bytes, str, str]] = {
    "an unknown dataset": (b"nobody", "NOT_FOUND", "there is no dataset 'nobody'"),
    "an unknown partition": (b"bystander/1", "NOT_FOUND", "has partitions 0 to 0, not 1"),
    "another generation": (
        b'{"dataset":"bystander","generation":"old"}',
        "NOT_FOUND",
        "get_flight_info again",
    ),
    "nothing": (b"", "INVALID_ARGUMENT", "'' is not a dataset name"),
    "not JSON": (b'{"dataset":', "INVALID_ARGUMENT", "not UTF-8 JSON"),
    "very deep JSON": (b'{"dataset":' + b"[" * 100_000, "INVALID_ARGUMENT", "not UTF-8 JSON"),
    "a start beyond the last frame": (
        b'{"dataset":"bystander","from":3}',
        "INVALID_ARGUMENT",
        "has 2 frames",
    ),
}


@pytest.mark.parametrize("case", BAD_TICKETS)
def test_a_bad_ticket_reads_nothing(raw: RawFlight, case: str) -> None:
    ticket, status, words = BAD_TICKETS[case]
    error = refused(lambda: raw.get(ticket))
    assert error.status == status
    assert words in error.message


def test_a_plain_ticket_never_reads_a_part_of_several_partitions(raw: RawFlight) -> None:
    raw.action("create", {"dataset": "d", "partitions": 3})
    error = refused(lambda: raw.get(b"d"))
    assert error.status == "INVALID_ARGUMENT"
    assert "'d/0' to 'd/2'" in error.message


BAD_ACTIONS: dict[str, tuple[str, bytes, str, str]] = {
    "an unknown action": (
        "destroy",
        b"",
        "UNIMPLEMENTED",
        "there is no action 'destroy'; there are create, seal",
    ),
    "a Flight SQL action": (
        "CreatePreparedStatement",
        b"",
        "UNIMPLEMENTED",
        "this is not a Flight SQL server: there is no action 'CreatePreparedStatement'; there are create",
    ),
    "a body that is not JSON": ("create", b"dataset=d", "INVALID_ARGUMENT", "create is not UTF-8 JSON"),
    "a million partitions": (
        "create",
        b'{"dataset":"d","partitions":1000000}',
        "INVALID_ARGUMENT",
        "from 1 to",
    ),
    "producers of a stream": (
        "create",
        b'{"dataset":"d","producers":3}',
        "INVALID_ARGUMENT",
        "for kind 'shuffle'",
    ),
    "a retention of no kind": (
        "create",
        b'{"dataset":"d","retention":"long"}',
        "INVALID_ARGUMENT",
        "retention is",
    ),
    "a schema that is none": (
        "create",
        b'{"dataset":"d","schema":"AAAA"}',
        "INVALID_ARGUMENT",
        "IPC schema message",
    ),
    "the kind that is not there yet": (
        "create",
        b'{"dataset":"d","kind":"changelog"}',
        "INVALID_ARGUMENT",
        "changelog",
    ),
    "creating it otherwise": (
        "create",
        b'{"dataset":"bystander","partitions":2}',
        "INVALID_ARGUMENT",
        "another",
    ),
    "sealing what is unknown": ("seal", b'{"dataset":"nobody"}', "NOT_FOUND", "there is no dataset 'nobody'"),
    "sealing a stream": ("seal", b'{"dataset":"bystander"}', "INVALID_ARGUMENT", "only a shuffle"),
    "sealing another generation": (
        "seal",
        b'{"dataset":"bystander","generation":"x"}',
        "NOT_FOUND",
        "generation",
    ),
    "dropping what is unknown": (
        "drop",
        b'{"dataset":"nobody"}',
        "NOT_FOUND",
        "there is no dataset 'nobody'",
    ),
    "dropping another generation": (
        "drop",
        b'{"dataset":"bystander","generation":"x"}',
        "NOT_FOUND",
        "generation",
    ),
    "renewing what is unknown": (
        "renew",
        b'{"dataset":"nobody"}',
        "NOT_FOUND",
        "there is no dataset 'nobody'",
    ),
    "statistics of what is unknown": (
        "statistics",
        b'{"dataset":"nobody"}',
        "NOT_FOUND",
        "there is no dataset",
    ),
    "draining with arguments": ("drain", b'{"now":true}', "INVALID_ARGUMENT", "no arguments"),
    "cancelling garbage": ("CancelFlightInfo", b"\x0a\x02\xff\xff", "INVALID_ARGUMENT", "not a FlightInfo"),
    "renewing garbage": (
        "RenewFlightEndpoint",
        b"\x0a\x02\xff\xff",
        "INVALID_ARGUMENT",
        "not a FlightEndpoint",
    ),
    "a copy of nothing": (
        "copies",
        b'{"verb":"keep","dataset":"nobody","generation":"g","host":"h","file":"f"}',
        "NOT_FOUND",
        "there is no dataset 'nobody', and 'g' is no generation",
    ),
    "copies and an unknown verb": (
        "copies",
        b'{"verb":"forget","dataset":"bystander","generation":"g"}',
        "INVALID_ARGUMENT",
        "'verb' is one of keep",
    ),
    "a copy on a host with a strange name": (
        "copies",
        b'{"verb":"removed","dataset":"bystander","generation":"g","host":"a b","file":"f"}',
        "INVALID_ARGUMENT",
        "'host' is 1 to 128",
    ),
    "renewing nothing": ("RenewFlightEndpoint", b"", "INVALID_ARGUMENT", "name"),
}


@pytest.mark.parametrize("case", BAD_ACTIONS)
def test_a_bad_action_changes_nothing(raw: RawFlight, case: str) -> None:
    action, body, status, words = BAD_ACTIONS[case]
    error = refused(lambda: raw.action(action, body))
    assert error.status == status
    assert words in error.message
    assert list(raw.action("statistics")["datasets"]) == ["bystander"]


@pytest.mark.parametrize("rpc", ["GetFlightInfo", "PollFlightInfo", "GetSchema"])
@pytest.mark.parametrize(
    ("descriptor", "status"),
    [
        (path("nobody"), "NOT_FOUND"),
        (path("a b"), "INVALID_ARGUMENT"),
        (b"\xff", "INVALID_ARGUMENT"),
        (b"", "INVALID_ARGUMENT"),
    ],
)
def test_a_bad_descriptor_describes_nothing(raw: RawFlight, rpc: str, descriptor: bytes, status: str) -> None:
    assert refused(lambda: raw.ask(rpc, descriptor)).status == status


@pytest.mark.parametrize("rpc", ["ListFlights", "DoGet", "DoAction"])
def test_a_request_that_is_not_protobuf_is_refused(raw: RawFlight, rpc: str) -> None:
    error = refused(lambda: raw.ask(rpc, b"\x0a\xff\xff"))
    assert error.status == "INVALID_ARGUMENT"
    assert "not the protobuf message of Arrow Flight" in error.message


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_very_long_wrong_value_is_quoted_in_part(raw: RawFlight, letter: str) -> None:
    ticket = json.dumps({"dataset": "bystander", "partition": letter * 100_000}, ensure_ascii=False)
    error = refused(lambda: raw.get(ticket.encode()))
    assert error.status == "INVALID_ARGUMENT"
    assert "'partition' must be an integer" in error.message
    assert error.detail["message"].endswith("...")
    long_name = refused(lambda: raw.action(letter * 100_000))
    assert long_name.status == "UNIMPLEMENTED"
