"""Steps that make few rows of many.

The functions of ``aggregate``:

==================================================  =====================================================
``sum``, ``avg`` (``mean``), ``product``            of numbers; a sum that leaves its type's range is an
                                                    error, as in Spark's ANSI mode
``count``, ``count_distinct``                       of values that are not null
``min``, ``max``                                    NaN is above all numbers, text in the order of its bytes,
                                                    structs field by field, nulls in them first
``bool_or`` (``any``), ``bool_and`` (``every``)     of booleans
``stddev``, ``stddev_pop``, ``variance``,           of numbers, as doubles; null for one row, except those
``var_pop``                                         that end with ``_pop``
``median``                                          of numbers, as a double
``collect_list``, ``collect_set``                   in no certain order, without nulls
==================================================  =====================================================

The last two rows send values through the exchange, not a state of fixed size, and a task holds those of one
group. So does ``count_distinct`` of several columns in one step; of one column, rows are grouped by its values
first, which may exceed the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import pyarrow as pa
from pyspark.sql.types import ArrayType, StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import arrow_schema, check_key, declared_struct, spark_field
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

from .base import AnySteps, Steps, find_keys, integer, settled, stage_name, with_stage
from .exchanging import add_exchange
from .nodes import Exchange, Pair, PlanPart

Aggregations = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class WantedResult:
    """One result: ``name`` is None for Spark's name of it; ``column`` is ``*`` for rows; ``function`` is in
    ``reducing.FUNCTIONS``.
    """

    name: str | None
    column: str
    function: str


def aggregations_wanted(
    aggregations: Aggregations, named: Mapping[str, Any], stage: str
) -> Iterator[WantedResult]:
    """The results, in their order. Raises InvalidRequest: another form, an unknown function, or a pair of other than
    two.
    """
    if not isinstance(aggregations, Mapping):
        raise InvalidRequest(
            f'{stage}: what it computes is named by columns and functions, as in {{"amount": "sum"}} or '
            f'total=("amount", "sum"), not by {type(aggregations).__name__}',
            stage=stage,
        )
    for name, value in [*aggregations.items(), *named.items()]:
        if isinstance(value, str) and name not in named:
            yield WantedResult(None, name, _function(value, stage))
        elif isinstance(value, tuple):
            if len(value) != 2 or not all(isinstance(part, str) for part in value):
                raise InvalidRequest(
                    f"{stage}: {name!r} is {value!r}; a pair is a column and a function, and several functions of "
                    "one column are a list",
                    stage=stage,
                )
            yield WantedResult(name, value[0], _function(value[1], stage))
        elif isinstance(value, list):
            for each in value:
                yield WantedResult(None, name, _function(each, stage))
        else:
            raise InvalidRequest(
                f"{stage}: {name!r} is {value!r}; it takes a pair of a column and a function, as in "
                f'{name}=("amount", "sum")',
                stage=stage,
            )


def _function(name: Any, stage: str) -> str:
    found = SYNONYMS.get(name, name) if isinstance(name, str) else name
    if not isinstance(found, str) or found not in FUNCTIONS:
        raise InvalidRequest(f"{stage}: no function {name!r}; there are {', '.join(FUNCTIONS)}", stage=stage)
    return found


def computed(
    wanted: WantedResult, column: tuple[StructField, pa.DataType] | None, stage: str
) -> tuple[StructField, Computed]:
    """The result's column in Spark, and how it is computed from ``column``, which is None for rows. Raises
    InvalidRequest: the function cannot take the column.
    """
    function = FUNCTIONS[wanted.function]
    if column is None:
        if wanted.function != "count":
            raise InvalidRequest(
                f"{stage}: {wanted.function} of '*'; only count takes all rows", stage=stage, column="*"
            )
        how, label = count_rows(), "count(1)"
    else:
        field, kind = column
        if not function.accepts(kind):
            remedy = "make a column of one of its parts" if pa.types.is_nested(kind) else "cast it"
            raise InvalidRequest(
                f"{stage}: {wanted.function} takes {function.takes}, and column {field.name!r} is {kind}; {remedy} "
                "before, for example with select",
                stage=stage,
                column=field.name,
            )
        how, label = function.make(field.name, kind), function.label.format(field.name)
    result = spark_field(wanted.name or label, how.type, stage)
    if column is not None and function.keeps_type:
        # Spark's types say more than Arrow's: an interval's fields, a length of text.
        own = column[0].dataType
        result.dataType = (
            ArrayType(own, containsNull=False) if pa.types.is_list(how.type) and how.type != kind else own
        )
    result.nullable = how.nullable
    return result, how


def results_of(
    found: Sequence[tuple[StructField, Computed]], states: Sequence[StateColumn], apart: str | None = None
) -> tuple[ResultColumn, ...]:
    """The results from groups with these states, and, last, the number of different values of ``apart``."""
    places = {state: place for place, state in enumerate(states)}
    return tuple(
        ResultColumn(field.name, (len(states),), counted)
        if apart is not None and how.distinct == apart
        else ResultColumn(field.name, tuple(places[state] for state in how.states), how.finish)
        for field, how in found
    )


@settled
def aggregate(
    steps: AnySteps,
    aggregations: Aggregations | None = None,
    by: str | Sequence[str] = (),
    partitions: SupportsIndex | None = None,
    **named: tuple[str, str],
) -> AnySteps:
    """One row for each group of equal keys ``by``, or one row for all without keys, also if there are no rows.

    ``{"amount": "sum"}``, ``{"amount": ["min", "max"]}``, ``{"*": "count"}`` name columns and functions; results
    have Spark's names, such as ``sum(amount)`` and ``count(1)``. ``total=("amount", "sum")``, or
    ``{"total": ("amount", "sum")}``, gives a result a name.

    Tasks reduce their rows before the exchange, by Arrow's kernels, and merge the states after it. If the rows
    are in partitions by some of the keys already, after an exchange or a join by them, there is no exchange.

    The functions are those of the table in ``pipeline.aggregating``.

    Args:
        aggregations: see above.
        by: a column's name, or several.
        partitions: of the result, which is one without keys. None for those in which the rows are together
            already, or else ``spark.sql.shuffle.partitions``.

    Raises:
        InvalidRequest: no function, or an unknown one; a column that is not there, or of a type that the function
            cannot take or rows cannot be grouped by; two results of one name; as :meth:`exchange`.
    """
    stage = stage_name(steps, "aggregate")
    wanted = list(aggregations_wanted({} if aggregations is None else aggregations, named, stage))
    if not isinstance(by, str | list | tuple):
        raise InvalidRequest(f"{stage}: by is a column's name or a list of names, not {by!r}", stage=stage)
    keys = tuple(dict.fromkeys(find_keys(steps, (by,) if isinstance(by, str) else tuple(by), stage)))
    if not wanted:
        raise InvalidRequest(
            f'{stage}: it computes nothing; name columns and functions, as in {{"amount": "sum"}}, or use '
            "distinct for the keys alone",
            stage=stage,
        )
    _check_grouped(steps, keys, stage)
    asked = tuple(each.column for each in wanted if each.column != "*")
    columns = dict(zip(asked, find_keys(steps, asked, stage), strict=True))
    found = [_compute(steps, each, columns, stage) for each in wanted]
    fields = [*_fields(steps, keys), *(field for field, _ in found)]
    struct = declared_struct(steps.spark, StructType(fields), stage)
    grouped, reduction, results = _reduce(steps, keys, found, stage, partitions)
    declared = Declared(stage, arrow_schema(steps.spark, struct, stage))
    return with_stage(grouped, FinalStage(reduction, results, declared), struct)


def _reduce(
    steps: AnySteps,
    keys: tuple[str, ...],
    found: list[tuple[StructField, Computed]],
    stage: str,
    partitions: SupportsIndex | None,
) -> tuple[AnySteps, Reduction, tuple[ResultColumn, ...]]:
    """Rows of states in partitions by the keys, the functions that merge them there, and the results of the merged."""
    counted = {how.distinct for _, how in found if how.distinct}
    apart = next(iter(counted)) if len(counted) == 1 and not counted <= set(keys) else None
    counts = [how for _, how in found if how.distinct is None or how.distinct != apart]
    states: list[StateColumn] = list(dict.fromkeys(state for how in counts for state in how.states))
    if apart is None:
        grouped, reduction = _group(steps, keys, (), tuple(states), stage, partitions=partitions, placed=keys)
        return grouped, reduction, results_of(found, states)
    # Groups by the column, too, which need no lists: then there is a row for each of its values to be counted.
    wider = (*keys, apart)
    grouped, reduction = _group(
        steps, wider, (), tuple(states), stage, partitions=partitions, placed=keys or wider
    )
    merging = MergeStage(reduction, Declared(f"{stage}, different values", reduction.schema))
    merged = with_stage(grouped, merging, grouped.leg.struct)
    names = reduction.schema.names[len(wider) :]
    again = [Again.of(name, state) for name, state in zip(names, states, strict=True)]
    grouped, reduction = _group(
        merged, keys, (), (*again, Present(apart)), stage, partitions=partitions, placed=keys
    )
    return grouped, reduction, results_of(found, states, apart)


@settled
def distinct(steps: AnySteps, *columns: str, partitions: SupportsIndex | None = None) -> AnySteps:
    """Each different row once; with ``columns`` one row of each group of rows that are equal in those, as Spark's
    ``dropDuplicates``. Equality is that of ``aggregate``: NaN equals NaN, and -0.0 becomes 0.0.

    Args:
        columns: names; none for all.
        partitions: as for :meth:`aggregate`.

    Raises:
        InvalidRequest: a column that is not there, or of a type that rows cannot be grouped by.
    """
    stage = stage_name(steps, f"distinct {', '.join(map(str, columns))}".strip())
    keys = tuple(dict.fromkeys(find_keys(steps, columns, stage) or steps.leg.schema.names))
    _check_grouped(steps, keys, stage)
    named = set(keys)
    carried = tuple(name for name in steps.leg.schema.names if name not in named)
    grouped, reduction = _group(steps, keys, carried, (), stage, partitions=partitions, placed=keys)
    declared = Declared(stage, steps.leg.schema, by_name=True)
    return with_stage(grouped, FinalStage(reduction, (), declared), steps.leg.struct)


def _check_grouped(steps: Steps, keys: tuple[str, ...], stage: str) -> None:
    check_groupable(steps.leg.schema, keys, stage)
    for field in _fields(steps, keys):
        check_key(field, stage)


def _fields(steps: Steps, names: Sequence[str]) -> list[StructField]:
    return [steps.leg.fields[name] for name in names]


def _compute(
    steps: Steps, wanted: WantedResult, columns: Mapping[str, str], stage: str
) -> tuple[StructField, Computed]:
    """The result's column in Spark, and how it is computed."""
    if wanted.column == "*":
        return computed(wanted, None, stage)
    column = columns[wanted.column]
    field = steps.leg.fields[column]
    result, how = computed(wanted, (field, steps.leg.schema.field(column).type), stage)
    if FUNCTIONS[wanted.function].compares:
        check_key(field, stage)
    return result, how


def _group(
    steps: AnySteps,
    keys: tuple[str, ...],
    carried: tuple[str, ...],
    states: tuple[StateColumn, ...],
    stage: str,
    *,
    partitions: SupportsIndex | None,
    placed: tuple[str, ...],
) -> tuple[AnySteps, Reduction]:
    """The rows, reduced by each task, in partitions by the keys ``placed``; and the functions that merge them there."""
    if isinstance(partitions, str | list | tuple):
        raise InvalidRequest(
            f"{stage}: partitions is a number, not {partitions!r}; keys are named before it", stage=stage
        )
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
    there = _together(steps, placed)
    if there is not None and (partitions is None or not placed or integer(partitions) == there):
        return reduced, reduction
    return (add_exchange(reduced, partitions, *placed) if placed else add_exchange(reduced, 1)), reduction


def _together(steps: Steps, keys: tuple[str, ...]) -> int | None:
    """In how many partitions the rows are, if those of equal keys are in one already; None if they are not."""
    part = steps.leg.single
    if part is None:
        return None
    origin, stages, first = part.origin, part.stages, part.stages[:1]
    if isinstance(origin, Exchange):
        exchange = origin
        kept = set(exchange.keys)
    elif (
        isinstance(origin, Pair)
        and isinstance(origin.left.origin, Exchange)
        and isinstance(first[0], JoinStage)
        and first[0].plan.how in _LEFT_KEYS
    ):
        exchange = origin.left.origin
        kept, stages = set(first[0].plan.left.names), stages[1:]
    else:
        return None
    after = PlanPart(origin, stages)
    is_kept = bool(kept) and kept <= set(keys) and all(after.source(name) == name for name in kept)
    return exchange.partitions if is_kept or exchange.partitions == 1 else None


_LEFT_KEYS = frozenset({"inner", "left", "semi", "anti"})
"""The joins whose rows have the left side's keys, by which they are placed."""


def _free_names(count: int, taken: set[str]) -> list[str]:
    prefix = "state"
    while any(name.startswith(prefix) for name in taken):
        prefix = f"_{prefix}"
    return [f"{prefix}{number}" for number in range(count)]
