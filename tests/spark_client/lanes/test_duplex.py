"""Answers that arrive in any pieces, and bytes that are sent in any pieces."""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.protocol.errors import NotFound
from spark_client.connection import Timeouts
from spark_client.lanes import bulk_put
from spark_client.lanes.bulk_put import TLS_BLOCK_BYTES, AnswerReader, Duplex
from spark_client.lanes.http import Arrivals, Connection
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


@at_its_own_pace
@given(st.lists(st.integers(1, 3 * TLS_BLOCK_BYTES), max_size=12))
def test_blocks_for_tls_are_the_same_bytes_and_few(sizes: list[int]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    blocks = list(bulk_put._blocks(parts))
    assert b"".join(blocks) == b"".join(parts)
    small = [len(block) for block in blocks if len(block) <= TLS_BLOCK_BYTES]
    large = sum(size > TLS_BLOCK_BYTES for size in sizes)
    assert len(small) <= 2 * sum(small) // TLS_BLOCK_BYTES + 1 + large


@at_its_own_pace
@given(st.lists(st.binary(min_size=1, max_size=9), max_size=9), st.data())
def test_what_was_sent_is_dropped_from_the_front(parts: list[bytes], data: st.DataObject) -> None:
    left, whole = deque(memoryview(part) for part in parts), b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    for start, end in itertools.pairwise([0, *cuts, len(whole)]):
        bulk_put._drop(left, end - start)
        assert b"".join(left) == whole[end:]
    assert not left


@pytest.fixture
def pair() -> Iterator[tuple[Duplex, socket.socket]]:
    """A duplex, and the server's end of its connection."""
    near, far = socket.socketpair()
    connection = Connection(("", 0), None, Timeouts())
    connection.sock, connection.file = near, Arrivals(near)
    yield Duplex(connection, 10), far
    connection.close()
    far.close()


def test_an_error_that_came_just_before_the_connection_broke_wins(
    pair: tuple[Duplex, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    duplex_, far = pair

    def broken(_: object) -> int:
        far.sendall(ERROR)
        far.close()
        raise BrokenPipeError("broken pipe")

    monkeypatch.setattr(duplex_, "_send_some", broken)
    with pytest.raises(NotFound, match="it is not here"):
        duplex_.send([b"x"])


def test_without_an_error_the_connections_own_is_raised(
    pair: tuple[Duplex, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    duplex_, _ = pair

    def broken(_: object) -> int:
        raise BrokenPipeError("broken pipe")

    monkeypatch.setattr(duplex_, "_send_some", broken)
    with pytest.raises(BrokenPipeError):
        duplex_.send([b"x"])


def test_any_number_of_parts_is_sent_in_order(pair: tuple[Duplex, socket.socket]) -> None:
    duplex_, far = pair
    parts = [bytes([number % 256]) * (number % 7 + 1) for number in range(3 * bulk_put.PARTS_AT_ONCE)]
    duplex_.send(parts)
    assert far.recv(1 << 20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == b"".join(parts)


def test_a_part_without_bytes_ends_no_send(pair: tuple[Duplex, socket.socket]) -> None:
    duplex_, far = pair
    duplex_.send([b"", b"one", b"", b"two", b""])
    assert far.recv(100) == b"onetwo"
