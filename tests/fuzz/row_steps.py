"""Steps over one table, each drawn from chance for a state, and applied to both of its sides.

``draw_x(chance, state, …)`` gives the parameters of step ``x``, or None where it does not fit; ``x(run, state,
parameters)`` applies it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql import types

from .cases import Column, State, struct_of

if TYPE_CHECKING:
    from .programs import Run

Parameters = dict[str, Any]

_UNKEYED = (types.MapType, types.VariantType, types.YearMonthIntervalType, types.NullType)
_NESTED = (types.ArrayType, types.StructType, types.MapType, types.VariantType)


def keyed(state: State, *, flat: bool = False) -> list[str]:
    """Columns that may be keys."""
    return [
        each.name
        for each in state.columns
        if each.exact and not isinstance(each.kind, _NESTED if flat else _UNKEYED)
    ]


def some(chance: Random, names: list[str], most: int = 2) -> list[str]:
    return chance.sample(names, k=min(len(names), chance.randint(1, most)))


def draw_filtered(chance: Random, state: State) -> Parameters:
    return {"column": chance.choice(state.columns).name, "null": chance.random() < 0.2}


def filtered(run: Run, state: State, given: Parameters) -> State:
    column, null = given["column"], given["null"]
    field, theirs = pc.field(column), sql.col(column)
    state.ours = state.ours.filter(field.is_null() if null else field.is_valid())
    state.theirs = state.theirs.filter(theirs.isNull() if null else theirs.isNotNull())
    return state


def draw_select(chance: Random, state: State) -> Parameters:
    names = [each.name for each in state.columns]
    kept = chance.sample(names, k=chance.randint(max(1, len(names) - 2), len(names)))
    return {"names": kept, "renamed": chance.random() < 0.3}


def select(run: Run, state: State, given: Parameters) -> State:
    *names, last = given["names"]
    state.columns = state.named(*given["names"])
    if given["renamed"]:
        state.ours = state.ours.select(*names, **{f"{last}_": last})
        state.theirs = state.theirs.select(*names, sql.col(last).alias(f"{last}_"))
        old = state.columns[-1]
        state.columns[-1] = Column(f"{last}_", old.kind, old.exact, old.loose, old.rounded)
    else:
        state.ours, state.theirs = state.ours.select(*names, last), state.theirs.select(*names, last)
    return state


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def draw_mapped(chance: Random, state: State) -> Parameters:
    return {}


def mapped(run: Run, state: State, given: Parameters) -> State:
    state.ours = state.ours.mapInArrow(same, state.theirs.schema)
    return state


def draw_exchange(chance: Random, state: State) -> Parameters:
    names = keyed(state)
    keys = some(chance, names) if names and chance.random() < 0.8 else []
    return {
        "n": chance.choice([1, 2, 3, 7]),
        "keys": keys,
        "sort": names[:1] if chance.random() < 0.2 else None,
    }


def exchange(run: Run, state: State, given: Parameters) -> State:
    state.ours = state.ours.repartition(given["n"], *given["keys"])
    if given["sort"] is not None:
        state.ours = state.ours.sortWithinPartitions(given["sort"])
    return state


def draw_persist(chance: Random, state: State) -> Parameters | None:
    return {"n": 3, "keys": some(chance, keyed(state))} if keyed(state) else None


def persist(run: Run, state: State, given: Parameters) -> State:
    """What was persisted is read, too, by another pipeline before."""
    kept = state.ours.repartition(given["n"], *given["keys"]).persist()
    run.count_before(kept)
    state.ours = kept
    return state


def draw_distinct(chance: Random, state: State) -> Parameters | None:
    return {} if len(keyed(state)) == len(state.columns) else None


def distinct(run: Run, state: State, given: Parameters) -> State:
    state.ours, state.theirs = state.ours.distinct(numPartitions=3), state.theirs.distinct()
    return state


def counted(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
    """The keys as Arrow prints them, and how many rows there are, and values that are not null."""
    valid = sum(len(column) - column.null_count for column in table.columns)
    return pa.table({"rows": [table.num_rows], "valid": [valid], "types": [[str(key.type) for key in keys]]})


def draw_groups(chance: Random, state: State) -> Parameters | None:
    return {"keys": some(chance, keyed(state))} if keyed(state) else None


def groups(run: Run, state: State, given: Parameters) -> State:
    schema = "rows long, valid long, types array<string>"
    state.ours = state.ours.groupBy(*given["keys"], numPartitions=3).applyInArrow(counted, schema)
    state.theirs = state.theirs.groupBy(*given["keys"]).applyInArrow(counted, schema)
    state.columns = [Column(each.name, each.dataType) for each in struct_of(schema)]
    return state


_EXACT = ["count", "min", "max", "count_distinct"]
_SUMS = ["sum", "avg", "product", "stddev", "stddev_pop", "variance", "var_pop", "median"]


def _functions(column: Column, *, tame: bool) -> list[str]:
    kind = column.kind
    if isinstance(kind, types.BooleanType):
        return [*_EXACT, "bool_or", "bool_and", "collect_set"]
    if isinstance(kind, types.NumericType):
        if tame:
            return [*_EXACT, *_SUMS, "collect_list", "collect_set"]
        return [
            *_EXACT,
            "median",
            "collect_set",
            *(["sum"] if not isinstance(kind, types.FractionalType) else []),
        ]
    if isinstance(kind, _UNKEYED):
        return ["count", "collect_list"]
    if isinstance(kind, types.ArrayType | types.StructType):
        return ["count", "count_distinct", "collect_list", "collect_set"]
    return [*_EXACT, "collect_list", "collect_set"]


def draw_aggregate(chance: Random, state: State, *, tame: bool) -> Parameters | None:
    names = keyed(state)
    keys = some(chance, names) if names and chance.random() < 0.85 else []
    values = [each for each in state.columns if each.name not in keys and each.exact]
    if not values:
        return None
    wanted = []
    for number in range(chance.randint(1, 4)):
        column = chance.choice(values)
        wanted.append(
            (f"z{len(state.columns)}{number}", column.name, chance.choice(_functions(column, tame=tame)))
        )
    return {"by": keys, "wanted": wanted, "partitions": chance.choice([1, 3])}


_APPROXIMATE = {"avg", "product", "stddev", "stddev_pop", "variance", "var_pop"}


def aggregate(run: Run, state: State, given: Parameters) -> State:
    by, wanted = given["by"], given["wanted"]
    ours = {name: (column, function) for name, column, function in wanted}
    theirs = [_theirs(function, column).alias(name) for name, column, function in wanted]
    state.ours = state.ours.groupBy(by, numPartitions=given["partitions"]).agg(**ours)
    state.theirs = state.theirs.groupBy(*by).agg(*theirs)
    kinds = {each.name: each.dataType for each in state.theirs.schema}
    results = [
        Column(
            name,
            kinds[name],
            exact=not (
                function in _APPROXIMATE
                or function.startswith("collect")
                or function in ("min", "max", "sum", "median")
            ),
            loose=function in ("collect_list", "collect_set", "min", "max", "median"),
            rounded=function in _APPROXIMATE,
        )
        for name, _, function in wanted
    ]
    state.columns = [*state.named(*by), *results]
    return state


def _theirs(function: str, column: str) -> Any:
    if function == "count_distinct":
        return sql.count_distinct(sql.col(column))
    return sql.product(sql.col(column)) if function == "product" else sql.expr(f"{function}({column})")
