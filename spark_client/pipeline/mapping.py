"""Steps that see each batch by itself: functions, conditions, and the columns of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructField, StructType

from flight_server.keys import compute
from flight_server.protocol import InvalidRequest
from spark_client.arrow import check_named
from spark_client.jobs import check_compared, spark_field
from spark_client.steps import FilterStage, MapStage, PandasForm, PandasMap, SelectStage, evaluate

from .base import (
    AnySteps,
    Steps,
    columns_named,
    declare,
    declared,
    find_keys,
    one_reading,
    stage_name,
    with_stage,
)
from .spark_names import as_expression, is_column

MapFunction = Callable[[Iterator[Any]], Iterable[Any]]


def map_in_arrow(
    steps: AnySteps,
    func: MapFunction,
    schema: StructType | str,
    barrier: bool = False,  # noqa: FBT001, FBT002 - Spark's arguments
    profile: object = None,
) -> AnySteps:
    """``func`` over the batches of each partition, as in Spark's ``mapInArrow``.

    Raises:
        InvalidRequest: ``func`` is not callable, or the schema is invalid or has no Arrow type; a ``barrier`` or a
            ``profile``, which only Spark's own stages have.
    """
    _check_of_stage("mapInArrow", barrier, profile)
    struct, declared = declare(steps, "mapInArrow", func, schema, by_name=False)
    return with_stage(steps, MapStage(func, declared), struct)


def map_in_pandas(
    steps: AnySteps,
    func: MapFunction,
    schema: StructType | str,
    barrier: bool = False,  # noqa: FBT001, FBT002 - Spark's arguments
    profile: object = None,
) -> AnySteps:
    """``func`` over an iterator of ``pandas.DataFrame``, as in Spark's ``mapInPandas`` (``steps.pandas_adapters``).

    Raises:
        InvalidRequest: as :meth:`mapInArrow`.
    """
    _check_of_stage("mapInPandas", barrier, profile)
    struct, declared = declare(steps, "mapInPandas", func, schema, by_name=False)
    form = PandasForm(struct, declared.schema)
    return with_stage(steps, MapStage(PandasMap(func, form), declared), struct)


def _check_of_stage(method: str, *arguments: object) -> None:
    if any(arguments):
        raise InvalidRequest(
            f"{method}: one task runs several steps, so barrier and profile are not of a step; "
            f".toDF().{method} is the DataFrame's, which takes them"
        )


@one_reading
def filter_rows(steps: AnySteps, condition: Any) -> AnySteps:
    """The rows for which an expression of ``pyarrow.compute`` is true, such as ``pc.field("amount") > 0``.

    Fields have the exact names of columns. A value inside an expression is Arrow's, of Arrow's type: a whole
    number beside a decimal is best written ``pc.scalar(Decimal(1))``. Comparisons are Arrow's, too, and differ from
    Spark's for NaN: in Arrow it fulfils none but ``!=``, in Spark it equals itself and is greater than all other
    numbers. So Spark's ``v > 5`` is ``(pc.field("v") > 5) | pc.is_nan(pc.field("v"))``.

    Raises:
        InvalidRequest: no expression, one whose result is not a boolean, or one that Arrow cannot evaluate over
            these columns, or not as Spark does: they have a collation or are CHAR(n).
    """
    if isinstance(condition, str) or is_column(condition):
        what = "a text in SQL" if isinstance(condition, str) else "a Column of Spark"
        raise InvalidRequest(
            f"filter: {_short(condition)} is {what}; tasks evaluate Arrow's expressions"
            f"{as_expression(condition)}, with pc for pyarrow.compute"
        )
    name = stage_name(steps, f"filter {_short(condition)}")
    (kind,) = _types(steps, [_expression(condition, name)], ["condition"], name).types
    _check_compared(steps, condition, name)
    if str(kind) != "bool":
        raise InvalidRequest(f"{name}: the expression gives {kind}, not a boolean", stage=name)
    return with_stage(
        steps,
        FilterStage(condition, replace(steps.leg.declared, stage=name, by_name=False)),
        steps.leg.struct,
    )


@one_reading
def select_columns(steps: AnySteps, /, *cols: str | Sequence[str], **expressions: Any) -> AnySteps:
    """The named columns, then one column for each named expression of ``pyarrow.compute``, or other name of a
    column: ``select("id", total=pc.multiply(pc.field("price"), pc.field("count")), user="user_id")``.

    ``"*"`` stands for all columns, and the names may be one list.

    ``+``, ``-``, ``*`` and ``/`` between expressions raise on overflow in the task; ``pc.add`` and the like wrap
    around. Types are those that Arrow computes, as Spark holds them. Arrow's product of two decimals has one digit
    more than both have together, and no more than 38: cast a factor to fewer digits where that is too few.

    Raises:
        InvalidRequest: no column at all, a name that appears twice or is no column, an expression that Arrow
            cannot evaluate over these columns, or a result of a type that Spark cannot hold, or of
            columns that have a collation or are CHAR(n).
    """
    names = names_of(cols)
    stage = stage_name(steps, f"select {', '.join([*map(str, names), *expressions])}")
    selected = [
        column
        for name in names
        for column in (steps.leg.schema.names if _is_star(name) else find_keys(steps, (name,), stage))
    ]
    renamed = {label: value for label, value in expressions.items() if isinstance(value, str)}
    columns = dict(zip(renamed, find_keys(steps, tuple(renamed.values()), stage), strict=True))
    made = [(label, columns.get(label, value)) for label, value in expressions.items()]
    return _selected(steps, [*zip(selected, selected, strict=True), *made], stage)


@one_reading
def with_column(steps: AnySteps, colName: str, col: Any) -> AnySteps:
    """All columns and one more, or one that replaces the column of that name, of an expression of ``pyarrow.compute``.

    Raises:
        InvalidRequest: as :meth:`select`.
    """
    return _with_columns(steps, [(colName, col)], stage_name(steps, f"withColumn {colName}"))


@one_reading
def with_columns(steps: AnySteps, *colsMap: Mapping[str, Any]) -> AnySteps:
    """As :meth:`withColumn`, with several expressions in one mapping by their names, each over the columns before this
    step.
    """
    if len(colsMap) != 1 or not isinstance(colsMap[0], Mapping):
        raise InvalidRequest('withColumns: it takes one mapping, as in {"x": pc.field("v") + 1}')
    stage = stage_name(steps, f"withColumns {', '.join(map(str, colsMap[0]))}")
    return _with_columns(steps, list(colsMap[0].items()), stage)


def _with_columns(steps: AnySteps, made: Sequence[tuple[Any, Any]], stage: str) -> AnySteps:
    values: dict[str, tuple[str, Any]] = {name: (name, name) for name in steps.leg.schema.names}
    for name, value in made:
        if not isinstance(name, str):
            raise InvalidRequest(
                f"{stage}: the name of a column comes first, as in withColumn('x', pc.field('v') + 1), not {name!r}",
                stage=stage,
            )
        if isinstance(value, str):
            raise InvalidRequest(
                f"{stage}: {value!r} is text; the column of that name is pc.field({value!r}), and the text itself "
                f"pc.scalar({value!r})",
                stage=stage,
            )
        replaced = columns_named(steps, name)
        if len(replaced) > 1:
            find_keys(steps, (name,), stage)  # raises: it could be any of them
        values[replaced[0] if replaced else name] = (name, value)
    return _selected(steps, list(values.values()), stage)


@one_reading
def with_column_renamed(steps: AnySteps, existing: str, new: str) -> AnySteps:
    """All columns, one of them under another name; the same rows if there is none of the old name, as in Spark.

    Raises:
        InvalidRequest: another column has the new name.
    """
    return _renamed(steps, {existing: new}, stage_name(steps, f"withColumnRenamed {existing}, {new}"))


@one_reading
def with_columns_renamed(steps: AnySteps, colsMap: Mapping[str, str]) -> AnySteps:
    """As :meth:`withColumnRenamed`, for several columns at once."""
    return _renamed(steps, colsMap, stage_name(steps, f"withColumnsRenamed {', '.join(map(str, colsMap))}"))


def _renamed(steps: AnySteps, names: Mapping[str, str], stage: str) -> AnySteps:
    labels = {name: name for name in steps.leg.schema.names}
    for existing, new in names.items():
        if not all(isinstance(each, str) for each in (existing, new)):
            raise InvalidRequest(
                f"{stage}: a column is renamed by two names, not by {existing!r} and {new!r}", stage=stage
            )
        labels.update(dict.fromkeys(columns_named(steps, existing), new))
    if all(name == label for name, label in labels.items()):
        return steps
    return _selected(steps, [(label, name) for name, label in labels.items()], stage)


@one_reading
def drop_columns(steps: AnySteps, *cols: str) -> AnySteps:
    """All columns but these; a name that is no column drops nothing, as in Spark.

    Raises:
        InvalidRequest: a column is given by something else than its name, or none is left.
    """
    names = names_of(cols)
    stage = stage_name(steps, f"drop {', '.join(map(str, names))}")
    dropped = {name for each in names for name in _droppable(steps, each, stage)}
    left = [name for name in steps.leg.schema.names if name not in dropped]
    return _selected(steps, [(name, name) for name in left], stage) if dropped else steps


def _droppable(steps: Steps, name: Any, stage: str) -> list[str]:
    if not isinstance(name, str):
        find_keys(steps, (name,), stage)  # raises: it is no name
    return columns_named(steps, name)


def names_of(cols: tuple[Any, ...]) -> tuple[Any, ...]:
    """Names one by one, or as one list, as Spark takes them."""
    return tuple(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols


def _selected(steps: AnySteps, made: Sequence[tuple[str, Any]], stage: str) -> AnySteps:
    """The columns by their labels, each an expression or the exact name of another column."""
    values: list[Any] = []
    fields: list[StructField | None] = []
    for label, value in made:
        column = value if isinstance(value, str) else _field_of(steps, value)
        if column is None:
            values.append(_expression(value, stage))
            fields.append(None)
        else:
            old = steps.leg.fields[column]
            values.append(compute().field(column))
            fields.append(StructField(label, old.dataType, old.nullable, old.metadata))
    labels = [label for label, _ in made]
    types = _types(steps, values, labels, stage).types
    for value, field in zip(values, fields, strict=True):
        if field is None:
            _check_compared(steps, value, stage)
    results = [
        spark_field(label, kind, stage) if field is None else field
        for label, kind, field in zip(labels, types, fields, strict=True)
    ]
    struct, result = declared(steps.spark, StructType(results), stage)
    return with_stage(steps, SelectStage(tuple(values), result), struct)


def _is_star(name: Any) -> bool:
    # A Column of Spark has no truth value.
    return isinstance(name, str) and name == "*"


def _field_of(steps: Steps, value: Any) -> str | None:
    """The column that an expression which is nothing but a field stands for."""
    name = str(value)
    known = steps.leg.schema.get_field_index(name) >= 0
    pc = compute()
    return name if known and isinstance(value, pc.Expression) and value.equals(pc.field(name)) else None


def _check_compared(steps: Steps, expression: Any, stage: str) -> None:
    remedy = "cast it to string before, in Spark, to compare bytes, or compare it there"
    check_compared(steps.leg.struct, steps.leg.schema, expression, stage, remedy)


def _types(steps: Steps, expressions: list[Any], names: list[str], stage: str) -> Any:
    return evaluate("project", expressions, names, steps.leg.schema.empty_table(), stage).schema


def _expression(value: Any, stage: str) -> Any:
    if isinstance(value, compute().Expression):
        check_named(value, stage)
        return value
    if is_column(value):
        raise InvalidRequest(
            f"{stage}: {_short(value)} is a Column of Spark; tasks evaluate Arrow's expressions, such as "
            'pc.field("v") * 2, with pc for pyarrow.compute',
            stage=stage,
        )
    raise InvalidRequest(
        f"{stage}: {value!r} is {type(value).__name__}; an expression is made of pyarrow.compute.field(name) and "
        "pyarrow.compute.scalar(value)",
        stage=stage,
    )


def _short(expression: Any) -> str:
    text = " ".join(str(expression).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
