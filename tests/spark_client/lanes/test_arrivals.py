"""What a connection receives, against the bytes that were sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.lanes.http import BUFFER_BYTES, Arrivals


@pytest.fixture
def pair() -> Iterator[tuple[Arrivals, socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    yield Arrivals(near), far, near
    near.close()
    far.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=12), st.data())
def test_lines_and_bytes_come_once_and_in_order_however_they_are_sent(
    wanted: list[tuple[bool, int]], data: st.DataObject
) -> None:
    pieces = [b"x" * (size - 1) + b"\n" if line else b"\n." * size for line, size in wanted]
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    near, far = socket.socketpair()

    def send() -> None:
        with far:
            for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
                far.sendall(whole[start:end])

    sending = threading.Thread(target=send)
    sending.start()
    with near:
        arrivals = Arrivals(near)
        arrivals.wait_at_most(30)
        for (line, _), piece in zip(wanted, pieces, strict=True):
            if line:
                assert arrivals.readline(1 << 20) == piece
                continue
            got = memoryview(bytearray(len(piece)))
            done = 0
            while done < len(piece):
                count = arrivals.readinto(got[done:])
                assert count > 0
                done += count
            assert bytes(got) == piece
        assert arrivals.readline(10) == b""
        assert arrivals.readinto(memoryview(bytearray(1))) == 0
    sending.join()


def test_a_line_is_no_longer_than_the_limit(pair: tuple[Arrivals, socket.socket, socket.socket]) -> None:
    arrivals, far, _ = pair
    far.sendall(b"a" * 20 + b"\n")
    assert arrivals.readline(8) == b"a" * 8
    assert arrivals.readline(13) == b"a" * 12 + b"\n"
    long = b"b" * (BUFFER_BYTES + 10)
    far.sendall(long + b"\n")
    assert arrivals.readline(1 << 20) == long + b"\n"


def test_a_silent_peer_is_a_timeout_and_what_it_sends_then_is_read(
    pair: tuple[Arrivals, socket.socket, socket.socket],
) -> None:
    arrivals, far, _ = pair
    arrivals.wait_at_most(0.01)
    buffer = memoryview(bytearray(10))
    with pytest.raises(TimeoutError):
        arrivals.readline(10)
    with pytest.raises(TimeoutError):
        arrivals.readinto(buffer)
    far.sendall(b"abc")
    assert arrivals.readinto(buffer) == 3, "what came before the deadline is progress"
    assert bytes(buffer[:3]) == b"abc"
