"""Functions of pandas as functions of Arrow, for the stages of ``mapInPandas`` and ``applyInPandas``.

Guarantee: a function gets the DataFrames, and its results become the rows, that they do in Spark's own methods, by
PySpark's own converters: timestamps without a zone in the session's, structs as dicts, arrays as numpy's, integers
with nulls as floats. Results are matched by name if a column's name is text, and else by position; PySpark's errors
say what does not fit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True)
class PandasForm:
    """How rows of ``given`` become a DataFrame, and a DataFrame rows of ``struct``, which is ``schema`` in Arrow.

    The others are Spark's settings: ``safe`` refuses overflow and lost digits, ``by_name`` matches columns of groups by
    name, ``int_to_decimal`` takes integers for decimals, ``int_extension`` gives integers in pandas' nullable types.
    """

    given: StructType
    struct: StructType
    schema: pa.Schema
    timezone: str
    safe: bool
    by_name: bool
    int_to_decimal: bool
    int_extension: bool

    def frame(self, data: Any) -> Any:
        """The DataFrame of a batch or table."""
        import pandas as pd  # noqa: PLC0415 - only tasks with functions of pandas need it

        series = [
            self._series(column, field.dataType)
            for column, field in zip(data.columns, self.given, strict=True)
        ]
        frame = pd.concat(series, axis=1)
        frame.columns = pd.Index(self.given.names)
        return frame

    def key(self, keys: tuple[Any, ...], names: tuple[str, ...]) -> tuple[Any, ...]:
        """A group's keys, which are Arrow's scalars, as pandas has them."""
        return tuple(
            self._series(pa.repeat(value, 1), self.given[name].dataType).iloc[0]
            for value, name in zip(keys, names, strict=True)
        )

    def batch(self, result: Any, *, by_name: bool, cut: bool) -> Any:
        """The rows of a DataFrame. ``cut`` allows more columns than the declared ones, where they go by position.

        Raises:
            PySparkTypeError: not a DataFrame, or a column that cannot become the declared type.
            PySparkValueError: a value that does not fit the declared type.
            PySparkRuntimeError: other columns than the declared ones.
        """
        from pyspark.worker import verify_pandas_result  # noqa: PLC0415 - as above

        verify_pandas_result(result, self.struct, by_name, truncate_return_schema=cut)
        if not len(result.columns):
            columns = [pa.nulls(len(result), kind) for kind in self.schema.types]
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if self.by_name and any(isinstance(name, str) for name in result.columns):
            result = result[self.struct.names]
        columns = [self._column(result.iloc[:, index], index) for index in range(len(self.struct))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _series(self, column: Any, kind: DataType) -> Any:
        import pandas as pd  # noqa: PLC0415 - as above
        from pyspark.sql.pandas.types import _create_converter_to_pandas  # noqa: PLC0415 - as above

        if self.int_extension and pa.types.is_integer(column.type):
            wide = {
                pa.int8(): pd.Int8Dtype(),
                pa.int16(): pd.Int16Dtype(),
                pa.int32(): pd.Int32Dtype(),
                pa.int64(): pd.Int64Dtype(),
            }
            return column.to_pandas(types_mapper=wide.get)
        series = column.to_pandas(
            date_as_object=True, coerce_temporal_nanoseconds=True, integer_object_nulls=True
        )
        converter = _create_converter_to_pandas(
            kind, nullable=True, timezone=self.timezone, struct_in_pandas="dict", integer_object_nulls=True
        )
        return converter(series)

    def _column(self, series: Any, index: int) -> pa.Array:
        import pandas as pd  # noqa: PLC0415 - as above
        from pyspark.errors import PySparkTypeError, PySparkValueError  # noqa: PLC0415 - as above

        field, kind = self.struct[index], self.schema.field(index).type
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.dtype.categories.dtype)
        series = _from_pandas(field.dataType, self.timezone, int_to_decimal=self.int_to_decimal)(series)
        mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
        try:
            try:
                return pa.Array.from_pandas(series, mask=mask, type=kind, safe=self.safe)
            except pa.ArrowInvalid:
                return pa.Array.from_pandas(series, mask=mask).cast(target_type=kind, safe=self.safe)
        except TypeError as error:
            raise PySparkTypeError(
                f"Cannot convert the output value of the column '{field.name}' with type '{series.dtype}' to the "
                f"specified return type of the column: '{kind}'. Please check if the data types match and try again."
            ) from error
        except ValueError as error:
            unsafe = (
                " It can be caused by overflows or other unsafe conversions warned by Arrow. Arrow safe type check can "
                "be disabled by using SQL config `spark.sql.execution.pandas.convertToArrowArraySafely`."
            )
            raise PySparkValueError(
                f"Failed to convert the value of the column '{field.name}' with type '{series.dtype}' to Arrow type "
                f"'{kind}'.{unsafe if self.safe else ''}"
            ) from error


def _from_pandas(kind: DataType, timezone: str, *, int_to_decimal: bool) -> Callable[[Any], Any]:
    from pyspark.sql.pandas.types import _create_converter_from_pandas  # noqa: PLC0415 - as above

    options: dict[str, Any] = {
        "timezone": timezone,
        "error_on_duplicated_field_names": False,
        "int_to_decimal_coercion_enabled": int_to_decimal,
    }
    # Older versions have fewer.
    accepted = inspect.signature(_create_converter_from_pandas).parameters
    found: Callable[[Any], Any] = _create_converter_from_pandas(
        kind, **{name: value for name, value in options.items() if name in accepted}
    )
    return found


@dataclass(frozen=True)
class PandasMap:
    """``fn`` of ``mapInPandas``, from an iterator of DataFrames to one of DataFrames, over record batches."""

    fn: Callable[[Iterator[Any]], Iterable[Any]]
    form: PandasForm

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The results' rows; errors as :meth:`PandasForm.batch`."""
        for result in self.fn(map(self.form.frame, batches)):
            yield self.form.batch(result, by_name=True, cut=True)


@dataclass(frozen=True)
class PandasCogroup:
    """``fn`` of ``cogroup(...).applyInPandas``, over the keys' scalars, if ``with_keys``, and two tables. ``left`` and
    ``right`` say how each side's rows become a DataFrame, ``left_keys`` and ``right_keys`` which columns are the keys.
    """

    fn: Callable[..., Any]
    left: PandasForm
    right: PandasForm
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    with_keys: bool

    def __call__(self, *given: Any) -> Any:
        """A table; errors as :meth:`PandasForm.batch`."""
        *keys, left, right = given
        first: tuple[Any, ...] = ()
        if self.with_keys:
            of_left = left.num_rows > 0
            form, names = (self.left, self.left_keys) if of_left else (self.right, self.right_keys)
            first = (form.key(keys[0], names),)
        result = self.fn(*first, self.left.frame(left), self.right.frame(right))
        return pa.Table.from_batches([self.left.batch(result, by_name=self.left.by_name, cut=False)])


@dataclass(frozen=True)
class PandasGroup:
    """``fn`` of ``applyInPandas``, over the keys' scalars, if ``with_keys``, and a table, or an iterator of batches."""

    fn: Callable[..., Any]
    form: PandasForm
    keys: tuple[str, ...]
    with_keys: bool
    iterates: bool

    def __call__(self, *given: Any) -> Any:
        """A table, or an iterator of batches; errors as :meth:`PandasForm.batch`."""
        *keys, rows = given
        first = (self.form.key(keys[0], self.keys),) if self.with_keys else ()
        if self.iterates:
            return map(self._batch, self.fn(*first, map(self.form.frame, rows)))
        return pa.Table.from_batches([self._batch(self.fn(*first, self.form.frame(rows)))])

    def _batch(self, result: Any) -> Any:
        return self.form.batch(result, by_name=self.form.by_name, cut=False)
