"""Aggregates over any split of the rows, within any budget, equal Python's own arithmetic."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.protocol.errors import InvalidRequest
from spark_client.arrow import Declared
from spark_client.reducing import FUNCTIONS, Computed, Reduction, ResultColumn, StateColumn, count_rows
from spark_client.reducing.group_states import Sum
from spark_client.spill import TaskMemory
from spark_client.steps import FinalStage, PartialStage, Pass, run
from tests.support.examples import examples

SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("x", pa.float64()),
        ("p", pa.struct([("a", pa.string()), ("b", pa.float32())])),
        ("l", pa.list_(pa.float64())),
        ("v", pa.int64()),
        ("d", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
    ]
)

floats = st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e10, math.nan, math.inf, -math.inf])
rows = st.fixed_dictionaries(
    {
        "k": st.none() | st.integers(0, 3),
        "x": st.none() | st.sampled_from([0.0, -0.0, math.nan, 2.0]),
        "p": st.none()
        | st.fixed_dictionaries({"a": st.sampled_from(["a", None]), "b": st.sampled_from([0.0, -0.0, None])}),
        "l": st.none() | st.lists(st.sampled_from([0.0, -0.0, math.nan, None]), max_size=2),
        "v": st.none() | st.integers(-(2**60), 2**60) | st.integers(-5, 5),
        "d": st.none() | st.decimals(-9_999_999, 9_999_999, places=2),
        "f": st.none() | floats,
        "s": st.none() | st.text("aßz", max_size=3),
        "b": st.none() | st.booleans(),
    }
)
NUMBERS = ["sum", "avg", "min", "max", "count"]
MORE = ["product", "stddev", "var_pop", "median", "count_distinct", "collect_list"]
ALL = [("v", each) for each in [*NUMBERS, *MORE]]
ALL += [("d", each) for each in ["sum", "avg", "min", "max"]]
ALL += [("f", each) for each in ["min", "max", "sum", "count_distinct"]]
ALL += [("s", each) for each in ["min", "max", "count", "collect_set"]]
ALL += [("l", "count_distinct")]
ALL += [("b", each) for each in ["bool_or", "bool_and"]]


def stages(keys: Sequence[str], wanted: Sequence[tuple[str, str]], *, rows: bool = False) -> tuple[Any, Any]:
    """The two stages of ``aggregate``, as they reach the tasks."""
    computed: list[tuple[str, Computed]] = [("rows", count_rows())] if rows else []
    for column, name in wanted:
        computed.append((f"{name}({column})", FUNCTIONS[name].make(column, SCHEMA.field(column).type)))
    states: list[StateColumn] = []
    results = []
    for name, each in computed:
        states += [state for state in each.states if state not in states]
        results.append(ResultColumn(name, tuple(map(states.index, each.states)), each.finish))
    kept = [SCHEMA.field(key) for key in keys]
    schema = pa.schema([*kept, *((f"state{number}", state.type) for number, state in enumerate(states))])
    reduction = Reduction(tuple(keys), tuple(states), schema, "stage 1 (aggregate)")
    result = Declared(
        "stage 1 (aggregate)", pa.schema([*kept, *((name, each.type) for name, each in computed)])
    )
    made = PartialStage(reduction, Declared("partial", schema)), FinalStage(reduction, tuple(results), result)
    found: tuple[Any, Any] = pickle.loads(pickle.dumps(made))
    return found


def aggregated(
    tasks: Sequence[Sequence[dict[str, Any]]],
    keys: Sequence[str],
    wanted: Sequence[tuple[str, str]],
    how: Pass,
    *,
    rows: bool = False,
) -> list[dict[str, Any]]:
    """What the final stage makes of the partial stages' rows."""
    partial, final = stages(keys, wanted, rows=rows)
    sent: list[Any] = []
    for task in tasks:
        batches = [pa.RecordBatch.from_pylist(task[at : at + 3], SCHEMA) for at in range(0, len(task), 3)]
        sent += run([partial], iter(batches), how)
    assert all(batch.num_rows and batch.schema == partial.declared.schema for batch in sent)
    found = list(run([final], iter(sent), how))
    assert all(batch.num_rows and batch.schema == final.declared.schema for batch in found)
    return [row for batch in found for row in batch.to_pylist()]


def canonical(value: Any) -> Any:
    """Equal exactly where Spark's groups are."""
    if isinstance(value, dict):
        return tuple(canonical(each) for _, each in sorted(value.items()))
    if isinstance(value, list):
        return ["list", *map(canonical, value)]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def expected(name: str, values: list[Any]) -> Any:
    """In Python's arithmetic."""
    some = [value for value in values if value is not None]
    if name == "count":
        return len(some)
    if name.startswith("collect"):
        return sorted(set(some) if name == "collect_set" else some)
    if name == "count_distinct":
        return len({repr(canonical(value)) for value in some})
    if not some:
        return None
    ordered = sorted(some, key=lambda value: (isinstance(value, float) and math.isnan(value), value))
    if name in ("min", "max"):
        return ordered[0 if name == "min" else -1]
    if name in ("bool_or", "bool_and"):
        return any(some) if name == "bool_or" else all(some)
    return arithmetic(name, some)


def arithmetic(name: str, some: list[Any]) -> Any:
    if name == "sum":
        return sum(some)
    if name == "product":
        return math.prod(map(float, some))
    if name == "avg" and isinstance(some[0], Decimal):
        return (sum(some) / len(some)).quantize(Decimal("1e-6"), ROUND_HALF_UP)
    if name == "avg":
        return math.fsum(some) / len(some)
    if name == "median":
        return statistics.median(map(float, some))
    exact = statistics.pvariance([Decimal(value) for value in some])
    if name == "var_pop":
        return float(exact)
    return math.sqrt(exact * len(some) / (len(some) - 1)) if len(some) > 1 else None


def close(found: Any, wanted: Any) -> bool:
    if isinstance(found, list):
        return bool(sorted(found) == wanted)
    if isinstance(found, float) and isinstance(wanted, float):
        same = math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
        return same or (math.isnan(found) and math.isnan(wanted))
    return bool(found == wanted)


@settings(max_examples=examples(0.5))
@given(
    given_rows=st.lists(rows, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    keys=st.sampled_from([(), ("k",), ("x", "k"), ("p",), ("k", "l")]),
    budget_bytes=st.sampled_from([1, 2000, 1 << 27]),
    nested=st.booleans(),
)
def test_aggregates_equal_pythons_for_any_tasks_and_budget(
    given_rows: list[Any], cuts: list[int], keys: tuple[str, ...], budget_bytes: int, *, nested: bool
) -> None:
    wanted = ALL if nested else [each for each in ALL if each[1] in NUMBERS]
    tasks = [given_rows[start:end] for start, end in pairwise(sorted([0, *cuts, len(given_rows)]))]
    groups: dict[str, list[Any]] = defaultdict(list)
    for row in given_rows:
        groups[repr([canonical(row[key]) for key in keys])].append(row)
    if not keys:
        groups.setdefault("[]", [])
    found = aggregated(tasks, keys, wanted, Pass(memory=TaskMemory(budget_bytes)), rows=True)
    assert sorted(repr([canonical(row[key]) for key in keys]) for row in found) == sorted(groups)
    assert not any("-0.0" in repr([row[key] for key in keys]) for row in found)
    for row in found:
        group = groups[repr([canonical(row[key]) for key in keys])]
        assert row["rows"] == len(group)
        for column, name in wanted:
            wish = expected(name, [each[column] for each in group])
            assert close(row[f"{name}({column})"], wish), (name, column, row, wish)


def distinct_rows(count: int, groups: int) -> Iterator[Any]:
    for start in range(0, count, 5000):
        ids = np.arange(start, min(start + 5000, count))
        yield pa.record_batch({"k": (ids % groups).astype(np.int32), "v": ids})


@pytest.mark.parametrize("keys", [(), ("k",)])
def test_batches_without_rows_count_as_none(keys: tuple[str, ...]) -> None:
    partial, final = stages(keys, [("v", "sum"), ("v", "stddev"), ("v", "collect_list")], rows=True)
    empty = pa.RecordBatch.from_pylist([], SCHEMA)
    assert list(run([partial], iter([empty, empty]))) == []
    lifted = partial.reduction.lift(empty)
    found = [row for batch in run([final], iter([lifted])) for row in batch.to_pylist()]
    row: dict[str, Any] = {"rows": 0, "sum(v)": None, "stddev(v)": None, "collect_list(v)": []}
    assert found == ([] if keys else [row])


def test_a_task_reduces_its_rows_to_its_groups() -> None:
    partial, _ = stages(["k"], [("v", "sum")])
    found = list(run([partial], distinct_rows(100_000, 10)))
    assert sum(batch.num_rows for batch in found) == 10


@pytest.mark.long
def test_rows_of_keys_that_do_not_repeat_pass_as_they_come() -> None:
    partial, final = stages(["k"], [("v", "sum"), ("v", "avg"), ("v", "collect_list")])
    asked: list[int] = []

    def source() -> Iterator[Any]:
        for number, batch in enumerate(distinct_rows(100_000, 100_000)):
            asked.append(number)
            yield batch

    how = Pass(memory=TaskMemory(1 << 20))
    passing = run([partial], source(), how)
    first = [next(passing)]
    while len(asked) < 19:
        before = len(asked)
        first.append(next(passing))
        assert len(asked) <= before + 1, "a batch is given on before the next one is read"
    found = list(run([final], iter([*first, *passing]), how))
    assert sum(batch.num_rows for batch in found) == 100_000
    assert found[0].to_pylist()[0]["collect_list(v)"] == [found[0].to_pylist()[0]["sum(v)"]]


def test_more_groups_than_memory_are_merged_in_windows(tmp_path: Path) -> None:
    memory = TaskMemory(300_000, str(tmp_path))
    partial, final = stages(["k"], [("v", "sum"), ("v", "count")], rows=True)
    sent = [batch for _ in range(3) for batch in run([partial], distinct_rows(20_000, 20_000))]
    found = pa.Table.from_batches(list(run([final], iter(sent), Pass(memory=memory))))
    assert memory.spilled_bytes > 0
    assert found.num_rows == 20_000
    assert found.group_by("rows").aggregate([("k", "count")]).to_pylist() == [{"rows": 3, "k_count": 20_000}]
    assert sorted(found["sum(v)"].to_pylist()) == [3 * each for each in range(20_000)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keys", [(), ("k",)])
def test_a_sum_that_leaves_its_type_is_an_error_and_never_wraps(keys: tuple[str, ...]) -> None:
    def task(*values: Any) -> list[Any]:
        return [{**dict.fromkeys(SCHEMA.names), "k": 1, "v": value} for value in values]

    top = 2**63 - 1
    fits = aggregated([task(top, -5), task(-top, 5)], keys, [("v", "sum")], Pass())
    assert fits[0]["sum(v)"] == 0
    with pytest.raises(
        InvalidRequest, match=r"stage 1 \(aggregate\): the sum of column 'v' does not fit int64"
    ):
        aggregated([task(top), task(top), task(top), task(5)], keys, [("v", "sum")], Pass())


WIDE = pa.decimal128(38, 4)
"""Of a sum, whose values may have as many digits."""


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_sum_of_decimals_that_leaves_its_type_is_an_error_and_never_wraps(sign: str) -> None:
    state = Sum("d", WIDE)

    def reduced(values: list[Decimal]) -> Any:
        rows = pa.record_batch([pa.array(values, WIDE)], names=["sum"])
        return Reduction((), (state,), rows.schema, "stage 1 (aggregate)").merge([rows])

    top, step = Decimal(f"{sign}9999999999999999999999999999999999.9999"), Decimal(f"{sign}0.0001")
    assert reduced([top, -step, step])["sum"].to_pylist() == [top]
    with pytest.raises(InvalidRequest, match="the sum of column 'd' does not fit"):
        reduced([top, step])
    with pytest.raises(InvalidRequest, match="the sum of column 'd' does not fit"):
        reduced([top] * 4)


BUDGET_BYTES = 16 << 20


def peak(keys: Sequence[str], wanted: Sequence[tuple[str, str]], directory: str) -> tuple[int | None, int]:
    """The most that Arrow holds, and what is spilled, of rows six times the budget of which each key has three."""
    memory = TaskMemory(BUDGET_BYTES, directory)
    partial, final = stages(keys, wanted)
    random, count, batch_rows = (
        np.random.default_rng(1),
        6 * BUDGET_BYTES // 20,
        87_000,
    )  # some 2 MiB, as of an exchange

    def lifted() -> Iterator[pa.RecordBatch]:
        for _ in range(0, count, batch_rows):
            k = random.integers(0, count // 3, batch_rows)
            rows = {"k": k.astype(np.int32), "v": k, "f": k.astype(np.float64)}
            yield partial.reduction.lift(pa.record_batch(rows))

    for _ in run([final], lifted(), Pass(memory=memory)):
        pass
    return pa.default_memory_pool().max_memory(), memory.spilled_bytes


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "wanted"), [(["k"], [("f", name) for name in NUMBERS]), (["k", "v", "f"], [])]
)
def test_arrow_holds_no_more_than_one_and_a_half_budgets(
    keys: list[str], wanted: list[tuple[str, str]], tmp_path: Path
) -> None:
    # In a process of its own: a proxy of its pool does not see what Arrow's own query engine takes for groups.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        peak_bytes, spilled_bytes = process.submit(peak, keys, wanted, str(tmp_path)).result()
    assert peak_bytes is not None
    assert spilled_bytes > 6 * BUDGET_BYTES
    assert peak_bytes <= 1.5 * BUDGET_BYTES
