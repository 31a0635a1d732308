"""What a case's rows are compared for: all of them, their order, the first ones, where they are placed."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql import types

from .cases import State
from .contents import Row, rows_of
from .row_steps import Parameters, keyed, some

if TYPE_CHECKING:
    from .programs import Run

_SORTED = (types.MapType, types.VariantType, types.NullType)


class Differs(Exception):
    """What differs, in a few lines."""


def same_rows(ours: list[Row], theirs: list[Row], what: str = "rows") -> None:
    more, less = Counter(ours), Counter(theirs)
    if more != less:
        extra, missing = list((more - less).elements()), list((less - more).elements())
        raise Differs(
            f"{what}: {len(ours)} and Spark's {len(theirs)}; {len(extra)} too many, such as {_short(extra)}; "
            f"{len(missing)} missing, such as {_short(missing)}"
        )


def _short(rows: list[Row]) -> str:
    text = repr(sorted(rows, key=repr)[:2])
    return text if len(text) < 500 else f"{text[:500]}…"


def _rows(state: State, table: pa.Table) -> list[Row]:
    approximate = [each.name for each in state.columns if each.rounded]
    return rows_of(table, [each.name for each in state.columns if each.loose], approximate)


def _same_types(ours: pa.Table, theirs: pa.Table) -> None:
    # Labels of zones are of no account: the instants are compared.
    one, two = (
        [(field.name, re.sub(", tz=[^]]*", "", str(field.type))) for field in each.schema]
        for each in (ours, theirs)
    )
    if one != two:
        pairs = [(left, right) for left, right in zip(one, two, strict=False) if left != right]
        raise Differs(f"types: {pairs}, {len(one)} and {len(two)} columns")
    for field in ours.schema:
        if not field.nullable and ours[field.name].null_count:
            raise Differs(f"nulls in a column that is NOT NULL: {field.name}")


def draw(chance: Random, state: State) -> tuple[str, Parameters]:
    sortable = [
        each.name for each in state.columns if each.exact and not isinstance(each.kind, (*_SORTED, _YEARS))
    ]
    choices = ["rows"] * 6 + (["ordered", "ranges", "top", "top"] if sortable else [])
    choices += ["limit", "placed", "count"] + (["deduplicated"] if keyed(state) else [])
    ending = chance.choice(choices)
    if ending in ("ordered", "ranges", "top"):
        order = [f"{name}{chance.choice(_ORDERS)}" for name in some(chance, sortable)]
        return ending, {"order": order, "n": chance.choice([1, 3, 5, 50])}
    if ending == "limit":
        return ending, {"n": chance.choice([0, 1, 10, 10_000])}
    if ending in ("placed", "deduplicated"):
        names = keyed(state)
        if ending == "placed" and not names:
            return "rows", {}
        return ending, {"keys": some(chance, names), "n": chance.choice([1, 3, 8])}
    return ending, {}


_YEARS = types.YearMonthIntervalType
_ORDERS = ["", " desc", " asc nulls last", " desc nulls first"]


def _spark_order(order: list[str]) -> list[Any]:
    return [sql.expr(each.partition(" ")[0]) if " " not in each else _ordered(each) for each in order]


def _ordered(text: str) -> Any:
    name, _, rest = text.partition(" ")
    column = sql.col(name)
    return {
        "desc": column.desc,
        "asc nulls last": column.asc_nulls_last,
        "desc nulls first": column.desc_nulls_first,
    }[rest]()


def _in_order(state: State, ours: pa.Table, theirs: pa.Table, order: list[str]) -> None:
    names = list(dict.fromkeys(each.partition(" ")[0] for each in order))
    # Rows of equal keys may be in any order, and so may 0.0 and -0.0 be.
    one, two = rows_of(ours.select(names), names), rows_of(theirs.select(names), names)
    if one != two:
        number = next((at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), -1)
        raise Differs(f"order by {order}: row {number} is {one[number]}, and Spark's {two[number]}")


def _same_schema(ours: Any, theirs: Any) -> None:
    """Spark's types, which say more than Arrow's; a column may be null here where it may be in Spark."""
    one, two = ([(field.name, field.dataType.simpleString()) for field in each] for each in (ours, theirs))
    if one != two:
        pairs = [(left, right) for left, right in zip(one, two, strict=False) if left != right]
        raise Differs(f"schema: {pairs}, {len(one)} and {len(two)} columns")
    wrong = [
        left.name for left, right in zip(ours, theirs, strict=True) if right.nullable and not left.nullable
    ]
    if wrong:
        raise Differs(f"schema: {wrong} are NOT NULL here, and may be null in Spark")


def rows(run: Run, state: State, given: Parameters) -> None:
    _same_schema(state.ours.leg.struct, run.theirs(lambda: state.theirs.schema))
    ours, theirs = run.both(state.ours, state.theirs)
    _same_types(ours, theirs)
    same_rows(_rows(state, ours), _rows(state, theirs))


def ordered(run: Run, state: State, given: Parameters) -> None:
    order = given["order"]
    ours, theirs = run.both(state.ours.orderBy(order), state.theirs.orderBy(*_spark_order(order)))
    _same_types(ours, theirs)
    _in_order(state, ours, theirs, order)
    same_rows(_rows(state, ours), _rows(state, theirs))


def ranges(run: Run, state: State, given: Parameters) -> None:
    """Partitions by sampled boundaries, one after the other, are Spark's order."""
    order = given["order"]
    ours, theirs = run.both(
        state.ours.repartitionByRange(3, *order, seed=1).sortWithinPartitions(order),
        state.theirs.orderBy(*_spark_order(order)),
    )
    _in_order(state, ours, theirs, order)
    same_rows(_rows(state, ours), _rows(state, theirs))


def top(run: Run, state: State, given: Parameters) -> None:
    order, count = given["order"], given["n"]
    ours, theirs = run.both(
        state.ours.orderBy(order).limit(count),
        state.theirs.orderBy(*_spark_order(order)),
    )
    _in_order(state, ours, theirs.slice(0, count), order)
    _are_among(state, ours, theirs)


def _are_among(state: State, ours: pa.Table, theirs: pa.Table) -> None:
    extra = Counter(_rows(state, ours)) - Counter(_rows(state, theirs))
    if extra:
        raise Differs(f"rows that Spark does not have: {_short(list(extra))}")


def limit(run: Run, state: State, given: Parameters) -> None:
    ours, theirs = run.both(state.ours.limit(given["n"]), state.theirs)
    if ours.num_rows != min(given["n"], theirs.num_rows):
        raise Differs(f"limit {given['n']}: {ours.num_rows} rows, and Spark has {theirs.num_rows}")
    _are_among(state, ours, theirs)


def count(run: Run, state: State, given: Parameters) -> None:
    theirs = run.theirs(state.theirs.count)
    ours = run.ours(state.ours.count)
    if ours != theirs:
        raise Differs(f"count: {ours}, and Spark's {theirs}")


def placed(run: Run, state: State, given: Parameters) -> None:
    """Each row is in the partition of Spark's ``repartition``."""
    n, keys = given["n"], given["keys"]
    placed = run.ours(lambda: state.ours.repartition(n, *keys).toDF())
    where = sql.spark_partition_id().alias("p_")
    ours, theirs = run.tables(
        placed.select("*", where), state.theirs.repartition(n, *keys).select("*", where)
    )
    same_rows(_rows(state, ours), _rows(state, theirs), "placed rows")


def deduplicated(run: Run, state: State, given: Parameters) -> None:
    keys = given["keys"]
    ours, theirs = run.both(state.ours.dropDuplicates(keys, numPartitions=2), state.theirs)
    different = run.theirs(state.theirs.select(*keys).distinct().toArrow)
    # The rest of a row is that of any row with the key; a kept key's 0.0 may be a row's -0.0.
    same_rows(rows_of(ours.select(keys), keys), rows_of(different.select(keys), keys), "different keys")
    names = [each.name for each in state.columns]
    one, two = (Counter(rows_of(each, names)) for each in (ours, theirs))
    if one - two:
        raise Differs(f"rows that Spark does not have: {_short(list(one - two))}")
