"""Shuffles over the wire: exactly the rows of the accepted attempts, each whole, or a refusal that says why."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.held import message_bytes
from tests.support.polling import eventually
from tests.support.raw_flight import (
    OpenPut,
    RawFlight,
    Refused,
    command,
    commit,
    field,
    path,
    put_messages,
)
from tests.support.server_process import ServerProcess

SERVER_OPTIONS = {"http_port": "-1", "memory_limit": "128MiB"}

pytestmark = pytest.mark.usefixtures("spotless")

PARTITIONS = 4
SCHEMA = pa.schema([("row", pa.string())])


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawFlight]:
    """A connection, and a shuffle ``s`` of two producers' attempts."""
    with RawFlight(server.location) as raw:
        raw.action("create", {"dataset": "s", "kind": "shuffle", "partitions": PARTITIONS})
        yield raw


def batch(*rows: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, pa.string())], schema=SCHEMA)


def attempt_messages(
    producer: int,
    attempt: str,
    frames: Iterable[tuple[int | str, pa.RecordBatch]],
    *,
    last: bytes | None = None,
    **more: Any,
) -> list[bytes]:
    """A whole attempt; ``last`` instead of the commit of what was sent, nothing if it is empty."""
    frames = list(frames)
    descriptor = command({"dataset": "s", "producer": producer, "attempt": attempt, **more})
    places = iter([str(partition).encode() for partition, _ in frames])
    batches = [each for _, each in frames]
    messages = put_messages(descriptor, batches, schema=SCHEMA, metadata=places)
    if last is None:
        last = commit(sum(each.num_rows for each in batches), len(batches))
    return [*messages, last] if last else messages


def write(raw: RawFlight, producer: int, attempt: str, *frames: tuple[int, pa.RecordBatch]) -> dict[str, Any]:
    """Write and commit one attempt; the answer of the commit."""
    (answer,) = raw.put(attempt_messages(producer, attempt, frames))
    parsed: dict[str, Any] = json.loads(answer)
    return parsed


def rows(server: ServerProcess, partition: int) -> list[str]:
    with flight.connect(server.location) as client:
        table = client.do_get(flight.Ticket(b"s/%d" % partition)).read_all()
    found: list[str] = table["row"].to_pylist()
    return found


def refused(raw: RawFlight, messages: list[bytes]) -> Refused:
    with pytest.raises(Refused) as caught:
        raw.put(messages)
    return caught.value


def attempts(raw: RawFlight) -> dict[str, int]:
    """How many attempts there are in each state."""
    return dict(raw.action("statistics")["datasets"]["s"]["attempt_states"])


def states(**counts: int) -> dict[str, int]:
    return counts


def test_the_rows_are_those_of_the_accepted_attempts_in_order_of_their_producers(
    raw: RawFlight, server: ServerProcess
) -> None:
    write(raw, 1, "retry", (0, batch("1r-a")), (3, batch("1r-b")), (0, batch("1r-c")))
    write(raw, 0, "first", (0, batch("0f-a")), (1, batch("0f-b")))
    write(raw, 1, "speculative", (0, batch("1s-a")), (3, batch("1s-b")))
    sealed = raw.action("seal", {"dataset": "s", "attempts": {"0": "first", "1": "retry"}})
    assert (sealed["rows"], sealed["frames"]) == (5, 5)
    assert [rows(server, each) for each in range(PARTITIONS)] == [
        ["0f-a", "1r-a", "1r-c"],
        ["0f-b"],
        [],
        ["1r-b"],
    ]


def test_without_a_word_the_first_commit_of_each_producer_is_accepted(
    raw: RawFlight, server: ServerProcess
) -> None:
    write(raw, 0, "a", (0, batch("first")))
    write(raw, 0, "b", (0, batch("second")))
    raw.action("seal", {"dataset": "s"})
    assert rows(server, 0) == ["first"]


def test_the_last_of_the_declared_producers_seals(raw: RawFlight, server: ServerProcess) -> None:
    raw.action("drop", {"dataset": "s"})
    raw.action("create", {"dataset": "s", "kind": "shuffle", "partitions": PARTITIONS, "producers": 2})
    write(raw, 0, "a", (0, batch("0")))
    write(raw, 0, "b", (0, batch("0 again")))
    assert not raw.action("statistics")["datasets"]["s"]["sealed"]
    write(raw, 1, "a", (0, batch("1")))
    assert raw.action("statistics")["datasets"]["s"]["sealed"]
    assert rows(server, 0) == ["0", "1"]


def test_a_commit_is_answered_with_its_totals(raw: RawFlight) -> None:
    frames = [(2, batch("a", "b")), (0, batch("c")), (2, batch())]
    answer = write(raw, 7, "x", *frames)
    sizes = [len(message) for message in attempt_messages(7, "x", frames)[1:-1]]
    assert answer["committed"] is True
    assert (answer["rows"], answer["bytes"]) == (3, sum(sizes))
    assert answer.keys() == {
        "committed",
        "rows",
        "bytes",
        "generation",
        "start",
    }  # sums only, none for each partition


def test_nothing_can_be_read_before_the_seal_and_a_waiting_reader_gets_it_then(
    raw: RawFlight, server: ServerProcess
) -> None:
    write(raw, 0, "a", (1, batch("x")))
    reading = raw.call("DoGet", field(1, b"s/1"))
    next(reading)  # the schema comes at once
    eventually(lambda: len(raw.action("why", {"dataset": "s"})["waits"]), 1)
    raw.action("seal", {"dataset": "s"})
    assert len(list(reading)) == 1


def test_sealing_without_an_attempt_gives_empty_partitions(raw: RawFlight, server: ServerProcess) -> None:
    raw.action("drop", {"dataset": "s"})
    with flight.connect(server.location) as client:
        schema = SCHEMA.serialize().to_pybytes()
        body = {
            "dataset": "s",
            "kind": "shuffle",
            "partitions": 2,
            "schema": base64.b64encode(schema).decode(),
        }
        list(client.do_action(flight.Action("create", json.dumps(body).encode())))
    write(raw, 0, "a", (0, batch("x")))
    raw.action("seal", {"dataset": "s", "attempts": {}})
    assert rows(server, 0) == rows(server, 1) == []


BAD = "INVALID_ARGUMENT"
BROKEN_ATTEMPTS: dict[str, tuple[list[bytes], str, str]] = {
    "a partition that is not there": (
        attempt_messages(3, "t", [(4, batch("x"))]),
        BAD,
        "0 to 3",
    ),
    "no partition": (attempt_messages(3, "t", [("", batch("x"))]), BAD, "app_metadata"),
    "more rows than came": (
        attempt_messages(3, "t", [(0, batch("x"))], last=commit(2, 1)),
        BAD,
        "commits 2 rows in 1 frames, but 1 rows in 1 frames arrived",
    ),
    "fewer frames than came": (
        attempt_messages(3, "t", [(0, batch("x"))], last=commit(1, 0)),
        BAD,
        "0 frames",
    ),
    "a commit without totals": (
        attempt_messages(3, "t", [], last=field(3, b'{"commit":{}}')),
        BAD,
        "needs",
    ),
    "no commit": (attempt_messages(3, "t", [(0, batch("x"))], last=b""), BAD, "without its commit"),
    "a partition in the command": (
        attempt_messages(3, "t", [], partition=0),
        BAD,
        "app_metadata",
    ),
    "another generation": (attempt_messages(3, "t", [], generation="old"), "NOT_FOUND", "generation"),
    "no producer": (put_messages(path("s"), [batch("x")]), BAD, '"producer": task index'),
}


@pytest.mark.parametrize("case", BROKEN_ATTEMPTS)
def test_a_broken_attempt_leaves_nothing_behind_and_can_be_tried_again(
    raw: RawFlight, server: ServerProcess, case: str
) -> None:
    messages, status, words = BROKEN_ATTEMPTS[case]
    error = refused(raw, messages)
    assert error.status == status
    assert words in error.message
    assert "dataset 's'" in error.message
    if case not in {"no producer", "another generation"}:
        assert "producer 3 attempt t" in error.message
    assert attempts(raw) == states()
    eventually(lambda: message_bytes(raw.action("statistics")), 0)
    write(raw, 3, "t", (0, batch("good")))
    raw.action("seal", {"dataset": "s", "attempts": {"3": "t"}})
    assert rows(server, 0) == ["good"]


@pytest.mark.parametrize(
    "more",
    [
        commit(1, 1),
        attempt_messages(0, "a", [(0, batch("late"))])[1],
        b"",
        b"\xff garbage",
    ],
    ids=["a second commit", "a batch", "an empty message", "garbage"],
)
def test_what_comes_after_the_commit_is_refused_and_cannot_undo_it(
    raw: RawFlight, server: ServerProcess, more: bytes
) -> None:
    error = refused(raw, [*attempt_messages(0, "a", [(0, batch("x"))]), more])
    assert error.status == "INVALID_ARGUMENT"
    assert attempts(raw) == states(committed=1)
    raw.action("seal", {"dataset": "s"})
    assert rows(server, 0) == ["x"]


def test_an_attempt_that_has_committed_cannot_be_used_again(raw: RawFlight, server: ServerProcess) -> None:
    write(raw, 0, "a", (0, batch("x")))
    error = refused(raw, attempt_messages(0, "a", [(0, batch("y"))]))
    assert error.status == "INVALID_ARGUMENT"
    assert "producer 0 attempt a is already committed" in error.message
    raw.action("seal", {"dataset": "s"})
    assert rows(server, 0) == ["x"]


def test_an_attempt_that_is_being_written_cannot_be_written_twice(
    raw: RawFlight, server: ServerProcess
) -> None:
    with OpenPut(raw) as open_put:
        for message in attempt_messages(0, "a", [(0, batch("x"))], last=b""):
            open_put.send(message)
        eventually(lambda: attempts(raw), states(writing=1))
        error = refused(raw, attempt_messages(0, "a", [(0, batch("y"))]))
        assert "is already writing" in error.message
        open_put.send(commit(1, 1))
    raw.action("seal", {"dataset": "s"})
    assert rows(server, 0) == ["x"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"0": "a", "1": "a"}, "producer 1 attempt a is unknown here, not committed"),
        ({"0": "b"}, "producer 0 attempt b is unknown here, not committed"),
        ({"0": "zombie"}, "producer 0 attempt zombie is writing, not committed"),
    ],
)
def test_sealing_with_an_attempt_that_has_not_committed_changes_nothing(
    raw: RawFlight, server: ServerProcess, wanted: dict[str, str], words: str
) -> None:
    write(raw, 0, "a", (0, batch("x")))
    with OpenPut(raw) as zombie:
        zombie.send(attempt_messages(0, "zombie", [])[0])
        eventually(lambda: attempts(raw), states(writing=1, committed=1))
        with pytest.raises(Refused) as caught:
            raw.action("seal", {"dataset": "s", "attempts": wanted})
        assert caught.value.status == "INVALID_ARGUMENT"
        assert words in caught.value.message
        assert attempts(raw) == states(writing=1, committed=1)
        zombie.send(commit(0, 0))
    raw.action("seal", {"dataset": "s", "attempts": {"0": "a"}})
    assert rows(server, 0) == ["x"]


def test_an_attempt_is_told_when_others_were_accepted(raw: RawFlight, server: ServerProcess) -> None:
    write(raw, 0, "a", (0, batch("x")))
    first, frame, last = attempt_messages(0, "zombie", [(0, batch("zombie"))])
    zombie = OpenPut(raw)
    zombie.send(first)
    eventually(lambda: attempts(raw), states(writing=1, committed=1))
    raw.action("seal", {"dataset": "s"})
    zombie.send(frame)
    zombie.send(last)
    with pytest.raises(Refused, match=r"was discarded.*stop this task") as caught:
        zombie.finish()
    assert caught.value.status == "INVALID_ARGUMENT"
    late = refused(raw, attempt_messages(1, "late", []))
    assert "is sealed: producer 1 attempt late comes too late" in late.message
    assert rows(server, 0) == ["x"]
