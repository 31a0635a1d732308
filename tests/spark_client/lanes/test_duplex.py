"""Answers that arrive in any pieces, and bytes that are sent in any pieces."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.protocol.errors import NotFound
from spark_client.connection import Timeouts
from spark_client.lanes import bulk_put
from spark_client.lanes.bulk_put import AnswerReader, Duplex
from spark_client.lanes.http import Connection
from tests.support.put_source import said

at_its_own_pace = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ERROR = said(b"E", NotFound("it is not here").to_json().encode())


@at_its_own_pace
@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from([b"", said(b"K"), ERROR]), st.data())
def test_answers_are_the_same_wherever_they_are_cut(
    results: list[bytes], last: bytes, data: st.DataObject
) -> None:
    said_ = b"".join(said(b"R", result) for result in results) + last
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said_)), max_size=8)))
    answers = AnswerReader()
    for start, end in itertools.pairwise([0, *cuts, len(said_)]):
        answers.feed(said_[start:end])
    assert answers.results == results
    assert answers.accepted == (last == said(b"K"))
    assert (answers.error is not None) == (last == ERROR)
    assert answers.ended == bool(last)


def test_what_follows_the_last_word_is_not_heard() -> None:
    answers = AnswerReader()
    answers.feed(said(b"K") + ERROR + b"and more")
    assert answers.accepted
    assert answers.error is None


def test_answers_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_put, "MAX_ANSWER_BYTES", 1_000)
    answers = AnswerReader()
    for _ in range(100):
        answers.feed(said(b"R", b"12345"))
    with pytest.raises(ConnectionAbortedError, match="longer than 1000 bytes"):
        answers.feed(b"R")
    with pytest.raises(ConnectionAbortedError, match="is not an answer"):
        AnswerReader().feed(b"R\0\0\x10\0")


@pytest.fixture
def pair() -> Iterator[tuple[Duplex, socket.socket]]:
    """A duplex, and the server's end of its connection."""
    near, far = socket.socketpair()
    connection = Connection(("", 0), None, Timeouts())
    connection.speak_over(near)
    yield Duplex(connection, 10), far
    connection.close()
    far.close()


def test_any_number_of_parts_is_sent_in_order(pair: tuple[Duplex, socket.socket]) -> None:
    duplex_, far = pair
    parts = [bytes([number % 256]) * (number % 7 + 1) for number in range(3 * bulk_put.PARTS_AT_ONCE)]
    duplex_.send(parts)
    assert far.recv(1 << 20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == b"".join(parts)


def test_a_part_without_bytes_ends_no_send(pair: tuple[Duplex, socket.socket]) -> None:
    duplex_, far = pair
    duplex_.send([b"", b"one", b"", b"two", b""])
    assert far.recv(100) == b"onetwo"
