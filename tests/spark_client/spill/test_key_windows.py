"""Windows hold each row once, and the rows of a key together, whatever the budget."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flight_server.keys import row_hashes
from flight_server.protocol import OutOfBudget
from spark_client.spill import TaskMemory, Window, windows
from tests.support.examples import examples

SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("row", pa.int64()),
        ("text", pa.string()),
        ("list", pa.list_(pa.struct([("x", pa.int16())]))),
        ("nothing", pa.null()),
    ],
    metadata={b"of": b"a side"},
)


def by_key(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    return row_hashes([batch.column("k")], batch.num_rows)


def few(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Hashes that many keys share, the lowest and the highest among them."""
    shared: NDArray[np.uint64] = np.array([0, 12345, (1 << 64) - 1], np.uint64)[by_key(batch) % np.uint64(3)]
    return shared


def batches_of(keys: Sequence[Sequence[int | None]]) -> list[pa.RecordBatch]:
    """A batch for each list of keys, with values made from the rows' numbers."""
    found, row = [], 0
    for some in keys:
        numbers = range(row, row + len(some))
        row += len(some)
        columns: dict[str, list[Any]] = {
            "k": list(some),
            "row": list(numbers),
            "text": [None if n % 5 == 0 else "t" * (n % 7) for n in numbers],
            "list": [None if n % 4 == 0 else [{"x": n % 100}] * (n % 3) for n in numbers],
            "nothing": [None for _ in numbers],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
        # A slice, as what a stage may give.
        whole = pa.concat_batches([pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)] * 2)
        found.append(whole.slice(len(some)))
    return found


def seen(
    sides: Sequence[list[pa.RecordBatch]], hashes: Sequence[Any], memory: TaskMemory
) -> list[tuple[bool, list[list[dict[str, Any]]]]]:
    found = []
    for window in windows([iter(side) for side in sides], hashes, memory):
        given = [list(side) for side in window.sides]
        for side, batches, rows in zip(sides, given, window.sides, strict=True):
            for batch in batches:
                batch.validate(full=True)
                assert batch.schema.equals(side[0].schema, check_metadata=True)
            assert rows.rows == sum(batch.num_rows for batch in batches)
        _fits(window, memory)
        found.append(
            (window.one_hash, [[row for b in batches for row in b.to_pylist()] for batches in given])
        )
        # As often as one iterates.
        assert [[row for batch in rows for row in batch.to_pylist()] for rows in window.sides] == found[-1][1]
    return found


def _fits(window: Window, memory: TaskMemory) -> None:
    assert window.one_hash or sum(side.size_bytes for side in window.sides) <= memory.budget_bytes


KEYS = st.lists(st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=30), max_size=12)
BUDGETS = st.sampled_from([0, 1, 700, 5_000, 20_000, 1 << 20])


GIANT = [[7] * 400 + [number] for number in range(40)]
LATER = [*([[7, *range(100, 200)]] * 10), *([[7] * 100] * 30)] * 2
"""Has most rows of a key in later batches only."""
CHANCE = random.Random(1)
MANY = [[CHANCE.choice((5, CHANCE.randrange(1000))) for _ in range(20)] for _ in range(40)]


@settings(max_examples=examples(0.6))
@given(st.lists(KEYS, min_size=1, max_size=2), BUDGETS, st.sampled_from([by_key, few]))
@example([GIANT], 26 << 10, by_key)
@example([LATER], 11 << 10, by_key)
@example([MANY, MANY[:3]], 1_500, by_key)
def test_windows_have_each_row_once_the_rows_of_a_hash_together_and_in_order(
    keys: list[list[list[int | None]]], budget_bytes: int, hashes: Any
) -> None:
    memory = TaskMemory(budget_bytes)
    sides = [batches_of(some) for some in keys]
    found = seen(sides, [hashes] * len(sides), memory)
    for number, side in enumerate(sides):
        expected: dict[int, list[dict[str, Any]]] = {}
        for batch in side:
            for hashed, row in zip(hashes(batch).tolist(), batch.to_pylist(), strict=True):
                expected.setdefault(hashed, []).append(row)
        of_hash: dict[int, list[dict[str, Any]]] = {}
        rows = {row["row"]: hashed for hashed, some in expected.items() for row in some}
        for one_hash, window in found:
            hashes_here = {rows[row["row"]] for row in window[number]}
            assert not hashes_here & of_hash.keys(), "a hash in two windows"
            assert not one_hash or len(hashes_here) <= 1
            for row in window[number]:
                of_hash.setdefault(rows[row["row"]], []).append(row)
        assert of_hash == expected
    if memory.spilled_bytes and len(sides) == 2:
        for _, window in found:
            assert any(window), "a window without rows"


def test_what_fits_is_one_window_without_a_hash_and_without_a_file() -> None:
    def never(_: pa.RecordBatch) -> NDArray[np.uint64]:
        raise AssertionError("a hash was computed")

    memory = TaskMemory(1 << 20, "/no/such/directory")
    sides = [batches_of([[1, 2], [], [3]]), batches_of([])]
    (window,) = windows([iter(side) for side in sides], [never, never], memory)
    assert [rows.rows for rows in window.sides] == [3, 0]
    assert not window.one_hash
    assert memory.spilled_bytes == 0


@pytest.mark.long
def test_a_key_with_most_rows_of_either_side_is_written_once() -> None:
    def side(skew: float) -> list[pa.RecordBatch]:
        random = np.random.default_rng(int(skew * 10))
        keys = random.integers(1, 1 << 30, (40, 5_000)).astype(np.int32)
        keys[random.random(keys.shape) < skew] = 0
        return [pa.record_batch({"k": each, "v": each.astype(np.int64)}) for each in keys]

    even, skewed = side(0.0), side(0.8)
    for sides in ([even, skewed], [skewed, even]):
        memory = TaskMemory(1 << 20)
        found = [window.one_hash for window in windows([iter(each) for each in sides], [by_key] * 2, memory)]
        assert found.count(True) == 1
        assert memory.spilled_bytes < 1.3 * sum(batch.nbytes for each in sides for batch in each)


def test_rows_of_a_window_are_gone_when_the_next_one_is_requested() -> None:
    sides = [batches_of([[7] * 3000, list(range(1000))])]
    found = windows([iter(side) for side in sides], [by_key], TaskMemory(16 << 10))
    before = list(next(found).sides)
    reading: Iterator[pa.RecordBatch] | None = None
    for window in found:
        with pytest.raises(ValueError, match="released"):
            list(before[0])
        if reading is not None:
            with pytest.raises(ValueError, match="released"):
                list(reading)
        reading = None
        if window.one_hash:
            reading = iter(window.sides[0])
            next(reading)
        before = list(window.sides)


def test_a_slice_counts_with_what_it_keeps_alive_and_is_copied_before_anything_is_written() -> None:
    memory = TaskMemory(4 << 20, "/no/such/directory")
    columns = pa.record_batch({"k": pa.array(range(100_000), pa.int32()), "row": pa.array(range(100_000))})

    def slices() -> Iterator[pa.RecordBatch]:
        for _ in range(40):
            yield pa.concat_batches([columns]).slice(500, 10)

    before_bytes = pa.total_allocated_bytes()
    (window,) = windows([slices()], [by_key], memory)
    assert window.sides[0].rows == 400
    assert pa.total_allocated_bytes() - before_bytes < memory.budget_bytes
    assert memory.spilled_bytes == 0


def test_memory_stays_near_the_budget_while_runs_are_written_and_read() -> None:
    rows = 20_000

    def source() -> Iterator[pa.RecordBatch]:
        for number in range(75):
            keys = (np.arange(rows) * 7919 + number) % 3000
            yield pa.record_batch(
                {"k": keys.astype(np.int32), "v": np.random.default_rng(number).random(rows)}
            )

    memory = TaskMemory(4 << 20)
    before_bytes = pa.total_allocated_bytes()
    peak_bytes = found = 0
    for window in windows([source()], [by_key], memory):
        peak_bytes = max(peak_bytes, pa.total_allocated_bytes() - before_bytes)
        found += window.sides[0].rows
    assert found == rows * 75
    assert peak_bytes < memory.budget_bytes
    assert memory.spilled_bytes >= found * 12


def test_a_file_that_cannot_be_written_says_where() -> None:
    sides = [batches_of([[1, 2, 3]])]
    with pytest.raises(OutOfBudget, match="/no/such/directory"):
        list(windows([iter(side) for side in sides], [by_key], TaskMemory(10, "/no/such/directory")))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at the process's open files")
def test_files_are_closed_when_the_windows_end_or_are_abandoned(tmp_path: Path) -> None:
    def opened() -> int:
        gc.collect()
        count = 0
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                count += str(each.readlink()).startswith(str(tmp_path))
        return count

    sides = [batches_of([list(range(50))] * 8)]
    for wanted in (1, 1 << 30):
        found = windows([iter(side) for side in sides], [by_key], TaskMemory(2_000, str(tmp_path)))
        assert list(islice(found, wanted))
        assert opened() == (1 if wanted == 1 else 0)
        del found
        assert opened() == 0
    assert not list(tmp_path.iterdir())


def test_an_error_of_a_side_ends_the_windows_with_it() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches_of([list(range(100))])
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        list(windows([broken()], [by_key], TaskMemory(100)))
