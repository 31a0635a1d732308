"""Calls are made after the collection of an object, wherever the collector runs."""

from __future__ import annotations

import gc
import threading

from spark_client.jobs.persisting import AfterCollection


class Thing:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.me = self


def test_a_call_is_made_by_another_thread_so_that_the_collecting_one_may_hold_its_lock() -> None:
    after, lock, made = AfterCollection(), threading.Lock(), threading.Event()

    def call() -> None:
        with lock:
            made.set()

    thing = Thing()
    after.add(thing, call)
    with lock:
        del thing
        gc.collect()
    assert made.wait(60)
    after.close()
    after.close()


def test_a_call_that_was_taken_back_or_comes_after_the_close_is_not_made() -> None:
    after, made = AfterCollection(), list[str]()
    taken_back, late, waiting = Thing(), Thing(), Thing()
    after.add(taken_back, lambda: made.append("taken back")).detach()
    after.add(late, lambda: made.append("late"))
    after.add(waiting, lambda: made.append("waiting"))
    del taken_back, waiting
    gc.collect()
    after.close()
    del late
    gc.collect()
    assert made == ["waiting"]
