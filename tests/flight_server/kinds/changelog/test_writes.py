"""What a put may say in ``_diff``, which nulls it may have, and what of it the event loop does itself."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.kinds.changelog import writes
from flight_server.kinds.changelog.runs import RunFile
from flight_server.kinds.changelog.writes import MAX_DIFF, ChangelogWrite
from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol import BadFrame, DatasetDropped, HoldRequest, OutOfBudget
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine

SCHEMA = pa.schema([("a", pa.int64())])


def batch(diffs: list[int | None], kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1] * len(diffs)), pa.array(diffs, kind)], ["a", "_diff"])


@pytest.mark.parametrize(
    ("diffs", "kind"),
    [
        ([1, MAX_DIFF + 1], pa.int64()),
        ([-MAX_DIFF - 1], pa.int64()),
        ([-(2**63)], pa.int64()),
        ([2**64 - 1, 0], pa.uint64()),
        ([1, None], pa.int8()),
    ],
)
def test_a_diff_whose_sums_could_overflow_or_that_is_null_is_refused(
    tmp_path: Path, diffs: list[int | None], kind: pa.DataType
) -> None:
    engine = Engine(tmp_path, SCHEMA, None)
    with pytest.raises(BadFrame, match="_diff"):
        engine.run(engine._commit(batch(diffs, kind), None))
    assert engine.changelog.upper == 0
    engine.close()


def test_diffs_of_any_integer_type_are_added_up(tmp_path: Path) -> None:
    engine = Engine(tmp_path, SCHEMA, None)
    for diffs, kind in (
        ([3], pa.uint64()),
        ([-1, -1], pa.int8()),
        ([], pa.int16()),
        ([MAX_DIFF], pa.uint32()),
    ):
        engine.run(engine._commit(batch(list(diffs), kind), None))
    assert engine.deltas(0, 3) == {(1,): 1}
    assert engine.deltas(0, 4) == {(1,): 1 + MAX_DIFF}
    assert engine.deltas(3, 4) == {(1,): MAX_DIFF}
    engine.close()


STRICT = pa.field("x", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (STRICT, [1], [1, None]),
        (pa.field("s", pa.struct([STRICT])), [{"x": 1}, None], [{"x": None}]),
        (pa.field("l", pa.list_(STRICT)), [[1], [], None], [[1, None]]),
        (pa.field("f", pa.list_(STRICT, 1)), [[1], None], [[None]]),
        (pa.field("m", pa.map_(pa.string(), STRICT)), [[("a", 1)], None], [[("a", None)]]),
        (pa.field("d", pa.list_(pa.struct([STRICT]))), [[{"x": 1}], None], [[], [{"x": None}]]),
    ],
)
def test_a_null_where_the_schema_declares_none_is_refused(
    tmp_path: Path, field: pa.Field, good: list[Any], bad: list[Any]
) -> None:
    with closing(Engine(tmp_path, pa.schema([field]), None)) as engine:
        put = pa.RecordBatch.from_arrays([pa.array(good, field.type)], schema=pa.schema([field]))
        assert engine.run(engine._commit(put, None)) == 1
        loose = pa.schema([field.with_nullable(True)])
        put = pa.RecordBatch.from_arrays([pa.array(bad, field.type)], schema=loose)
        with pytest.raises(BadFrame, match=f"'{field.name}' has nulls, and the changelog's schema"):
            engine.run(engine._commit(put, None))
        assert engine.changelog.upper == 1


def test_nulls_in_the_values_of_a_dictionary_are_nulls(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, pa.schema([STRICT]), None)) as engine:
        coded = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([1, None]))
        with pytest.raises(BadFrame, match="'x' has nulls"):
            engine.run(engine._commit(pa.RecordBatch.from_arrays([coded], ["x"]), None))


def rows_of_bytes(count: int, size_bytes: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([bytes([n % 256]) * size_bytes for n in range(count)])], names=["b"])


WORD = pa.array(["word"] * 2)


@pytest.mark.parametrize(
    ("put", "in_loop"),
    [
        (rows_of_bytes(250, 200), True),
        (rows_of_bytes(250, 400), False),
        (rows_of_bytes(1, 100_000), False),
        (pa.record_batch([pa.array([[1], []])], names=["nested"]), False),
        (pa.record_batch([pa.array([{"x": 1}])], names=["nested"]), False),
        (pa.record_batch([WORD.dictionary_encode()], names=["coded"]), False),
        (pa.record_batch([WORD] * 65, names=[f"c{n}" for n in range(65)]), False),
    ],
)
def test_only_a_put_of_few_bytes_and_flat_columns_is_sorted_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: pa.RecordBatch, in_loop: bool
) -> None:
    sorted_in: list[bool] = []
    updates = ChangelogWrite._updates

    def watched(write: ChangelogWrite, batches: list[pa.RecordBatch]) -> Any:
        sorted_in.append(threading.current_thread() is threading.main_thread())
        return updates(write, batches)

    monkeypatch.setattr(ChangelogWrite, "_updates", watched)
    with closing(Engine(tmp_path, put.schema, None)) as engine:
        engine.run(engine._commit(put, None))
    assert sorted_in == [in_loop]


class CountedReservation(Reservation):
    """Counts how often its size is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        CountedReservation.looks += name == "size_bytes"
        return super().__getattribute__(name)


def test_a_batch_costs_the_same_however_many_batches_and_dictionaries_came_before(tmp_path: Path) -> None:
    pool = MemoryPool(None)
    row = pa.record_batch([pa.array([1])], schema=SCHEMA)
    with closing(Engine(tmp_path, SCHEMA, None)) as engine:

        async def work() -> list[int]:
            write = engine.store.write(engine.catalogue.find(NAME))
            looks = []
            for _ in range(300):
                before = CountedReservation.looks
                await write.add(row, CountedReservation(pool), [CountedReservation(pool)])
                looks.append(CountedReservation.looks - before)
            write.abort()
            return looks

        assert max(engine.run(work())) < 10


def test_the_event_loop_reads_no_run_file_for_a_large_put_that_retracts_during_a_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "CHUNK_ROWS", 4)
    blocks: list[bool] = []
    block = RunFile.block

    def watched(run: RunFile, number: int) -> Any:
        blocks.append(threading.current_thread() is threading.main_thread())
        return block(run, number)

    monkeypatch.setattr(RunFile, "block", watched)
    with closing(Engine(tmp_path, SCHEMA, None)) as engine:
        engine.commit([((n,), 1) for n in range(8)])
        going = engine.begin_fold(1, to_file=True)
        while engine.store.threads.submit(next, going.steps, None).result() is not None:
            pass
        engine.commit([((n,), -1) for n in range(6)])
        assert isinstance(engine.changelog.contents.recent[-1], RunFile)
        engine.publish(going)
        assert blocks
        assert not any(blocks)
        assert engine.deltas(1, 2) == {(n,): -1 for n in range(6)}


def test_at_the_disk_limit_puts_are_refused_and_retractions_and_the_ends_of_holds_are_taken(
    tmp_path: Path,
) -> None:
    with closing(Engine(tmp_path, SCHEMA, None)) as engine:
        engine.commit([((n,), 1) for n in range(8)])
        hold = HoldRequest(NAME, "reader", lease_seconds=600.0)
        engine.run(engine.store.hold(engine.catalogue.find(NAME), hold, anyone(engine.catalogue)))
        pool = engine.disk.pool
        pool.limit_bytes = 8 << 20
        others = pool.reserve((7 << 20) - pool.used_bytes)

        async def together() -> list[Any]:
            puts = [engine._commit(batch([diff], pa.int64()), None) for diff in (1, -1, 1)]
            return await asyncio.gather(*puts, return_exceptions=True)

        first, second, third = engine.run(together())
        assert isinstance(first, OutOfBudget)
        assert second == 2
        assert isinstance(third, OutOfBudget)
        others.grow((1 << 20) - 4000)
        released = engine.run(
            engine.store.hold(
                engine.catalogue.find(NAME), replace(hold, release=True), anyone(engine.catalogue)
            )
        )
        assert released["version"] == 1
        with pytest.raises(OutOfBudget, match="disk limit"):
            engine.commit([((1,), -1)])
        others.free()
        assert engine.commit([((9,), 1)]) == 3


def test_a_put_that_goes_on_after_a_drop_is_told_so_also_when_the_changelog_was_forgotten(
    tmp_path: Path,
) -> None:
    with closing(Engine(tmp_path, SCHEMA, None)) as engine:
        dataset = engine.catalogue.find(NAME)
        engine.changelog.close("was dropped")
        for _ in range(2):
            with pytest.raises(DatasetDropped):
                engine.store.write(dataset)
            engine.store.expire_holds()
