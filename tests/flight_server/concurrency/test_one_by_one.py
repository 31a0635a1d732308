"""Work that is done one piece after the other in threads that others use, too."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from flight_server.concurrency import OneByOne


def test_work_keeps_its_order_and_leaves_the_other_threads_alone() -> None:
    gate, done = threading.Event(), list[int]()
    with ThreadPoolExecutor(2) as threads:
        slow, quick = OneByOne(threads), OneByOne(threads)
        first = slow.submit(gate.wait)
        rest = [slow.submit(done.append, number) for number in range(20)]
        assert quick.submit(lambda: "done").result(60) == "done"
        assert not first.done()
        assert done == []
        gate.set()
        for each in rest:
            each.result(60)
    assert done == list(range(20))


def test_an_error_belongs_to_its_work_and_cancelled_work_is_left_out() -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        turns = OneByOne(threads)
        turns.submit(gate.wait)
        wrong, left_out = turns.submit(int, "x"), turns.submit(int, "1")
        assert left_out.cancel()
        last = turns.submit(int, "2")
        gate.set()
        assert last.result(60) == 2
        with pytest.raises(ValueError, match="invalid literal"):
            wrong.result(60)
        with pytest.raises(CancelledError):
            left_out.result(60)
    with pytest.raises(RuntimeError, match="shutdown"):
        turns.submit(int)
