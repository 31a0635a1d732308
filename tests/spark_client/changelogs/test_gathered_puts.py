"""Gathering of small puts, against a put whose every call the test lets go."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest, OutOfBudget
from spark_client.changelogs import gathered_puts
from spark_client.changelogs.gathered_puts import GatheredKind, GatheringWriter
from spark_client.changelogs.put_rows import PutRows
from spark_client.lanes import Closed
from tests.support.polling import eventually

pytestmark = pytest.mark.usefixtures("hasty")

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = PutRows("d", SCHEMA)
WAIT_SECONDS = 30.0


class FakePut:
    """A put that waits for the test. Limits: one put at a time; versions count up from 1; rows are only recorded."""

    def __init__(self) -> None:
        self.begun: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._version = 0

    def __call__(self, batches: list[Any]) -> int:
        self.begun.put(ROWS.joined(batches)["n"].to_pylist())
        outcome = self._outcomes.get(timeout=WAIT_SECONDS)
        if outcome is not None:
            raise outcome
        self._version += 1
        return self._version

    def next(self) -> list[int]:
        """The numbers of the put that has begun."""
        return self.begun.get(timeout=WAIT_SECONDS)

    def end(self, outcome: BaseException | None = None) -> None:
        self._outcomes.put(outcome)


@pytest.fixture
def put() -> FakePut:
    return FakePut()


@pytest.fixture
def writer(put: FakePut) -> Iterator[GatheringWriter]:
    # Without a linger the first add is put alone.
    with writer_of(put, linger_seconds=0) as made:
        yield made
        for _ in range(10):
            put.end()


def writer_of(put: FakePut, *, linger_seconds: float = 3600.0, limit_bytes: int = 1 << 20) -> GatheringWriter:
    def prepared(numbers: list[int]) -> list[pa.RecordBatch]:
        return ROWS.batches(pa.table({"n": pa.array(numbers)}))

    return GatheringWriter(
        GatheredKind(prepared, put),
        GatheredKind(lambda numbers: prepared([-number for number in numbers]), put),
        linger_seconds=linger_seconds,
        limit_bytes=limit_bytes,
    )


def test_what_is_added_during_a_put_goes_into_the_next_one_in_order(
    writer: GatheringWriter, put: FakePut
) -> None:
    first = writer.add([1])
    assert put.next() == [1]
    others = [writer.add([number, number]) for number in range(2, 5)]
    assert not first.done()
    put.end()
    assert put.next() == [2, 2, 3, 3, 4, 4]
    put.end()
    assert [each.result(WAIT_SECONDS) for each in [first, *others]] == [1, 2, 2, 2]


def test_deletes_are_puts_of_their_own_in_the_order_of_the_calls(
    writer: GatheringWriter, put: FakePut
) -> None:
    futures = [writer.add([1])]
    assert put.next() == [1]
    calls = [(writer.add, 2), (writer.add, 3), (writer.delete, 4), (writer.delete, 5), (writer.add, 6)]
    futures += [call([number]) for call, number in calls]
    for wanted in ([2, 3], [-4, -5], [6]):
        put.end()
        assert put.next() == wanted
    put.end()
    assert [each.result(WAIT_SECONDS) for each in futures] == [1, 2, 2, 3, 3, 4]


def test_an_add_does_not_linger_when_a_delete_follows_it(put: FakePut) -> None:
    with writer_of(put) as writer:
        futures = [writer.add([1]), writer.delete([2])]
        assert put.next() == [1]
        put.end()
        put.end()
    assert [each.result(WAIT_SECONDS) for each in futures] == [1, 2]


def test_an_add_lingers_for_others_until_the_writer_is_closed(put: FakePut) -> None:
    writer = writer_of(put)
    futures = [writer.add([number]) for number in range(100)]
    put.end()
    writer.close()
    assert put.next() == list(range(100))
    assert {future.result(WAIT_SECONDS) for future in futures} == {1}
    writer.close()


def test_an_add_does_not_linger_anew_when_the_put_before_it_ends(
    put: FakePut, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_seconds = 0.0
    monkeypatch.setattr(gathered_puts, "time", SimpleNamespace(monotonic=lambda: clock_seconds))
    with writer_of(put) as writer:
        futures = [writer.add([1]), writer.delete([2])]
        assert put.next() == [1]
        clock_seconds = 3600.0
        put.end()
        assert put.next() == [-2]
        put.end()
        assert [each.result(WAIT_SECONDS) for each in futures] == [1, 2]


def test_adds_of_enough_bytes_do_not_linger(put: FakePut) -> None:
    with writer_of(put, limit_bytes=1 << 30) as writer:
        future = writer.add([7] * 1_100_000)
        assert len(put.next()) == 1_100_000
        put.end()
        assert future.result(WAIT_SECONDS) == 1


def test_a_writer_rests_when_nothing_is_added_and_goes_on_with_the_next_add(
    put: FakePut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered_puts, "REST_SECONDS", 0.001)
    rested: queue.SimpleQueue[None] = queue.SimpleQueue()
    both = GatheredKind(ROWS.batches, put)
    with GatheringWriter(both, both, lambda: rested.put(None)) as writer:
        for version in (1, 2):
            future = writer.add(pa.table({"n": [version]}))
            assert put.next() == [version]
            assert rested.empty()
            put.end()
            assert future.result(WAIT_SECONDS) == version
            rested.get(timeout=WAIT_SECONDS)
    rested.get(timeout=WAIT_SECONDS)
    assert rested.empty()


def test_an_error_reaches_every_add_of_its_put_and_no_other(writer: GatheringWriter, put: FakePut) -> None:
    first = writer.add([1])
    put.next()
    failing = [writer.add([number]) for number in (2, 3)]
    put.end()
    assert put.next() == [2, 3]
    after = writer.add([4])
    error = OutOfBudget("no room", limit_bytes=1)
    put.end(error)
    put.next()
    put.end()
    assert (first.result(WAIT_SECONDS), after.result(WAIT_SECONDS)) == (1, 2)
    found = [future.exception(WAIT_SECONDS) for future in failing]
    assert [type(each) for each in found] == [OutOfBudget, OutOfBudget]
    assert found[0] is not found[1]
    assert all(each is not None and each.__cause__ is error for each in found)


def test_rows_that_do_not_fit_are_refused_at_once_and_harm_no_other_add(
    writer: GatheringWriter, put: FakePut
) -> None:
    with pytest.raises(InvalidRequest, match="'n' is string"):
        writer.add(["a"])
    future = writer.add([1])
    put.next()
    put.end()
    assert future.result(WAIT_SECONDS) == 1


def test_an_add_waits_for_room_and_gets_it_when_a_put_has_ended(put: FakePut) -> None:
    # An add of one row has 8 bytes.
    with writer_of(put, linger_seconds=0, limit_bytes=16) as writer:
        futures = [writer.add([1])]
        put.next()
        futures.append(writer.add([2]))
        added = threading.Event()

        def add() -> None:
            futures.append(writer.add([3]))
            added.set()

        thread = threading.Thread(target=add)
        thread.start()
        eventually(lambda: len(writer._changed._waiters) == 1, expected=True)  # type: ignore[attr-defined]
        assert not added.is_set()
        put.end()
        assert put.next() == [2]
        thread.join(WAIT_SECONDS)
        put.end()
        assert put.next() == [3]
        put.end()
        assert [each.result(WAIT_SECONDS) for each in futures] == [1, 2, 3]


def test_an_add_beyond_the_limit_is_taken_when_nothing_else_is_held(put: FakePut) -> None:
    with writer_of(put, linger_seconds=0, limit_bytes=1) as writer:
        future = writer.add([1, 2, 3])
        assert put.next() == [1, 2, 3]
        put.end()
        assert future.result(WAIT_SECONDS) == 1


def test_closing_ends_an_add_that_waits_for_room(put: FakePut) -> None:
    writer = writer_of(put, linger_seconds=0, limit_bytes=1)
    future = writer.add([1])
    put.next()
    refused: list[BaseException] = []

    def add() -> None:
        with pytest.raises(Closed) as caught:
            writer.add([2])
        refused.append(caught.value)

    threads = [threading.Thread(target=add), threading.Thread(target=writer.close)]
    threads[0].start()
    eventually(lambda: len(writer._changed._waiters) == 1, expected=True)  # type: ignore[attr-defined]
    threads[1].start()
    threads[0].join(WAIT_SECONDS)
    assert len(refused) == 1
    put.end()
    threads[1].join(WAIT_SECONDS)
    assert future.result(WAIT_SECONDS) == 1


def test_a_cancelled_add_is_not_put(writer: GatheringWriter, put: FakePut) -> None:
    first = writer.add([1])
    put.next()
    cancelled, other = writer.add([2]), writer.add([3])
    assert cancelled.cancel()
    assert not first.cancel()
    put.end()
    assert put.next() == [3]
    put.end()
    assert other.result(WAIT_SECONDS) == 2
    with pytest.raises(CancelledError):
        cancelled.result()


def test_a_closed_writer_takes_nothing(put: FakePut) -> None:
    writer = writer_of(put)
    writer.close()
    with pytest.raises(Closed):
        writer.add([1])
