"""Steps that bring a second table in: joins, as-of joins, groups of both, unions. As in ``row_steps``."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window, types
from pyspark.sql import functions as sql

from . import kinds
from .cases import Column, State, Table
from .row_steps import Parameters, keyed, some

if TYPE_CHECKING:
    from .programs import Run

_HOWS = ["inner", "left", "right", "full", "semi", "anti"]


def table_of(chance: Random, prefix: str, given: list[str], *, extra: int, rows: int) -> Table:
    """A table with columns of the given kinds, and some more."""
    all_kinds = [*given, *(kinds.any_kind(chance) for _ in range(chance.randint(0, extra)))]
    form = "frame" if not set(all_kinds) <= kinds.SCANNED else chance.choice(["frame", "parquet", "ipc"])
    schema = kinds.schema(chance, prefix, all_kinds)
    keys = tuple(f"{prefix}{number}" for number in range(len(given))) if chance.random() < 0.3 else ()
    return Table(prefix, schema, rows, form, chance.choice([1, 2, 3]), keys)


def _kind(state: State, name: str) -> str:
    (column,) = state.named(name)
    return str(column.kind.simpleString())


def draw_join(chance: Random, state: State, prefix: str, rows: int) -> Parameters | None:
    names = keyed(state, flat=True)
    if not names:
        return None
    keys = some(chance, names)
    table = table_of(
        chance, prefix, [kinds.relative(_kind(state, key), chance) for key in keys], extra=2, rows=rows
    )
    broadcast = chance.random() < 0.25
    how = chance.choice(_HOWS[:2] + _HOWS[4:] if broadcast else _HOWS)
    named = chance.random() < 0.5
    return {"table": table, "on": keys, "how": how, "using": named, "broadcast": broadcast}


def join(run: Run, state: State, given: Parameters) -> State:
    other = run.table(given["table"])
    on, how = given["on"], given["how"]
    pairs = [(left, other.columns[number].name) for number, left in enumerate(on)]
    if given["using"]:
        other.rows = None
        for left, second in pairs:
            other.theirs = other.theirs.withColumnRenamed(second, left)
        renamed = dict(pairs)
        rest = [each.name for each in other.columns[len(on) :]]
        if not given["table"].keys:
            other.ours = other.ours.select(*rest, **renamed)
            other.theirs = other.theirs.select(*rest, *on)
        else:
            # The exchange by the keys stays the last step before the join.
            other.ours = run.table(given["table"], keys=()).ours.select(*rest, **renamed).repartition(3, *on)
            other.theirs = other.theirs.select(*rest, *on)
    right: Any = run.broadcast(other) if given["broadcast"] else other.ours
    if given["using"]:
        joined = state.theirs.join(other.theirs, on, how)
        ours = state.ours.join(right, on=on, how=how)
    else:
        met = None
        for left, second in pairs:
            equal = state.theirs[left] == other.theirs[second]
            met = equal if met is None else met & equal
        joined = state.theirs.join(other.theirs, met, how)
        ours = state.ours.join(right, on=pairs, how=how)
    return _joined(state, other, ours, joined)


def _joined(state: State, other: State, ours: Any, theirs: Any) -> State:
    known = {each.name: each for each in [*other.columns, *state.columns]}
    columns = []
    for field in theirs.schema:
        old = known[field.name]
        columns.append(Column(field.name, field.dataType, old.exact, old.loose, old.rounded))
    return State(ours, theirs, columns)


def draw_union(chance: Random, state: State, prefix: str, rows: int) -> Parameters | None:
    if not all(each.exact for each in state.columns) or chance.random() < 0.3:
        return {"table": None} if state.columns else None
    wanted = [kinds.relative_of_any(_kind(state, each.name), chance) for each in state.columns]
    return {"table": table_of(chance, prefix, wanted, extra=0, rows=rows)}


def union(run: Run, state: State, given: Parameters) -> State:
    if given["table"] is None:
        state.ours, state.theirs = state.ours.union(state.ours), state.theirs.union(state.theirs)
        return state
    other = run.table(given["table"])
    theirs = state.theirs.union(other.theirs)
    columns = [
        Column(field.name, field.dataType, old.exact, old.loose, old.rounded)
        for field, old in zip(theirs.schema, state.columns, strict=True)
    ]
    return State(state.ours.union(other.ours), theirs, columns)


def draw_asof(chance: Random, state: State, prefix: str, rows: int) -> Parameters | None:
    names = keyed(state, flat=True)
    if len(names) < 2:
        return None
    key, time = chance.sample(names, k=2)
    wanted = [kinds.relative(_kind(state, name), chance) for name in (key, time)]
    table = table_of(chance, prefix, wanted, extra=0, rows=rows)
    direction, exact = chance.choice(["backward", "forward"]), chance.random() < 0.7
    return {"table": table, "key": key, "time": time, "direction": direction, "exact": exact}


def asof(run: Run, state: State, given: Parameters) -> State:
    """The time that was found, by Spark's own comparisons: of those not after, the last."""
    other = run.table(given["table"])
    key, time = (each.name for each in other.columns[:2])
    back, exact = given["direction"] == "backward", given["exact"]
    ours = state.ours.join(
        other.ours,
        on=[(given["key"], key)],
        how="asof",
        as_of=(given["time"], time),
        direction=given["direction"],
        allow_exact_matches=exact,
    )
    left = state.theirs.withColumn("row_", sql.monotonically_increasing_id()).localCheckpoint()
    right = other.theirs.filter(_is_time(time, other.columns[1]))
    one, two = left[given["time"]], right[time]
    before = (two <= one if exact else two < one) if back else (two >= one if exact else two > one)
    before = before & _is_time(given["time"], *state.named(given["time"]))
    met = left.join(right, (left[given["key"]] == right[key]) & before, "left")
    window = Window.partitionBy("row_").orderBy(sql.desc(time) if back else sql.asc_nulls_last(time))
    best = met.withColumn("best_", sql.row_number().over(window)).filter("best_ = 1")
    names = [each.name for each in state.columns]
    shown = [*names, time]
    columns = [*state.columns, Column(time, other.columns[1].kind, exact=False, loose=True)]
    return State(ours.select(*shown), best.select(*shown), columns)


def _is_time(name: str, column: Column) -> Any:
    """A NaN is no time."""
    return ~sql.isnan(name) if isinstance(column.kind, types.FloatType | types.DoubleType) else sql.lit(True)


def sides(keys: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"lefts": [left.num_rows], "rights": [right.num_rows]})


def draw_cogroup(chance: Random, state: State, prefix: str, rows: int) -> Parameters | None:
    names = keyed(state, flat=True)
    if not names:
        return None
    keys = some(chance, names)
    table = table_of(
        chance, prefix, [kinds.relative(_kind(state, key), chance) for key in keys], extra=1, rows=rows
    )
    return {"table": table, "keys": keys}


def cogroup(run: Run, state: State, given: Parameters) -> State:
    """How many rows of each side a key has; nulls are equal."""
    other = run.table(given["table"])
    lefts, rights = given["keys"], [each.name for each in other.columns[: len(given["keys"])]]
    schema = "lefts long, rights long"
    ours = (
        state.ours.groupBy(*lefts, numPartitions=4)
        .cogroup(other.ours.groupBy(*rights))
        .applyInArrow(sides, schema)
    )
    # Different values of one side may be one key in the common type.
    marks = [sql.lit(1).alias("l_"), sql.lit(0).alias("r_")], [sql.lit(0), sql.lit(1)]
    both = state.theirs.select(*lefts, *marks[0]).union(other.theirs.select(*rights, *marks[1]))
    counts = both.groupBy(*lefts).agg(sql.sum("l_").alias("l_"), sql.sum("r_").alias("r_"))
    counts = counts.select(sql.col("l_").alias("lefts"), sql.col("r_").alias("rights"))
    return State(ours, counts, [Column("lefts", types.LongType()), Column("rights", types.LongType())])
