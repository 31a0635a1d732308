"""Bytes that finalizers give back to a pool: at any moment, in any thread, without a wait."""

from __future__ import annotations

import sys
import threading

from flight_server.memory import MemoryPool, Reservation


def test_bytes_that_a_finalizer_gives_back_inside_the_lock_of_its_thread_are_counted_when_it_leaves() -> None:
    pool = MemoryPool(10)
    granted: list[Reservation] = []
    garbage = [pool.reserve(10)]
    for _ in range(2):
        pool.request(5, granted.append)
    with pool._lock:
        garbage.clear()  # as if the collector ran here
        assert (pool.used_bytes, len(granted)) == (10, 0), "nothing changes in the middle of a step"
    assert (pool.used_bytes, len(granted)) == (10, 2)


def test_a_finalizer_waits_for_no_thread_that_is_inside_the_lock() -> None:
    pool = MemoryPool(10)
    garbage = [pool.reserve(10)]
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with pool._lock:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    garbage.clear()
    assert pool.used_bytes == 10
    leave.set()
    thread.join()
    assert pool.used_bytes == 0


def test_what_many_threads_give_back_at_once_is_counted_once() -> None:
    pool = MemoryPool(None)

    def work() -> None:
        for _ in range(5000):
            reservation = pool.reserve(3)
            del reservation

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert pool.used_bytes == 0
