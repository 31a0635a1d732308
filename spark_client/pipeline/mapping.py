"""Steps that see each batch by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.jobs import check_compared, spark_field
from spark_client.steps import FilterStage, MapStage, PandasForm, PandasMap, SelectStage, evaluate

from .base import AnySteps, Steps, declare, declared, find_keys, one_reading, stage_name, with_stage

MapFunction = Callable[[Iterator[Any]], Iterable[Any]]


def map_in_arrow(steps: AnySteps, fn: MapFunction, schema: StructType | str) -> AnySteps:
    """``fn`` over the batches of each partition, as in Spark's ``mapInArrow``.

    Raises:
        InvalidRequest: ``fn`` is not callable, or the schema is invalid or has no Arrow type.
    """
    struct, declared = declare(steps, "mapInArrow", fn, schema, by_name=False)
    return with_stage(steps, MapStage(fn, declared), struct)


def map_in_pandas(steps: AnySteps, fn: MapFunction, schema: StructType | str) -> AnySteps:
    """``fn`` over an iterator of ``pandas.DataFrame``, as in Spark's ``mapInPandas`` (``steps.pandas_adapters``).

    Raises:
        InvalidRequest: as :meth:`mapInArrow`.
    """
    struct, declared = declare(steps, "mapInPandas", fn, schema, by_name=False)
    form = PandasForm(struct, declared.schema)
    return with_stage(steps, MapStage(PandasMap(fn, form), declared), struct)


@one_reading
def filter_rows(steps: AnySteps, expression: Any) -> AnySteps:
    """The rows for which an expression of ``pyarrow.compute`` is true, such as ``pc.field("amount") > 0``.

    Fields have the exact names of columns. A value inside an expression is Arrow's, of Arrow's type: a whole
    number beside a decimal is best written ``pc.scalar(Decimal(1))``. Comparisons are Arrow's, too, and differ from
    Spark's for NaN: in Arrow it fulfils none but ``!=``, in Spark it equals itself and is greater than all other
    numbers. So Spark's ``v > 5`` is ``(pc.field("v") > 5) | pc.is_nan(pc.field("v"))``.

    Raises:
        InvalidRequest: no expression, one whose result is not a boolean, or one that Arrow cannot evaluate over
            these columns, or not as Spark does: they have a collation or are CHAR(n).
    """
    name = stage_name(steps, f"filter {_short(expression)}")
    (kind,) = _types(steps, [_expression(expression, name)], ["condition"], name).types
    _check_compared(steps, expression, name)
    if str(kind) != "bool":
        raise InvalidRequest(f"{name}: the expression gives {kind}, not a boolean", stage=name)
    return with_stage(
        steps,
        FilterStage(expression, replace(steps.leg.declared, stage=name, by_name=False)),
        steps.leg.struct,
    )


@one_reading
def select_columns(steps: AnySteps, *names: str, **expressions: Any) -> AnySteps:
    """The named columns, then one column for each named expression of ``pyarrow.compute``, or other name of a
    column: ``select("id", total=pc.multiply(pc.field("price"), pc.field("count")), user="user_id")``.

    ``+``, ``-``, ``*`` and ``/`` between expressions raise on overflow in the task; ``pc.add`` and the like wrap
    around. Types are those that Arrow computes, as Spark holds them. Arrow's product of two decimals has one digit
    more than both have together, and no more than 38: cast a factor to fewer digits where that is too few.

    Raises:
        InvalidRequest: no column at all, a name that appears twice or is no column, an expression that Arrow
            cannot evaluate over these columns, or a result of a type that Spark cannot hold, or of
            columns that have a collation or are CHAR(n).
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - 10 MiB, which a plan without expressions does without

    name = stage_name(steps, f"select {', '.join([*map(str, names), *expressions])}")
    selected = find_keys(steps, names, name)
    values: list[Any] = [pc.field(column) for column in selected]
    fields: list[StructField | None] = [steps.leg.fields[column] for column in selected]
    renamed = tuple(value for value in expressions.values() if isinstance(value, str))
    columns = dict(zip(renamed, find_keys(steps, renamed, name), strict=True))
    for label, value in expressions.items():
        column = columns[value] if isinstance(value, str) else _field_of(steps, value)
        if column is None:
            values.append(_expression(value, name))
            fields.append(None)
        else:
            old = steps.leg.fields[column]
            values.append(pc.field(column))
            fields.append(StructField(label, old.dataType, old.nullable, old.metadata))
    labels = [*selected, *expressions]
    types = _types(steps, values, labels, name).types
    for value, field in zip(values, fields, strict=True):
        if field is None:
            _check_compared(steps, value, name)
    made = [
        spark_field(label, kind, name) if field is None else field
        for label, kind, field in zip(labels, types, fields, strict=True)
    ]
    struct, result = declared(steps.spark, StructType(made), name)
    return with_stage(steps, SelectStage(tuple(values), result), struct)


def _field_of(steps: Steps, value: Any) -> str | None:
    """The column that an expression which is nothing but a field stands for."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    name = str(value)
    known = steps.leg.schema.get_field_index(name) >= 0
    return name if known and isinstance(value, pc.Expression) and value.equals(pc.field(name)) else None


def _check_compared(steps: Steps, expression: Any, stage: str) -> None:
    remedy = "cast it to string before, in Spark, to compare bytes, or compare it there"
    check_compared(steps.leg.struct, steps.leg.schema, expression, stage, remedy)


def _types(steps: Steps, expressions: list[Any], names: list[str], stage: str) -> Any:
    """The schema of the expressions' results."""
    return evaluate("project", expressions, names, steps.leg.schema.empty_table(), stage).schema


def _expression(value: Any, stage: str) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    if isinstance(value, pc.Expression):
        return value
    raise InvalidRequest(
        f"{stage}: {value!r} is {type(value).__name__}; an expression is made of pyarrow.compute.field(name) and "
        "pyarrow.compute.scalar(value)",
        stage=stage,
    )


def _short(expression: Any) -> str:
    text = str(expression)
    return text if len(text) <= 60 else f"{text[:57]}..."
