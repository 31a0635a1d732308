"""Answers taken apart however they come, and bytes that are sent in any pieces."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.errors import NotFound
from spark_client.lanes import duplex
from spark_client.lanes.duplex import TLS_BLOCK_BYTES, Answers
from tests.support.put_source import said

ERROR = said(b"E", NotFound("it is not here").to_json().encode())


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from([b"", said(b"K"), ERROR]), st.data())
def test_answers_are_the_same_wherever_they_are_cut(
    results: list[bytes], last: bytes, data: st.DataObject
) -> None:
    said_ = b"".join(said(b"R", result) for result in results) + last
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said_)), max_size=8)))
    answers = Answers()
    for start, end in itertools.pairwise([0, *cuts, len(said_)]):
        answers.feed(said_[start:end])
    assert answers.results == results
    assert answers.accepted == (last == said(b"K"))
    assert (answers.error is not None) == (last == ERROR)
    assert answers.ended == bool(last)


def test_what_follows_the_last_word_is_not_heard() -> None:
    answers = Answers()
    answers.feed(said(b"K") + ERROR + b"and more")
    assert answers.accepted
    assert answers.error is None


def test_answers_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplex, "MAX_ANSWER_BYTES", 1_000)
    answers = Answers()
    for _ in range(100):
        answers.feed(said(b"R", b"12345"))
    with pytest.raises(ConnectionAbortedError, match="longer than 1000 bytes"):
        answers.feed(b"R")
    with pytest.raises(ConnectionAbortedError, match="is not an answer"):
        Answers().feed(b"R\0\0\x10\0")


@given(st.lists(st.integers(1, 3 * TLS_BLOCK_BYTES), max_size=12))
def test_blocks_for_tls_are_the_same_bytes_and_few(sizes: list[int]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    blocks = list(duplex._blocks(parts))
    assert b"".join(blocks) == b"".join(parts)
    small = [len(block) for block in blocks if len(block) <= TLS_BLOCK_BYTES]
    large = sum(size > TLS_BLOCK_BYTES for size in sizes)
    assert len(small) <= 2 * sum(small) // TLS_BLOCK_BYTES + 1 + large


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=9), st.data())
def test_what_was_sent_is_dropped_from_the_front(parts: list[bytes], data: st.DataObject) -> None:
    left, whole = deque(memoryview(part) for part in parts), b"".join(parts)
    at = 0
    while left:
        count = data.draw(st.integers(0, len(whole) - at))
        duplex._drop(left, count)
        at += count
        assert b"".join(left) == whole[at:]
