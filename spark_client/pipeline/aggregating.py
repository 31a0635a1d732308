"""Steps that make few rows of many: aggregates, by the functions of ``reducing``, and different rows.

The README's table says what each function takes and gives. ``median``, ``collect_list`` and ``collect_set`` send values
through the exchange, not a state of fixed size, and a task holds those of one group. So does ``count_distinct`` of
several columns in one step; of one column, rows are grouped by its values first, which may exceed the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, SupportsIndex

import pyarrow as pa
from pyspark.sql.types import ArrayType, NumericType, StructField, StructType

from flight_server.protocol import InvalidRequest, did_you_mean
from spark_client.arrow import Declared
from spark_client.jobs import check_key, spark_field
from spark_client.placement import check_groupable
from spark_client.reducing import (
    FUNCTIONS,
    SYNONYMS,
    Again,
    Computed,
    Present,
    Reduction,
    ResultColumn,
    StateColumn,
    count_rows,
    counted,
)
from spark_client.steps import (
    FinalStage,
    JoinStage,
    MergeStage,
    PartialStage,
)

from .base import AnySteps, Steps, declared, find_keys, integer, one_reading, stage_name, with_stage
from .exchanging import exchanged
from .nodes import Exchange, Pair, PlanPart
from .spark_names import is_column

AggregateFunction = Literal[
    "sum",
    "avg",
    "mean",
    "product",
    "count",
    "count_distinct",
    "countDistinct",
    "min",
    "max",
    "bool_or",
    "any",
    "some",
    "bool_and",
    "every",
    "all",
    "stddev",
    "std",
    "stddev_samp",
    "stddev_pop",
    "variance",
    "var",
    "var_samp",
    "var_pop",
    "median",
    "collect_list",
    "list",
    "collect_set",
    "set",
]
"""The names in ``reducing.FUNCTIONS`` and ``reducing.SYNONYMS``."""
Aggregations = Mapping[str, AggregateFunction | Sequence[AggregateFunction] | tuple[str, AggregateFunction]]


class Aggregate(NamedTuple):
    """One result that the user asks for: ``name`` is None for Spark's name of it; ``column`` is ``*`` for rows;
    ``function`` is in ``reducing.FUNCTIONS``.
    """

    name: str | None
    column: str
    function: str


def _aggregates(exprs: Sequence[Any], named: Mapping[str, Any], stage: str) -> Iterator[Aggregate]:
    """The results, in their order. Raises InvalidRequest: another form, an unknown function, or a pair of other than
    two.
    """
    for each in exprs:
        if isinstance(each, Mapping):
            continue
        what = "a Column of Spark" if is_column(each) else type(each).__name__
        raise InvalidRequest(
            f'{stage}: what it computes is named by columns and functions, as in {{"amount": "sum"}} or '
            f'total=("amount", "sum"), not by {what}',
            stage=stage,
        )
    for name, value in [*(item for each in exprs for item in each.items()), *named.items()]:
        if isinstance(value, tuple):
            if len(value) != 2 or not all(isinstance(part, str) for part in value):
                raise InvalidRequest(
                    f"{stage}: {name!r} is {value!r}; a pair is a column and a function, and several functions of "
                    "one column are a list",
                    stage=stage,
                )
            yield Aggregate(name, value[0], _function(value[1], stage))
        elif isinstance(value, list) or (isinstance(value, str) and name not in named):
            for each in value if isinstance(value, list) else [value]:
                yield Aggregate(None, name, _function(each, stage))
        else:
            raise InvalidRequest(
                f"{stage}: {name!r} is {value!r}; it takes a pair of a column and a function, as in "
                f'{name}=("amount", "sum")',
                stage=stage,
            )


def _function(name: Any, stage: str) -> str:
    function = SYNONYMS.get(name, name) if isinstance(name, str) else ""
    if function not in FUNCTIONS:
        raise InvalidRequest(
            f"{stage}: no function {name!r}; there are {', '.join(FUNCTIONS)}"
            f"{did_you_mean(name, (*FUNCTIONS, *SYNONYMS))}",
            stage=stage,
        )
    return function


def _result(
    steps: Steps, aggregate: Aggregate, columns: Mapping[str, str], stage: str
) -> tuple[StructField, Computed]:
    """The result's column in Spark, and how it is computed; ``columns`` have the names as the schema spells them.
    Raises InvalidRequest: the function cannot take the column.
    """
    function = FUNCTIONS[aggregate.function]
    if aggregate.column == "*":
        if aggregate.function != "count":
            raise InvalidRequest(
                f"{stage}: {aggregate.function} of '*'; only count takes all rows", stage=stage, column="*"
            )
        rows = count_rows()
        count = spark_field(aggregate.name or "count(1)", rows.type, stage)
        count.nullable = rows.nullable
        return count, rows
    field = steps.leg.fields[columns[aggregate.column]]
    kind = steps.leg.schema.field(field.name).type
    if not function.accepts(kind):
        remedy = "make a column of one of its parts" if pa.types.is_nested(kind) else "cast it"
        raise InvalidRequest(
            f"{stage}: {aggregate.function} takes {function.takes}, and column {field.name!r} is {kind}; {remedy} "
            "before, for example with select",
            stage=stage,
            column=field.name,
        )
    if function.compares:
        check_key(field, stage)
    how = function.make(field.name, kind)
    result = spark_field(aggregate.name or function.label.format(field.name), how.type, stage)
    if function.keeps_type:
        # Spark's types say more than Arrow's: an interval's fields, a length of text.
        is_list = pa.types.is_list(how.type) and how.type != kind
        result.dataType = ArrayType(field.dataType, containsNull=False) if is_list else field.dataType
    result.nullable = how.nullable
    return result, how


@one_reading
def aggregated(
    steps: AnySteps,
    exprs: Sequence[Any],
    named: Mapping[str, Any],
    keys: tuple[str, ...] = (),
    partitions: SupportsIndex | None = None,
) -> AnySteps:
    """One row for each group of equal ``keys``, see :meth:`GroupedPipeline.agg`."""
    stage = stage_name(steps, "agg")
    return _aggregated(steps, list(_aggregates(exprs, named, stage)), keys, partitions, stage)


@one_reading
def aggregate_all(
    steps: AnySteps, /, *exprs: Aggregations, **named: tuple[str, AggregateFunction]
) -> AnySteps:
    """One row for all rows, as ``groupBy().agg(…)``. Raises as :meth:`GroupedPipeline.agg`."""
    return aggregated(steps, exprs, named)


@one_reading
def counted_groups(steps: AnySteps, keys: tuple[str, ...], partitions: SupportsIndex | None) -> AnySteps:
    """How many rows each group has, as the column ``count``."""
    return _aggregated(
        steps, [Aggregate("count", "*", "count")], keys, partitions, stage_name(steps, "count")
    )


@one_reading
def reduced_columns(
    steps: AnySteps,
    function: str,
    cols: tuple[str, ...],
    keys: tuple[str, ...],
    partitions: SupportsIndex | None,
) -> AnySteps:
    """The function of these columns, or of all numbers, keys too, as in Spark."""
    stage = stage_name(steps, function)
    numbers = (field.name for field in steps.leg.struct if isinstance(field.dataType, NumericType))
    aggregates = [Aggregate(None, column, function) for column in cols or numbers]
    return _aggregated(steps, aggregates, keys, partitions, stage)


def _aggregated(
    steps: AnySteps,
    aggregates: Sequence[Aggregate],
    keys: tuple[str, ...],
    partitions: SupportsIndex | None,
    stage: str,
) -> AnySteps:
    if not aggregates:
        raise InvalidRequest(
            f'{stage}: it computes nothing; name columns and functions, as in {{"amount": "sum"}}, or use '
            "select and distinct for the keys alone",
            stage=stage,
        )
    names = tuple(each.column for each in aggregates if each.column != "*")
    columns = dict(zip(names, find_keys(steps, names, stage), strict=True))
    computed = [_result(steps, each, columns, stage) for each in aggregates]
    fields = [*_fields(steps, keys), *(field for field, _ in computed)]
    struct, result = declared(steps.spark, StructType(fields), stage)
    grouped, reduction, results = _reduce(steps, keys, computed, stage, partitions)
    return with_stage(grouped, FinalStage(reduction, results, result), struct)


def _reduce(
    steps: AnySteps,
    keys: tuple[str, ...],
    computed: list[tuple[StructField, Computed]],
    stage: str,
    partitions: SupportsIndex | None,
) -> tuple[AnySteps, Reduction, tuple[ResultColumn, ...]]:
    """Rows of states in partitions by the keys, the functions that merge them there, and the results of the merged."""
    counted_columns = {how.distinct for _, how in computed if how.distinct}
    apart = None
    if len(counted_columns) == 1 and not counted_columns <= set(keys):
        (apart,) = counted_columns
    merged = [how for _, how in computed if how.distinct is None or how.distinct != apart]
    states: list[StateColumn] = list(dict.fromkeys(state for how in merged for state in how.states))
    placed = keys or (() if apart is None else (apart,))
    group = partial(_group, stage=stage, partitions=partitions)
    if apart is None:
        grouped, reduction = group(steps, keys, (), tuple(states), placed=keys)
    else:
        # Groups by the column, too, which need no lists: then there is a row for each of its values to be counted.
        grouped, reduction = group(steps, (*keys, apart), (), tuple(states), placed=placed)
        merging = MergeStage(reduction, Declared(f"{stage}, different values", reduction.schema))
        names = reduction.schema.names[len(keys) + 1 :]
        again = [Again.of(name, state) for name, state in zip(names, states, strict=True)]
        grouped, reduction = group(
            with_stage(grouped, merging, grouped.leg.struct), keys, (), (*again, Present(apart)), placed=keys
        )
    places = {state: place for place, state in enumerate(states)}
    results = tuple(
        ResultColumn(field.name, (len(states),), counted)
        if apart is not None and how.distinct == apart
        else ResultColumn(field.name, tuple(places[state] for state in how.states), how.finish)
        for field, how in computed
    )
    return grouped, reduction, results


@one_reading
def distinct(steps: AnySteps, *, numPartitions: SupportsIndex | None = None) -> AnySteps:
    """Each different row once. NaN equals NaN, and -0.0 becomes 0.0.

    Args:
        numPartitions: as for :meth:`groupBy`.

    Raises:
        InvalidRequest: a column is of a type that rows cannot be grouped by.
    """
    return _different(steps, (), numPartitions, stage_name(steps, "distinct"))


@one_reading
def drop_duplicates(
    steps: AnySteps, subset: Sequence[str] | None = None, *, numPartitions: SupportsIndex | None = None
) -> AnySteps:
    """One row of each group of rows that are equal in the columns of ``subset``, as Spark's ``dropDuplicates``; without
    it, as :meth:`distinct`.

    Args:
        subset: a list of names.
        numPartitions: as for :meth:`groupBy`.

    Raises:
        InvalidRequest: a column that is not there, or of a type that rows cannot be grouped by.
    """
    if subset is not None and not isinstance(subset, list | tuple):
        raise InvalidRequest(f'dropDuplicates: subset is a list of names, as in ["a", "b"], not {subset!r}')
    names = tuple(subset or ())
    stage = stage_name(steps, f"dropDuplicates {', '.join(map(str, names))}".strip())
    return _different(steps, names, numPartitions, stage)


def _different(
    steps: AnySteps, columns: tuple[str, ...], partitions: SupportsIndex | None, stage: str
) -> AnySteps:
    keys = tuple(dict.fromkeys(find_keys(steps, columns, stage) or steps.leg.schema.names))
    _check_grouped(steps, keys, stage)
    named = set(keys)
    carried = tuple(name for name in steps.leg.schema.names if name not in named)
    grouped, reduction = _group(steps, keys, carried, (), stage=stage, partitions=partitions, placed=keys)
    rows = Declared(stage, steps.leg.schema, by_name=True)
    return with_stage(grouped, FinalStage(reduction, (), rows), steps.leg.struct)


def _check_grouped(steps: Steps, keys: tuple[str, ...], stage: str) -> None:
    check_groupable(steps.leg.schema, keys, stage)
    for field in _fields(steps, keys):
        check_key(field, stage)


def _fields(steps: Steps, names: Sequence[str]) -> list[StructField]:
    return [steps.leg.fields[name] for name in names]


def _group(
    steps: AnySteps,
    keys: tuple[str, ...],
    carried: tuple[str, ...],
    states: tuple[StateColumn, ...],
    *,
    stage: str,
    partitions: SupportsIndex | None,
    placed: tuple[str, ...],
) -> tuple[AnySteps, Reduction]:
    """The rows, reduced by each task, in partitions by the keys ``placed``; and the functions that merge them there."""
    names = _free_names(len(states), {*keys, *carried})
    kept = _fields(steps, (*keys, *carried))
    fields = [spark_field(name, state.type, stage) for name, state in zip(names, states, strict=True)]
    schema = pa.schema(
        [
            *(steps.leg.schema.field(name) for name in (*keys, *carried)),
            *(pa.field(name, state.type) for name, state in zip(names, states, strict=True)),
        ]
    )
    reduction = Reduction(keys, states, schema, stage, carried)
    partial = PartialStage(reduction, Declared(f"{stage}, partial", schema))
    reduced = with_stage(steps, partial, StructType([*kept, *fields]))
    together = partitions_by(steps, placed)
    if together is not None and (partitions is None or not placed or integer(partitions) == together):
        return reduced, reduction
    return exchanged(reduced, partitions if placed else 1, placed, where=stage), reduction


def partitions_by(steps: Steps, keys: tuple[str, ...]) -> int | None:
    """In how many partitions the rows are, if those of equal keys are in one already; None if they are not."""
    part = steps.leg.single
    if part is None:
        return None
    exchange, stages = part.origin, part.stages
    if isinstance(exchange, Exchange):
        names = exchange.keys
    elif (
        isinstance(exchange, Pair)
        and isinstance(join := stages[0], JoinStage)
        and join.plan.how in _LEFT_KEYS
    ):
        names, stages, exchange = join.plan.left.names, stages[1:], exchange.left.exchange
    else:
        return None
    by_keys = bool(names) and set(names) <= set(keys) and PlanPart(exchange, stages).keeps(names)
    return exchange.partitions if by_keys or exchange.partitions == 1 else None


_LEFT_KEYS = frozenset({"inner", "left", "semi", "anti"})
"""The joins whose rows have the left side's keys, by which they are placed."""


def _free_names(count: int, used: set[str]) -> list[str]:
    prefix = "state"
    while any(name.startswith(prefix) for name in used):
        prefix = f"_{prefix}"
    return [f"{prefix}{number}" for number in range(count)]
