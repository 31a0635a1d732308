"""Functions of pandas as functions of Arrow, for the stages of ``mapInPandas`` and ``applyInPandas``.

Guarantee: a function gets the DataFrames, and its results become the rows, that they do in Spark's own methods, by
PySpark's own code (``pyspark_parts``): integers with nulls are ``float64`` with NaN, or another type by the session's
version and settings; timestamps have no zone and are in the session's; structs are dicts, arrays numpy's. Results are
matched by name if a column's name is text, and else by position; PySpark's errors name the misfit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_client.pyspark_parts import PandasConversion, check_result

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class PandasForm:
    """The result of a function of pandas: rows of ``struct``, which is ``schema`` in Arrow; and the session's
    ``settings``, None until a plan runs (``session_settings``).
    """

    struct: StructType
    schema: pa.Schema
    settings: PandasConversion | None = None

    @property
    def conversion(self) -> PandasConversion:
        assert self.settings is not None
        return self.settings

    def key(self, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        """A group's keys, which are Arrow's scalars, as pandas has them."""
        names = [str(number) for number in range(len(keys))]
        table = pa.Table.from_arrays([pa.repeat(value, 1) for value in keys], names=names)
        return tuple(column.iloc[0] for column in self.conversion.columns(table))

    def mapped(self, result: Any) -> pa.RecordBatch:
        """The rows of a DataFrame that a function of ``mapInPandas`` gave.

        Raises:
            PySparkTypeError: not a DataFrame, or a column that cannot become the declared type.
            PySparkValueError: a value that does not fit the declared type.
            PySparkRuntimeError: other columns than the declared ones.
        """
        check_result(result, self.struct, by_name=True, cut=True)
        return self.conversion.batch(result, self.struct, self.schema)

    def grouped(self, result: Any) -> pa.RecordBatch:
        """The rows of a DataFrame that a function of groups gave; errors as :meth:`mapped`."""
        check_result(result, self.struct, by_name=self.conversion.by_name, cut=False)
        return self.conversion.batch(result, self.struct, self.schema)


@dataclass(frozen=True)
class PandasMap:
    """``fn`` of ``mapInPandas``, from an iterator of DataFrames to one of DataFrames, over record batches."""

    fn: Callable[[Iterator[Any]], Iterable[Any]]
    form: PandasForm

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The results' rows; errors as :meth:`PandasForm.mapped`, and PySparkTypeError if it is no iterable of
        DataFrames.
        """
        results = self.fn(map(self.form.conversion.mapped, batches))
        return map(self.form.mapped, _frames(results))


@dataclass(frozen=True)
class PandasGroup:
    """``fn`` of ``applyInPandas``, also of a cogroup, over the keys' scalars, if ``with_keys``, and each side's table,
    or iterator of batches.
    """

    fn: Callable[..., Any]
    form: PandasForm
    with_keys: bool
    iterates: bool = False

    def __call__(self, *args: Any) -> Any:
        """A table, or an iterator of batches; errors as :meth:`PandasForm.mapped`."""
        keys, sides = (args[:1], args[1:]) if self.with_keys else ((), args)
        first, grouped = map(self.form.key, keys), self.form.conversion.grouped
        if self.iterates:
            return map(self.form.grouped, self.fn(*first, *(map(grouped, rows) for rows in sides)))
        if len(sides) == 1:
            # As Spark: a column of several chunks has the same values, but not always the same type.
            sides = (sides[0].combine_chunks(),)
        return pa.Table.from_batches([self.form.grouped(self.fn(*first, *map(grouped, sides)))])


def _frames(results: Any) -> Iterator[Any]:
    import pandas as pd  # noqa: PLC0415 - only tasks with functions of pandas need it
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415 - as above

    def refused(actual: str) -> Exception:
        parameters = {"expected": "iterator of pandas.DataFrame", "actual": actual}
        return PySparkTypeError(errorClass="UDF_RETURN_TYPE", messageParameters=parameters)

    if not isinstance(results, Iterable):
        raise refused(type(results).__name__)
    for result in results:
        if not isinstance(result, pd.DataFrame):
            raise refused(f"iterator of {type(result).__name__}")
        yield result
