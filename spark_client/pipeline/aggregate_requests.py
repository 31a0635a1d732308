"""The arguments of ``aggregate``: columns, functions and names of results, checked against the columns' types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, StructField

from flight_server.protocol import InvalidRequest
from spark_client.jobs import spark_field
from spark_client.reducing import (
    FUNCTIONS,
    SYNONYMS,
    Computed,
    ResultColumn,
    StateColumn,
    count_rows,
    counted,
)

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
