"""Steps that see each batch by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Self

from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.jobs import arrow_schema, check_compared, declared_struct, pandas_form, spark_field
from spark_client.steps import FilterStage, MapStage, PandasMap, SelectStage, evaluate

from .base import Steps

MapFunction = Callable[[Iterator[Any]], Iterable[Any]]


class Mapping(Steps):
    """See the module."""

    def mapInArrow(self, fn: MapFunction, schema: StructType | str) -> Self:  # noqa: N802 - Spark's name
        """``fn`` over the batches of each partition, as in Spark's ``mapInArrow``.

        Raises:
            InvalidRequest: ``fn`` is not callable, or the schema is invalid or has no Arrow type.
        """
        struct, declared = self._declare("mapInArrow", fn, schema, by_name=False)
        return self._with(MapStage(fn, declared), struct)

    def mapInPandas(self, fn: MapFunction, schema: StructType | str) -> Self:  # noqa: N802 - Spark's name
        """``fn`` over an iterator of ``pandas.DataFrame``, as in Spark's ``mapInPandas`` (``steps.pandas_adapters``).

        Raises:
            InvalidRequest: as :meth:`mapInArrow`.
        """
        struct, declared = self._declare("mapInPandas", fn, schema, by_name=False)
        form = pandas_form(self.spark, struct, declared.schema)
        return self._with(MapStage(PandasMap(fn, form), declared), struct)

    def filter(self, expression: Any) -> Self:
        """The rows for which an expression of ``pyarrow.compute`` is true, such as ``pc.field("amount") > 0``.

        Fields have the exact names of columns. A value inside an expression is Arrow's, of Arrow's type: a whole
        number beside a decimal is best written ``pc.scalar(Decimal(1))``. Comparisons are Arrow's, too, and differ from
        Spark's for NaN: in Arrow it fulfils none but ``!=``, in Spark it equals itself and is greater than all other
        numbers. So Spark's ``v > 5`` is ``(pc.field("v") > 5) | pc.is_nan(pc.field("v"))``.

        Raises:
            InvalidRequest: no expression, one whose result is not a boolean, or one that Arrow cannot evaluate over
                these columns, or not as Spark does: they have a collation or are CHAR(n).
        """
        name = self._stage_name(f"filter {_short(expression)}")
        (kind,) = self._types([_expression(expression, name)], ["condition"], name).types
        self._check_compared(expression, name)
        if str(kind) != "bool":
            raise InvalidRequest(f"{name}: the expression gives {kind}, not a boolean", stage=name)
        return self._with(
            FilterStage(expression, replace(self.leg.declared, stage=name, by_name=False)), self.leg.struct
        )

    def select(self, *names: str, **expressions: Any) -> Self:
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

        name = self._stage_name(f"select {', '.join([*map(str, names), *expressions])}")
        taken = self._keys(names, name)
        wanted: dict[str, Any] = {}
        kept = {column: self.leg.fields[column] for column in taken}
        renamed = tuple(given for given in expressions.values() if isinstance(given, str))
        columns_of = dict(zip(renamed, self._keys(renamed, name), strict=True))
        for label, expression in expressions.items():
            column = columns_of[expression] if isinstance(expression, str) else self._field_of(expression)
            if column is not None:
                old = self.leg.fields[column]
                kept[label] = StructField(label, old.dataType, old.nullable, old.metadata)
                wanted[label] = pc.field(column)
            else:
                wanted[label] = _expression(expression, name)
        columns = [*taken, *expressions]
        found = [*map(pc.field, taken), *wanted.values()]
        types = self._types(found, columns, name)
        for label in expressions.keys() - kept.keys():
            self._check_compared(wanted[label], name)
        fields = [
            kept[label] if label in kept else spark_field(label, type_, name)
            for label, type_ in zip(columns, types.types, strict=True)
        ]
        struct = declared_struct(self.spark, StructType(fields), name)
        declared = Declared(name, arrow_schema(self.spark, struct, name))
        return self._with(SelectStage(tuple(found), declared), struct)

    def _field_of(self, given: Any) -> str | None:
        """The column that an expression which is nothing but a field stands for."""
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        index = self._schema.get_field_index(str(given))
        is_field = index >= 0 and isinstance(given, pc.Expression) and given.equals(pc.field(str(given)))
        return str(given) if is_field else None

    def _check_compared(self, expression: Any, stage: str) -> None:
        remedy = "cast it to string before, in Spark, to compare bytes, or compare it there"
        check_compared(self.leg.struct, self._schema, expression, stage, remedy)

    def _types(self, expressions: list[Any], names: list[str], stage: str) -> Any:
        """The schema of the expressions' results."""
        return evaluate("project", expressions, names, self._schema.empty_table(), stage).schema


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
