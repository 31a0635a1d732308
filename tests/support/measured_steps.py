"""Steps of a task over rows that are made while they are read.

Rows come in batches of about 2 MiB, each in memory of its own, as from an exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import Coalescer, Declared, SortKey
from spark_client.joining import AsOf, Column, How, JoinPlan, KeyForm, MatchKeys
from spark_client.placement import PlacedKeys, partition_ids
from spark_client.reducing import FUNCTIONS, Computed, Reduction, ResultColumn, StateColumn
from spark_client.spill import TaskMemory
from spark_client.steps import (
    AsofStage,
    Both,
    FinalStage,
    GroupedSide,
    GroupStage,
    JoinStage,
    MapStage,
    PartialStage,
    Pass,
    SampleStage,
    SortStage,
    TableJoinStage,
    TopStage,
    run,
)

MIB = 1 << 20
BATCH_BYTES = 2 * MIB
_POOL_ROWS = 4096

SHAPES: dict[str, list[tuple[str, pa.DataType]]] = {
    "numbers": [],
    "text": [("s", pa.string())],
    "nested": [
        ("n", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("l", pa.list_(pa.float64())),
    ],
}
"""The columns beside the key ``k``, the time ``t`` and the value ``v``."""


def schema_of(shape: str) -> pa.Schema:
    """The columns of all rows of the shape."""
    plain = [("k", pa.int64()), ("t", pa.int64()), ("v", pa.float64())]
    return pa.schema([*plain, *SHAPES[shape]])


def _pool(shape: str) -> list[pa.Array]:
    """The columns beside the plain ones, of rows that all batches take theirs from."""
    texts = [f"{number:0{200 + number % 600}}" for number in range(_POOL_ROWS)]
    columns = {
        "s": texts,
        "n": [{"a": number, "b": text[:60]} for number, text in enumerate(texts)],
        "l": [[float(number + each) for each in range(number % 12)] for number in range(_POOL_ROWS)],
    }
    return [pa.array(columns[name], kind) for name, kind in SHAPES[shape]]


@dataclass(frozen=True)
class Made:
    """Rows of a shape, about ``size_bytes`` of them; ``keys`` is how many rows a key has on average.

    Args:
        skew: which part of the rows has the key 0.
        repeated: whether all columns follow from the key.
    """

    shape: str
    size_bytes: int
    rows_of_key: float
    seed: int = 1
    skew: float = 0.0
    repeated: bool = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        schema, pool = schema_of(self.shape), _pool(self.shape)
        row_bytes = 24 + sum(column.nbytes for column in pool) / _POOL_ROWS
        rows, batch_rows = int(self.size_bytes / row_bytes), int(BATCH_BYTES / row_bytes)
        keys = max(1, int(rows / self.rows_of_key))
        random = np.random.default_rng(self.seed)
        for start in range(0, rows, batch_rows):
            count = min(batch_rows, rows - start)
            k: NDArray[np.int64] = random.integers(0, keys, count)
            if self.skew:
                k[random.random(count) < self.skew] = 0
            of = k if self.repeated else random.integers(0, 1 << 40, count)
            columns = [pa.array(k), pa.array(of), pa.array(of.astype(np.float64))]
            at = pa.array(of % _POOL_ROWS)
            yield pa.RecordBatch.from_arrays([*columns, *(column.take(at) for column in pool)], schema=schema)


@dataclass(frozen=True)
class Setting:
    """What a step is run with: ``size_bytes`` of rows, beside a budget of ``memory.budget_bytes``."""

    shape: str
    size_bytes: int
    memory: TaskMemory

    def rows(self, rows_of_key: float, **options: Any) -> Made:
        return Made(self.shape, options.pop("size_bytes", self.size_bytes), rows_of_key, **options)

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.shape)

    @property
    def how(self) -> Pass:
        return Pass(kept=True, memory=self.memory)

    def declared(self, schema: pa.Schema | None = None) -> Declared:
        return Declared("the step", self.schema if schema is None else schema, by_name=True)


Step = Callable[[Setting], Iterator[Any]]


def _mapped(setting: Setting) -> Iterator[Any]:
    return run([MapStage(lambda batches: batches, setting.declared())], iter(setting.rows(10)), setting.how)


def _written(setting: Setting) -> Iterator[Any]:
    """What the writer of an exchange of 200 partitions holds."""
    coalescer = Coalescer(setting.schema, 200, budget_bytes=setting.memory.budget_bytes)
    for batch in setting.rows(10):
        yield from (frame for _, frame in coalescer.add(batch, partition_ids(batch, ["k"], 200)))
    yield from (frame for _, frame in coalescer.finish())


def _sorted(key: str, setting: Setting) -> Iterator[Any]:
    name = key if key in setting.schema.names else "t"
    return run([SortStage(setting.declared(), (SortKey(name),))], iter(setting.rows(10)), setting.how)


def _top(setting: Setting) -> Iterator[Any]:
    return run([TopStage(10_000, (SortKey("t"),), setting.declared())], iter(setting.rows(10)), setting.how)


def _sampled(setting: Setting) -> Iterator[Any]:
    schema = pa.schema([setting.schema.field(-1), ("weight", pa.float64())])
    name = setting.schema.names[-1]
    stage = SampleStage(setting.declared(schema), (name,), 20_000, 1)
    return run([stage], iter(setting.rows(10)), Pass(kept=True, partition=0, memory=setting.memory))


_COUNTED = pa.schema([("k", pa.int64()), ("rows", pa.int64())])


def _count(table: pa.Table) -> pa.Table:
    return pa.table({"k": table["k"][:1], "rows": [table.num_rows]}, schema=_COUNTED)


def _count_both(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"k": [0], "rows": [left.num_rows + right.num_rows]}, schema=_COUNTED)


def _grouped(setting: Setting) -> Iterator[Any]:
    stage = GroupStage(
        _count,
        setting.declared(_COUNTED),
        (GroupedSide.alone(("k",), setting.schema),),
        with_keys=False,
        iterates=False,
    )
    return run([stage], iter(setting.rows(1000)), setting.how)


def _grouped_pandas(setting: Setting) -> Iterator[Any]:
    from pyspark.sql.types import LongType, StructType

    from spark_client.pyspark_parts import PandasConversion
    from spark_client.steps import PandasForm, PandasGroup

    result = StructType().add("k", LongType()).add("rows", LongType())
    conversion = PandasConversion(
        "UTC", safe=True, by_name=True, int_to_decimal=False, int_extension=False, large=False
    )
    form = PandasForm(result, _COUNTED, conversion)

    def count(frame: Any) -> Any:
        import pandas as pd

        return pd.DataFrame({"k": frame["k"][:1], "rows": [len(frame)]})

    fn = PandasGroup(count, form, with_keys=False, iterates=False)
    stage = GroupStage(
        fn,
        setting.declared(_COUNTED),
        (GroupedSide.alone(("k",), setting.schema),),
        with_keys=False,
        iterates=False,
    )
    return run([stage], iter(setting.rows(1000)), setting.how)


def _cogrouped(setting: Setting) -> Iterator[Any]:
    placed = PlacedKeys("repartition(1)", pa.schema([("k", pa.int64())]), 1)
    side = GroupedSide(("k",), (pa.int64(),), setting.schema, placed)
    stage = GroupStage(_count_both, setting.declared(_COUNTED), (side, side), with_keys=False, iterates=False)
    half = setting.size_bytes // 2
    both = Both(iter(setting.rows(1000, size_bytes=half)), iter(setting.rows(1000, size_bytes=half, seed=2)))
    return run([stage], both, setting.how)


def _plan(how: How, schema: pa.Schema) -> JoinPlan:
    """Of two sides of the schema, by ``k``; the right's columns get names of their own."""
    right = pa.schema([field.with_name(f"r_{field.name}") for field in schema])
    form = (KeyForm.of(pa.int64(), pa.int64(), "key"),)
    columns = [Column(name, None) for name in schema.names]
    fields = list(schema)
    if how != "semi":
        columns += [Column(None, name) for name in right.names]
        fields += list(right)
    keys = MatchKeys(("k",), form), MatchKeys(("r_k",), form)
    return JoinPlan(how, *keys, tuple(columns), schema, right, pa.schema(fields))


def _right(rows: Made, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in rows)


def _joined(how: How, skew: float, right_skew: float, setting: Setting) -> Iterator[Any]:
    half = setting.size_bytes // 2
    plan = _plan(how, setting.schema)
    left = setting.rows(1, size_bytes=half, skew=skew)
    right = setting.rows(1, size_bytes=half, skew=right_skew, seed=2)
    both = Both(iter(left), _right(right, plan.right_schema))
    return run([JoinStage(setting.declared(plan.schema), plan)], both, setting.how)


def _asof(setting: Setting) -> Iterator[Any]:
    half = setting.size_bytes // 2
    plan = _plan("left", setting.schema)
    left, right = setting.rows(100, size_bytes=half), setting.rows(100, size_bytes=half, seed=2)
    both = Both(iter(left), _right(right, plan.right_schema))
    stage = AsofStage(setting.declared(plan.schema), plan, AsOf("t", "r_t", pa.int64()))
    return run([stage], both, setting.how)


class _Table:
    """As a broadcast's: one table for a process."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.size_bytes = table.nbytes

    def table(self) -> pa.Table:
        return self._table


def _joined_with_table(setting: Setting) -> Iterator[Any]:
    """The table is made before; what counts is its index, of 500,000 rows."""
    plan = _plan("inner", setting.schema)
    count = 500_000
    numbers = np.arange(count)
    columns = [pa.array(numbers), pa.array(numbers), pa.array(numbers.astype(np.float64))]
    nulls = [pa.nulls(count, kind) for kind in plan.right_schema.types[3:]]
    table = _Table(pa.table([*columns, *nulls], schema=plan.right_schema))
    stage = TableJoinStage(setting.declared(plan.schema), plan, table, setting.declared(plan.right_schema))
    return run([stage], iter(setting.rows(1)), setting.how)


_FUNCTIONS = {
    "k": (),
    "v": ("sum", "avg", "min", "max", "count", "stddev", "product"),
}


def reduction(
    schema: pa.Schema, keys: tuple[str, ...], wanted: list[tuple[str, str]], carried: tuple[str, ...] = ()
) -> tuple[PartialStage, FinalStage]:
    """The two stages of ``aggregate``; of ``distinct`` without functions."""
    computed: list[tuple[str, Computed]] = [
        (f"{name}({column})", FUNCTIONS[name].make(column, schema.field(column).type))
        for column, name in wanted
    ]
    states: list[StateColumn] = []
    results = []
    for name, each in computed:
        states += [state for state in each.states if state not in states]
        results.append(ResultColumn(name, tuple(map(states.index, each.states)), each.finish))
    kept = [schema.field(name) for name in (*keys, *carried)]
    reduced = pa.schema([*kept, *((f"state{number}", state.type) for number, state in enumerate(states))])
    reduction = Reduction(keys, tuple(states), reduced, "the step", carried)
    result = pa.schema([*kept, *((name, each.type) for name, each in computed)])
    return (
        PartialStage(reduction, Declared("the step", reduced)),
        FinalStage(reduction, tuple(results), Declared("the step", result)),
    )


NUMERIC = [("v", name) for name in ("sum", "avg", "min", "max", "count")]
CODED = [("v", name) for name in ("stddev", "product")]
LISTS = [("v", name) for name in ("median", "collect_list")]


def _partial(rows_of_key: float, wanted: list[tuple[str, str]], setting: Setting) -> Iterator[Any]:
    partial, _ = reduction(setting.schema, ("k",), wanted)
    return run([partial], iter(setting.rows(rows_of_key)), setting.how)


def _final(rows_of_key: float, wanted: list[tuple[str, str]], setting: Setting) -> Iterator[Any]:
    """Over states as tasks send them that could not reduce their rows."""
    partial, final = reduction(setting.schema, ("k",), wanted)
    lifted = (partial.reduction.lift(batch) for batch in setting.rows(rows_of_key))
    return run([final], lifted, setting.how)


def _extremes(rows_of_key: float, setting: Setting) -> Iterator[Any]:
    """Of text where the shape has some."""
    name = "s" if "s" in setting.schema.names else "v"
    return _final(rows_of_key, [(name, "min"), (name, "max")], setting)


def _distinct(final: bool, rows_of_key: float, setting: Setting) -> Iterator[Any]:
    partial, last = reduction(setting.schema, tuple(setting.schema.names), [])
    rows = setting.rows(rows_of_key, repeated=True)
    if not final:
        return run([partial], iter(rows), setting.how)
    return run([last], (partial.reduction.lift(batch) for batch in rows), setting.how)


def _distinct_by(rows_of_key: float, setting: Setting) -> Iterator[Any]:
    """One row of each key, with all columns."""
    partial, last = reduction(setting.schema, ("k",), [], tuple(setting.schema.names[1:]))
    lifted = (partial.reduction.lift(batch) for batch in setting.rows(rows_of_key))
    return run([last], lifted, setting.how)


def _bound(function: Callable[..., Iterator[Any]], *given: Any) -> Step:
    return lambda setting: function(*given, setting)


STEPS: dict[str, Step] = {
    "map": _mapped,
    "exchange": _written,
    "sort by a number": _bound(_sorted, "t"),
    "sort by text": _bound(_sorted, "s"),
    "top 10,000": _top,
    "sample for ranges": _sampled,
    "applyInArrow": _grouped,
    "applyInPandas": _grouped_pandas,
    "cogroup": _cogrouped,
    "join": _bound(_joined, "inner", 0.0, 0.0),
    "join, left skewed": _bound(_joined, "inner", 0.9, 0.0),
    "semi join, both skewed": _bound(_joined, "semi", 0.9, 0.9),
    "asof join": _asof,
    "join with a table": _joined_with_table,
    "aggregate, partial, few groups": _bound(_partial, 10_000, NUMERIC + CODED),
    "aggregate, partial, many groups": _bound(_partial, 3, NUMERIC + CODED),
    "aggregate, few groups": _bound(_final, 10_000, NUMERIC + CODED),
    "aggregate, groups of 3": _bound(_final, 3, NUMERIC),
    "aggregate, groups of 1": _bound(_final, 1, NUMERIC),
    "stddev, groups of 3": _bound(_final, 3, CODED),
    "median and list, groups of 100": _bound(_final, 100, LISTS),
    "min and max of text, groups of 3": _bound(_extremes, 3),
    "distinct, partial, rows 3 times": _bound(_distinct, False, 3),
    "distinct, partial, each row once": _bound(_distinct, False, 1),
    "distinct, rows 3 times": _bound(_distinct, True, 3),
    "distinct, each row once": _bound(_distinct, True, 1),
    "distinct by a key, 3 rows of each": _bound(_distinct_by, 3),
}
