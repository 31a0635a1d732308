"""A function may overwrite the memory of a batch that it has given: the kept batch does not change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.arrow.coalescer import Coalescer
from spark_client.arrow.own_memory import Lent, own
from spark_client.arrow.sizes import allocations
from spark_client.arrow.types import Declared
from spark_client.steps import NO_LIMITS, GroupedSide, GroupStage, MapStage, run

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=6), max_size=8)
Batches = Iterator[Any]


class Reused:
    """Two arrays that every batch is a view of; they are overwritten as soon as the next batch is asked for."""

    def __init__(self) -> None:
        self._arrays = np.zeros(64, np.int64), np.zeros(64, np.int64)

    def batch(self, rows: list[tuple[int, int]]) -> Any:
        for array, column in zip(self._arrays, zip(*rows, strict=True), strict=False):
            array[: len(rows)] = column
        return pa.record_batch([pa.array(array[: len(rows)]) for array in self._arrays], schema=SCHEMA)

    def batches(self, rows: list[list[tuple[int, int]]]) -> Batches:
        for some in rows:
            yield self.batch(some)
            for array in self._arrays:
                array[:] = -1


def map_stage(fn: Callable[[Batches], Any]) -> MapStage:
    return MapStage(fn, Declared("a map", SCHEMA))


def group_stage(fn: Callable[..., Any], *, iterates: bool = False) -> GroupStage:
    return GroupStage(
        fn, Declared("groups", SCHEMA, by_name=True), (GroupedSide.alone(("k",), SCHEMA),), False, iterates
    )


def rows_of(batches: Any) -> list[tuple[int, int]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def reuses(rows: list[list[tuple[int, int]]]) -> MapStage:
    return map_stage(lambda _: Reused().batches(rows))


def holds_three(batches: Batches) -> Batches:
    """Gives each batch two batches later, as a function with a window does."""
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if len(held) == 3:
            yield held.pop(0)
    yield from held


@given(rows=ROWS)
def test_a_later_stage_may_keep_batches(rows: list[list[tuple[int, int]]]) -> None:
    stages = (reuses(rows), map_stage(holds_three), map_stage(lambda batches: iter(list(batches))))
    assert rows_of(run(stages, iter([]))) == list(itertools.chain(*rows))


@given(rows=ROWS)
def test_groups_are_of_the_rows_that_were_given(rows: list[list[tuple[int, int]]]) -> None:
    expected = [
        row
        for k in dict.fromkeys(k for k, _ in itertools.chain(*rows))
        for row in itertools.chain(*rows)
        if row[0] == k
    ]
    found = run((reuses(rows), group_stage(lambda table: table)), iter([]))
    assert rows_of(found) == expected


@pytest.mark.parametrize("iterates", [False, True])
@given(rows=ROWS)
def test_a_groups_result_stays_when_the_next_group_is_worked_on(
    rows: list[list[tuple[int, int]]], iterates: bool
) -> None:
    memory = Reused()

    def gives_tables(table: pa.Table) -> pa.Table:
        return pa.Table.from_batches([memory.batch(rows_of([table]))])

    def gives_batches(batches: Batches) -> Batches:
        return memory.batches([rows_of([batch])[:1] for batch in batches for _ in range(2)])

    whole = [Reused().batch(some) for some in rows if some]
    stages = (group_stage(gives_batches if iterates else gives_tables, iterates=iterates),)
    expected = rows_of(run((group_stage(lambda table: table),), iter(whole)))
    if iterates:
        expected = [
            row
            for k in dict.fromkeys(k for k, _ in expected)
            for row in [next(r for r in expected if r[0] == k)] * 2
        ]
    assert rows_of(run(stages, iter(whole))) == expected


@pytest.mark.parametrize("partitions", [1, 3])
@given(rows=ROWS)
def test_a_writer_may_gather_batches(partitions: int, rows: list[list[tuple[int, int]]]) -> None:
    coalescer = Coalescer(SCHEMA, partitions)
    frames: list[Any] = []
    for batch in run((reuses(rows),), iter([])):
        partition_of = batch.column("k").to_numpy() % partitions
        frames += coalescer.add(batch, partition_of)
    frames += coalescer.finish()
    given_rows = list(itertools.chain(*rows))
    expected = [row for part in range(partitions) for row in given_rows if row[0] % partitions == part]
    assert rows_of(frame for _, frame in frames) == expected


def test_columns_that_only_pass_through_are_not_copied() -> None:
    """Also slices of them; columns that the function made are copied."""
    rows = 10_000
    source = pa.record_batch([pa.array(range(rows)), pa.array(range(rows))], schema=SCHEMA)
    made = np.arange(rows - 1)

    def adds(batches: Batches) -> Batches:
        for batch in batches:
            yield pa.record_batch([batch.column(0).slice(1), pa.array(made)], schema=SCHEMA)

    (found,) = run((map_stage(adds),), iter([source]))
    addresses = [column.buffers()[1].address for column in found.columns]
    assert addresses[0] == source.column(0).buffers()[1].address
    made[:] = -1
    assert rows_of([found]) == [(n + 1, n) for n in range(rows - 1)]


def test_an_input_that_the_function_has_released_is_not_taken_for_its_memory() -> None:
    """Another input is lent by then, so that the memory of the first may belong to anything."""
    source = [pa.record_batch([pa.array([n]), pa.array([n])], schema=SCHEMA) for n in range(3)]
    lent = Lent()
    given = NO_LIMITS.cut(iter(source), lent)
    first, second = next(given), next(given)
    assert not lent.holds(first.column(0))
    assert lent.holds(second.column(0))
    assert list(given) == source[2:]
    assert not lent.holds(second.column(0))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([True, None, False] * 3),
        pa.array(["a", None, "bb"]),
        pa.array(["a", None, "bb"], pa.large_string()),
        pa.array([b"a", None]),
        pa.array([15, None], pa.decimal128(10, 0)),
        pa.array([0, 1], pa.timestamp("us", "UTC")),
        pa.array([[1, 2], None, []]),
        pa.array([{"a": [1], "b": "x"}, None, {"a": None, "b": None}]),
        pa.array([[{"a": "x"}], None]),
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        pa.nulls(3),
    ],
    ids=lambda array: str(array.type),
)
@pytest.mark.parametrize("times", [1, 30_000], ids=["small", "large"])
def test_a_copy_shares_nothing_whatever_the_type(array: Any, times: int) -> None:
    many = pa.concat_arrays([array] * times)
    for part in (many, many.slice(1)):
        batch = pa.record_batch([part], names=["a"])
        copy = own(batch, Lent())
        assert copy.equals(batch)
        shared = allocations(copy.columns).keys() & allocations([part]).keys()
        assert not shared
