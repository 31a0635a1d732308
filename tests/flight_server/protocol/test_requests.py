"""Words that server and client share: what is rendered parses to the same value, and nothing else parses."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.protocol import (
    MAX_PARTITIONS,
    AcknowledgeRequest,
    Commit,
    CopiesRequest,
    CopyVerb,
    CreateRequest,
    DatasetRequest,
    HoldRequest,
    KeepRule,
    Kind,
    Order,
    PlanRequest,
    PutCommand,
    Retention,
    RuleName,
    SealRequest,
    Ticket,
    Transaction,
    Versions,
    WriteMode,
    check_attempt,
    parse_partition,
    partition_metadata,
)
from flight_server.protocol.dataset_names import check_dataset_name
from flight_server.protocol.errors import InvalidRequest
from flight_server.transfer.receiving import parse_path

WORDS = string.ascii_letters + string.digits + "_-"
NAMES = st.text(WORDS + ":=", min_size=1, max_size=20) | st.just("._/-a/b.c" + "x" * 40)
ATTEMPTS = st.text(WORDS + ".:", min_size=1, max_size=100)
PARTITIONS = st.integers(0, MAX_PARTITIONS - 1)
VERSIONS = st.integers(0, 2**53)
GENERATIONS = st.none() | st.text(min_size=1)
RETENTIONS = st.one_of(
    st.just(Retention()),
    st.integers(1, 1_000_000).map(lambda readers: Retention(readers=readers)),
    st.floats(0.001, 1e9).map(lambda seconds: Retention(seconds=seconds)),
)


@st.composite
def put_commands(draw: st.DrawFn) -> PutCommand:
    attempt = draw(st.none() | ATTEMPTS)
    mode = draw(st.sampled_from(["create", "overwrite"]))
    return PutCommand(
        draw(NAMES),
        partition=draw(st.none() | PARTITIONS),
        producer=None if attempt is None else draw(st.integers(0, 2**31 - 1)),
        attempt=attempt,
        mode=mode,
        generation=draw(GENERATIONS),
        transaction=draw(st.none() | TRANSACTIONS),
        seen=draw(st.none() | VERSIONS),
        delete=mode == "create" and draw(st.booleans()),
    )


TRANSACTIONS = st.builds(Transaction, ATTEMPTS, VERSIONS, st.none() | VERSIONS)
COLUMNS = st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True).map(tuple)
ORDERS = st.lists(
    st.builds(Order, st.text(min_size=1).filter(lambda name: not name.startswith("-")), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda order: order.column,
).map(tuple)
SCALARS = st.text() | st.integers() | st.booleans()


@st.composite
def keep_rules(draw: st.DrawFn) -> KeepRule:
    match rule := draw(st.sampled_from(RuleName)):
        case RuleName.LATEST:
            return KeepRule(rule, draw(COLUMNS), draw(ORDERS))
        case RuleName.TOP_K:
            return KeepRule(rule, draw(COLUMNS), draw(ORDERS), draw(st.integers(1, 1_000_000)))
        case RuleName.UNTIL_CLOSED:
            closed_by = draw(st.dictionaries(st.text(), SCALARS, min_size=1, max_size=2))
            k = draw(st.integers(1, 10))
            return KeepRule(rule, draw(COLUMNS), draw(ORDERS), k, closed_by=tuple(closed_by.items()))
        case RuleName.PAIR:
            order_by, emit = draw(st.just(()) | ORDERS), draw(st.none() | NAMES)
            return KeepRule(
                rule, draw(COLUMNS), order_by, kind=draw(st.text()), values=("send", "recv"), emit=emit
            )
    raise AssertionError(rule)


@st.composite
def create_requests(draw: st.DrawFn) -> CreateRequest:
    kind = draw(st.sampled_from(Kind))
    if kind is Kind.CHANGELOG:
        keep, delay_seconds = draw(st.none() | keep_rules()), draw(st.none() | st.floats(0, 1e9))
        return CreateRequest(
            draw(NAMES), kind, schema=draw(st.text()), keep=keep, delay_seconds=delay_seconds
        )
    mode = draw(st.none() | st.sampled_from(WriteMode)) if kind is Kind.SHUFFLE else None
    return CreateRequest(
        draw(NAMES),
        kind,
        schema=draw(st.none() | st.text()),
        partitions=draw(st.integers(1, MAX_PARTITIONS)),
        producers=draw(st.none() | st.integers(1, 1_000_000)) if kind is Kind.SHUFFLE and not mode else None,
        retention=draw(RETENTIONS),
        lease_seconds=draw(st.none() | st.floats(0.1, 1000)),
        durable=draw(st.booleans()) if kind is not Kind.SOURCE else False,
        source={"parquet": "x"} if kind is Kind.SOURCE else None,
        mode=mode,
        write=draw(ATTEMPTS) if mode else None,
    )


FILES = st.text(WORDS + ".", min_size=1, max_size=128)
PLACES = st.none() | st.from_regex(r"grpc(\+tcp|\+tls)?://[!-~]{1,280}", fullmatch=True)
REQUESTS: list[tuple[Callable[[bytes], object], st.SearchStrategy[Any]]] = [
    (PutCommand.parse, put_commands()),
    (
        Ticket.parse,
        st.builds(
            Ticket,
            NAMES,
            st.none() | PARTITIONS,
            GENERATIONS,
            st.integers(0, 2**53),
            versions=st.none()
            | st.builds(Versions, as_of=VERSIONS)
            | st.builds(Versions, after=VERSIONS, follow=st.booleans()),
        )
        | st.builds(Ticket, NAMES, st.none() | PARTITIONS, GENERATIONS, until=st.none() | VERSIONS),
    ),
    (Commit.parse, st.builds(Commit, VERSIONS, VERSIONS)),
    (CreateRequest.parse, create_requests()),
    (
        SealRequest.parse,
        st.builds(
            SealRequest,
            NAMES,
            GENERATIONS,
            st.none() | st.dictionaries(st.integers(0, 2**31), ATTEMPTS),
            st.none() | st.integers(1, MAX_PARTITIONS),
            st.none() | TRANSACTIONS,
        )
        | st.just(SealRequest("d", partition_bytes=5)),
    ),
    (
        HoldRequest.parse,
        st.builds(
            HoldRequest,
            NAMES,
            ATTEMPTS,
            GENERATIONS,
            lease_seconds=st.floats(0.1, 1000),
            owner=st.none() | st.sampled_from(["job 7 of ann on host-1", "ü"]),
            release=st.booleans(),
            releases=st.none() | ATTEMPTS,
        )
        | st.builds(HoldRequest, NAMES, ATTEMPTS, GENERATIONS, st.none() | VERSIONS),
    ),
    (
        PlanRequest.parse,
        st.builds(
            PlanRequest,
            NAMES,
            st.integers(1, 2**53),
            GENERATIONS,
            st.none() | st.lists(PARTITIONS, max_size=3, unique=True).map(tuple),
        ),
    ),
    (
        AcknowledgeRequest.parse,
        st.builds(AcknowledgeRequest, NAMES, st.text(min_size=1), PARTITIONS, ATTEMPTS, VERSIONS),
    ),
    (
        CopiesRequest.parse,
        st.builds(CopiesRequest, st.sampled_from(CopyVerb), NAMES, st.text(), FILES, FILES)
        | st.builds(CopiesRequest, st.just(CopyVerb.FETCH), NAMES, st.text(), FILES, FILES, PLACES, PLACES)
        | st.builds(CopiesRequest, st.sampled_from([CopyVerb.WHICH, CopyVerb.WITHDRAW]), NAMES, st.text()),
    ),
    (
        lambda body: DatasetRequest.parse(body, "drop", needed=True),
        st.builds(DatasetRequest, NAMES, GENERATIONS, st.booleans()),
    ),
]


@given(st.data())
@pytest.mark.parametrize(("parse", "requests"), REQUESTS)
def test_a_request_parses_to_itself(
    parse: Callable[[bytes], object], requests: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    request = data.draw(requests)
    assert parse(request.encode()) == request


FETCHED = {"dataset": "d", "generation": "g", "host": "h", "file": "f"}
STAGED = {"dataset": "d", "kind": "shuffle"}
REFUSED: list[tuple[Callable[[bytes], object], dict[str, Any], str]] = [
    *(
        (
            CopiesRequest.parse,
            {"verb": "keep", "dataset": "d", **more},
            "needs 'generation', and to keep also",
        )
        for more in ({}, {"generation": "g"}, {"generation": "g", "host": "h"}, {"host": "h", "file": "f"})
    ),
    (
        CopiesRequest.parse,
        {**FETCHED, "verb": "fetch", "location": "http://a:1"},
        "'location' is grpc://host",
    ),
    (CopiesRequest.parse, {**FETCHED, "verb": "fetch", "lost": "grpc://a:1" + "1" * 300}, "in at most 300"),
    (CopiesRequest.parse, {**FETCHED, "verb": "fetched", "location": "grpc://a:1"}, "'lost' are for fetch"),
    (CopiesRequest.parse, {**FETCHED, "verb": "keep", "lost": "grpc://a:1"}, "'lost' are for fetch"),
    (PlanRequest.parse, {"dataset": "d", "target_bytes": 0}, "plan: '"),
    (PlanRequest.parse, {"dataset": "d", "target_bytes": 1, "partitions": [True]}, "plan: '"),
    (PlanRequest.parse, {"dataset": "d", "partitions": []}, "plan: '"),
    *(
        (CreateRequest.parse, {"dataset": "d", "lease_seconds": number}, "lease_seconds")
        for number in (float("nan"), float("inf"))
    ),
    (
        lambda body: CreateRequest.parse(body.replace(b"Infinity", b"1e999")),
        {"dataset": "d", "lease_seconds": float("inf")},
        "lease_seconds",
    ),
    *(
        (CreateRequest.parse, {**STAGED, **more}, "create: ")
        for more in (
            {"mode": "overwrite"},
            {"write": "w"},
            {"mode": "replace", "write": "w"},
            {"mode": "new", "write": "w", "kind": "stream"},
            {"mode": "new", "write": "w", "producers": 2},
            {"mode": "new", "write": "a b"},
        )
    ),
    (
        lambda body: DatasetRequest.parse(body, "drop", needed=False),
        {"y": 1, "x": 2},
        "unknown key 'x', 'y'; known are dataset, generation, staged$",
    ),
]


@pytest.mark.parametrize(("parse", "body", "wrong"), REFUSED)
def test_a_body_that_is_none_is_refused_with_what_is_wrong(
    parse: Callable[[bytes], object], body: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        parse(json.dumps(body).encode())


@given(NAMES)
def test_a_legal_name_is_itself(name: str) -> None:
    assert check_dataset_name(name) == name
    assert Ticket.parse(name.encode()) == Ticket(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "/a", "..", "a/../b", "a b", "ä", "a\n", "a\0", "x" * 201, "a%", "a\\b", 7, None, b"a", "a/0"),
        *(".", "./x", "a/./b", "a//b", "a/", "a/."),  # HTTP clients rewrite these
    ],
)
def test_an_illegal_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        check_dataset_name(name)


def test_a_number_at_the_end_is_a_partitions_and_no_part_of_a_name() -> None:
    assert Ticket.parse(b"a/b/3") == Ticket("a/b", 3)
    assert Ticket.parse(b"a/b/partitions/3") == Ticket("a/b/partitions", 3)
    with pytest.raises(
        InvalidRequest, match=r"'a/b/3' is not a dataset name, but partition 3 of 'a/b': .*'a/b-3'"
    ):
        check_dataset_name("a/b/3")
    for text in (b"a/3/3", b"a/1234567", b"/3"):
        with pytest.raises(InvalidRequest):
            Ticket.parse(text)


@pytest.mark.parametrize(("given_", "text"), [(17, "17"), ("a.b:c-1_", "a.b:c-1_"), (2**63, str(2**63))])
def test_an_attempt_is_text_or_an_integer(given_: object, text: str) -> None:
    assert check_attempt(given_) == text


@pytest.mark.parametrize("attempt", ["", "a b", "x" * 101, True, 1.5, None, [], "ä"])
def test_another_attempt_is_refused(attempt: object) -> None:
    with pytest.raises(InvalidRequest, match="attempt must be"):
        check_attempt(attempt)


@given(PARTITIONS)
def test_a_partition_index_parses_to_itself(index: int) -> None:
    assert parse_partition(partition_metadata(index).decode()) == index


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", " 1", "1_0", "٣", "1" * 7, "0x1", str(MAX_PARTITIONS)]
)
def test_another_partition_index_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a partition index"):
        parse_partition(text)


def test_a_path_is_a_dataset_and_perhaps_a_partition() -> None:
    assert parse_path([b"a/b"]) == ("a/b", None)
    assert parse_path([b"a", b"7"]) == ("a", 7)
    for wrong in ([], [b"a", b"1", b"2"], [b"\xff"], [b"a", b"x"]):
        with pytest.raises(InvalidRequest):
            parse_path(wrong)


@pytest.mark.parametrize("name", ["a", "a.b", ".a", "a./b", "a/.b/c", "-", "a:b=c", "a/b=7", "7", "a/7/b"])
def test_another_legal_name_may_be_given(name: str) -> None:
    assert check_dataset_name(name) == name
