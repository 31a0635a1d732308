"""Targets: what a client asks for: tickets, descriptors, bodies of actions, prefixes and locations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flight_server.access import FlightLocation
from flight_server.protocol import (
    AcknowledgeRequest,
    Body,
    Commit,
    CopiesRequest,
    CreateRequest,
    DatasetRequest,
    FlightShuffleError,
    HoldRequest,
    InvalidRequest,
    KeepRule,
    PlanRequest,
    PutCommand,
    SealRequest,
    Ticket,
    check_allowed,
    check_prefix,
    dump_json,
    object_of,
    parse_json,
    wire,
)
from flight_server.reporting import reports
from flight_server.transfer import parse_descriptor
from spark_client.connection import check_locations
from tests.support import raw_flight

from .target import Target, plain

GENERATION = "0123456789abcdef"
PREFIX = "s3://bucket/path?region=eu"

BODIES: dict[str, Callable[[bytes], Body]] = {
    "create": CreateRequest.parse,
    "seal": SealRequest.parse,
    "drop": lambda data: DatasetRequest.parse(data, "drop", needed=True),
    "acknowledge": AcknowledgeRequest.parse,
    "hold": HoldRequest.parse,
    "plan": PlanRequest.parse,
    "copies": CopiesRequest.parse,
    "why": lambda data: reports.Page.parse(data, "why"),
    "commit": Commit.parse,
    "put": PutCommand.parse,
}


def check_text(error: FlightShuffleError) -> None:
    """An error fits into the trailers of a call, and is what its text says."""
    assert len(error.to_json()) < 8 << 10, error


def read_ticket(data: bytes) -> None:
    """A ticket is refused, or rendered to one that means the same."""
    try:
        ticket = Ticket.parse(data)
    except FlightShuffleError as error:
        check_text(error)
        raise
    assert Ticket.parse(ticket.encode()) == ticket


def read_descriptor(data: bytes) -> None:
    """A descriptor is refused, or rendered to one that means the same."""
    command = parse_descriptor(data)
    assert parse_descriptor(raw_flight.command(command.encode())) == command


def read_body(data: bytes) -> None:
    """``data`` is the name of an action, a line's end, and the body."""
    name, _, body = data.partition(b"\n")
    parse = BODIES.get(name.decode("latin-1"))
    if parse is None:
        raise InvalidRequest("no such body")
    try:
        request = parse(body)
    except FlightShuffleError as error:
        check_text(error)
        raise
    if parse is not BODIES["why"]:
        assert parse(request.encode()) == request


def read_json(data: bytes) -> None:
    """The parser for the event loop and the one for threads take the same texts, with the same results."""
    outcomes = []
    for in_thread in (False, True):
        try:
            outcomes.append(repr(parse_json(data, "it", in_thread=in_thread)))
        except InvalidRequest:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1], outcomes
    if outcomes[0] != "refused":
        rule = parse_json(data, "it")
        assert KeepRule.parse(KeepRule.parse(rule).to_json()) == KeepRule.parse(rule)


def read_place(data: bytes) -> None:
    """Prefixes, locations of servers and sources, one text for all."""
    text = data.decode("utf-8", "surrogateescape")
    refused = 0
    try:
        prefix = check_prefix(text, "it")
        assert check_prefix(prefix, "it") == prefix
        assert check_allowed(prefix, [prefix]) == prefix
        assert ".." not in object_of(prefix, "a/b", GENERATION, "s").partition("?")[0].split("/")
    except FlightShuffleError as error:
        check_text(error)
        refused += 1
    try:
        location = FlightLocation.parse(text)
        assert FlightLocation.parse(str(location)) == location
    except ValueError:
        refused += 1
    if "dns+" not in text:  # which asks a name server
        check_locations(text)


def _json_samples() -> list[bytes]:
    rules: list[dict[str, Any]] = [
        {"rule": "latest", "key": ["a"], "order_by": ["-b", "c"]},
        {"rule": "top_k", "key": ["a"], "order_by": ["b"], "k": 3},
        {
            "rule": "until_closed",
            "key": ["a"],
            "closed_by": {"k": "closed"},
            "keep": {"rule": "latest", "order_by": ["b"]},
        },
        {"rule": "pair", "key": ["a"], "kind": "k", "values": ["send", "recv"], "emit": "pairs"},
    ]
    return [*map(dump_json, rules), b'{"a":{"\\u00e9":[1,2.5e3,true,null,"x"],"b":{"c":{}}}}']


def _body_samples() -> list[bytes]:
    versions = {"id": "job", "version": 4, "after": 3}
    bodies: dict[str, list[dict[str, Any]]] = {
        "create": [
            {"dataset": "d", "kind": "shuffle", "partitions": 3, "producers": 2, "generation": GENERATION},
            {"dataset": "d", "kind": "shuffle", "mode": "append", "write": "w1", "transaction": versions},
            {"dataset": "d", "retention": {"readers": 2}, "lease_seconds": 3.5, "durable": True},
            {"dataset": "d", "kind": "source", "source": {"path": "a.parquet", "format": "parquet"}},
            {
                "dataset": "d",
                "kind": "changelog",
                "schema": "AAAA",
                "delay_seconds": 1,
                "keep": {"rule": "latest", "key": ["a"], "order_by": ["b"]},
            },
        ],
        "seal": [
            {"dataset": "d", "attempts": {"0": "7", "1": 9}, "partition_bytes": 100, "largest": 3},
            {
                "dataset": "d",
                "start": "s1",
                "servers": [{"start": "s1", "locations": ["grpc://h:1"], "rows": 1, "bytes": 2}],
                "offload": PREFIX,
            },
        ],
        "drop": [{"dataset": "d", "generation": GENERATION, "staged": True}],
        "acknowledge": [
            {"dataset": "d", "generation": GENERATION, "partition": 0, "reader": "r", "frames": 3}
        ],
        "hold": [{"dataset": "d", "hold": "h", "version": 3, "lease_seconds": 9.5, "owner": "a job"}],
        "plan": [{"dataset": "d", "target_bytes": 1000, "partitions": [0, 2], "start": "s"}],
        "copies": [
            {
                "verb": "fetch",
                "dataset": "d",
                "generation": GENERATION,
                "host": "h",
                "file": "f",
                "location": "grpc://h:1",
            }
        ],
        "why": [{"dataset": "d", "first": 1, "limit": 10}],
        "commit": [{"commit": {"rows": 3, "frames": 1, "crc32c": "0123abcd"}}],
        "put": [
            {
                "dataset": "d",
                "producer": 1,
                "attempt": "2",
                "generation": GENERATION,
                "create": {"partitions": 3},
            }
        ],
    }
    return [name.encode() + b"\n" + dump_json(body) for name, given in bodies.items() for body in given]


TICKETS = [
    b"countries",
    b"countries/0",
    dump_json(
        {"dataset": "d", "generation": GENERATION, "partition": 2, "from": 3, "until": 9, "reader": "r"}
    ),
    dump_json({"dataset": "d", "generation": GENERATION, "partitions": [3, 7], "from": 1, "start": "s"}),
    dump_json({"dataset": "d", "partitions": "all"}),
    dump_json({"dataset": "d", "as_of": 5, "after": 3}),
    dump_json({"dataset": "d", "after": 3, "follow": True}),
    wire.field(1, b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery")
    + wire.field(2, b"x"),
]
DESCRIPTORS = [
    raw_flight.path("d"),
    raw_flight.path("d", "3"),
    raw_flight.command({"dataset": "d", "partition": 1, "mode": "overwrite", "seen": 3}),
    raw_flight.command({"dataset": "d", "delete": True, "transaction": {"id": "a", "version": 1}}),
]
PLACES = [
    PREFIX.encode(),
    b"file:///tmp/a%20b",
    b"/tmp/a/b",
    b"file://localhost/a",
    b"grpc://host:8815,grpc+tls://[::1]:1/",
    b"grpc+tcp://*:3",
    b"abfs://container@account.dfs/x",
]

TARGETS = [
    Target("tickets", plain(read_ticket), lambda: TICKETS),
    Target("descriptors", plain(read_descriptor), lambda: DESCRIPTORS),
    Target("bodies", plain(read_body), _body_samples),
    Target("json", plain(read_json), _json_samples),
    Target("places", plain(read_place), lambda: PLACES),
]
