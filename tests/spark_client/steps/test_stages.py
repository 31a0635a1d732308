"""Stages keep Spark's signatures, run in one pass, and name themselves when they fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest, PartitionFailed
from spark_client.arrow.types import Declared
from spark_client.pyspark_parts import PandasConversion
from spark_client.steps import BatchLimits, GroupedSide, GroupStage, MapStage, Pass, run, with_settings
from spark_client.steps import group_stage as stage_of_groups

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def batch(keys: list[str | None], values: list[int]) -> Any:
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.int64())], schema=SCHEMA
    )


def map_stage(fn: Any, stage: str = "stage 1 (mapInArrow fn)") -> MapStage:
    return MapStage(fn, Declared(stage, SCHEMA))


def group_stage(fn: Any, *, with_keys: bool = False, iterates: bool = False) -> GroupStage:
    declared = Declared("stage 2 (applyInArrow fn)", SCHEMA, by_name=True)
    return GroupStage(fn, declared, (GroupedSide.alone(("k",), SCHEMA),), with_keys, iterates)


def rows(batches: Iterator[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for found in batches for row in found.to_pylist()]


def test_a_batch_has_passed_all_stages_before_the_next_one_is_asked_for() -> None:
    seen: list[str] = []

    def source() -> Iterator[Any]:
        for number in range(2):
            seen.append(f"source {number}")
            yield batch(["a"], [number])

    def noting(name: str) -> Any:
        def fn(batches: Iterator[Any]) -> Iterator[Any]:
            for found in batches:
                seen.append(f"{name} {found.column('v')[0].as_py()}")
                yield found

        return fn

    stages = (map_stage(noting("first")), map_stage(noting("second")))
    assert rows(run(stages, source())) == [("a", 0), ("a", 1)]
    assert seen == ["source 0", "first 0", "second 0", "source 1", "first 1", "second 1"]


def test_a_function_gets_variants_that_are_null_beside_instants_in_the_sessions_zone() -> None:
    """As Spark 4.1 makes them: the fields, which are declared to have no nulls, are null, too."""
    fields = [pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")]
    variants = pa.StructArray.from_arrays(
        [pa.nulls(1, pa.binary())] * 2, fields=fields, mask=pa.array([True])
    )
    zoned = pa.record_batch({"at": pa.array([0], pa.timestamp("us", "UTC")), "v": variants})

    def check(batches: Iterator[Any]) -> Iterator[Any]:
        (argument,) = batches
        assert argument.schema.types == [pa.timestamp("us", "Asia/Tokyo"), variants.type]
        yield batch(["a"], [argument["v"].null_count])

    settings = PandasConversion(
        "Asia/Tokyo", safe=True, by_name=True, int_to_decimal=True, int_extension=False, large=False
    )
    assert rows(run(with_settings([map_stage(check)], settings), iter([zoned]))) == [("a", 1)]


@pytest.mark.parametrize("group_rows", [1, 128])
def test_results_of_small_groups_are_put_together(group_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_of_groups, "BATCH_ROWS", 1024)
    count = 1024 + 10
    given = batch([str(number // group_rows) for number in range(count)], list(range(count)))
    found = list(run([group_stage(lambda table: table)], iter([given])))
    assert [len(part) for part in found] == [1024, 10]
    assert rows(iter(found)) == rows(iter([given]))


def test_empty_input_reaches_a_map_function_and_makes_no_groups() -> None:
    def one(batches: Iterator[Any]) -> Iterator[Any]:
        assert list(batches) == []
        yield batch(["only"], [1])

    assert rows(run([map_stage(one)], iter([]))) == [("only", 1)]
    assert rows(run([group_stage(lambda _: pytest.fail("called"))], iter([]))) == []


def test_an_error_of_a_function_is_noted_with_its_own_stage_only() -> None:
    def bad(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)
        raise KeyError("what the function said")

    stages = (map_stage(bad, "stage 1 (mapInArrow bad)"), map_stage(lambda batches: batches, "stage 2"))
    with pytest.raises(KeyError, match="what the function said") as caught:
        list(run(stages, iter([batch(["a"], [1])])))
    assert caught.value.__notes__ == ["raised in stage 1 (mapInArrow bad)"]


def test_an_error_of_the_input_is_not_blamed_on_a_function() -> None:
    def lost() -> Iterator[Any]:
        yield batch(["a"], [1])
        raise PartitionFailed("what the server said")

    stages = (map_stage(lambda batches: (each for each in batches)), group_stage(lambda table: table))
    with pytest.raises(PartitionFailed, match="what the server said") as caught:
        list(run(stages, lost()))
    assert caught.value.__notes__ == ["raised by what the stages read, not by their functions"]


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda _: None, "returned NoneType; it must return an iterator"),
        (lambda _: pa.table({"k": ["a"]}), "returned Table; it must return an iterator"),
        (
            lambda _: iter([pa.table({"k": ["a"]})]),
            r"gave Table where pyarrow.RecordBatch is expected; `yield from pyarrow.table\(result\)",
        ),
    ],
)
def test_a_result_of_the_wrong_kind_is_named(fn: Any, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        list(run([map_stage(fn)], iter([])))


def test_a_group_result_of_the_wrong_kind_is_named() -> None:
    for fn, iterates, what in (
        (lambda table: table.to_pydict(), False, r"gave dict where pyarrow\.Table is expected\n"),
        (lambda table: table.to_pandas(), False, r"gave DataFrame .*; `pyarrow\.table\(result\)` makes one"),
        (lambda table: table.drop_columns("v"), False, "missing 'v'"),
        (lambda _: None, True, "returned NoneType; it must return an iterator"),
    ):
        with pytest.raises(InvalidRequest, match=rf"^stage 2 \(applyInArrow fn\): .*{what}"):
            list(run([group_stage(fn, iterates=iterates)], iter([batch(["a"], [1])])))


@pytest.mark.parametrize(("limits", "expected"), [
    (BatchLimits(), [10, 3]),
    (BatchLimits(rows=4), [4, 4, 2, 3]),
    (BatchLimits(rows=-1, size_bytes=-1), [10, 3]),
    (BatchLimits(size_bytes=40), [2, 2, 2, 2, 2, 2, 1]),
    (BatchLimits(size_bytes=1), [1] * 13),
])  # fmt: skip
def test_functions_are_given_batches_within_the_limits(limits: BatchLimits, expected: list[int]) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    given = [pa.record_batch([pa.array(range(n))] * 2, schema=schema) for n in (10, 3)]
    declared = Declared("a stage", schema)
    seen: list[list[int]] = [[], []]

    def counting(number: int) -> Any:
        def fn(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                seen[number].append(len(batch))
                yield batch

        return fn

    def whole(batches: Iterator[Any]) -> Iterator[Any]:
        yield pa.concat_batches(list(batches)).slice(0, 10)
        yield given[1]

    stages = [MapStage(fn, declared) for fn in (counting(0), whole, counting(1))]
    list(run(stages, iter(given), Pass(limits=limits)))
    assert seen == [expected, expected]


def test_a_group_function_that_iterates_is_given_batches_within_the_limits() -> None:
    seen: list[int] = []

    def fn(batches: Iterator[Any]) -> Iterator[Any]:
        for found in batches:
            seen.append(len(found))
            yield found

    stage = group_stage(fn, iterates=True)
    given = batch(["a"] * 7, list(range(7)))
    assert rows(run([stage], iter([given]), Pass(limits=BatchLimits(rows=3)))) == rows(iter([given]))
    assert seen == [3, 3, 1]


def test_a_group_may_have_no_result() -> None:
    assert list(run([group_stage(lambda _: pa.table({}))], iter([batch(["a"], [1])]))) == []
