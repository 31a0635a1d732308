"""Rows of Arrow as pandas has them in Spark's own functions, and back, by the code that Spark's worker runs.

That code differs between Spark's methods (``mapInPandas`` converts all columns together, the others each by itself) and
between its versions: 4.1 has it in a serializer. It takes types from Arrow's schema, not from Spark's, so that
user-defined types are converted as the types that they consist of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class PandasConversion:
    """By Spark's settings.

    ``safe`` refuses overflow and lost digits, ``by_name`` matches columns of groups by name, ``int_to_decimal`` takes
    integers for decimals, ``int_extension`` gives integers in pandas' nullable types, ``large`` gives text and bytes
    64-bit offsets.
    """

    timezone: str
    safe: bool
    by_name: bool
    int_to_decimal: bool
    int_extension: bool
    large: bool

    def mapped(self, batch: pa.RecordBatch) -> Any:
        """A batch as the DataFrame that ``mapInPandas`` gives."""
        try:
            from pyspark.sql.conversion import ArrowBatchTransformer  # noqa: PLC0415 - imports pandas
        except ImportError:
            return _together(self._serialize(batch))
        wrapped = ArrowBatchTransformer.wrap_struct(batch)
        (frame,) = ArrowBatchTransformer.to_pandas(wrapped, **self._options(), df_for_struct=True)
        return frame

    def grouped(self, data: Any) -> Any:
        """A group's table or batch as the DataFrame that ``applyInPandas`` gives."""
        return _together(self.columns(data))

    def columns(self, data: Any) -> list[Any]:
        """The columns of a group's table or batch, each as the Series of :meth:`grouped`."""
        try:
            from pyspark.sql.conversion import ArrowBatchTransformer  # noqa: PLC0415 - as above
        except ImportError:
            return self._serialize(data)
        columns: list[Any] = ArrowBatchTransformer.to_pandas(data, **self._options())
        return columns

    def batch(self, result: Any, struct: StructType, schema: pa.Schema) -> pa.RecordBatch:
        """A function's DataFrame, whose columns :func:`check_result` accepts, as rows of ``struct``, which is
        ``schema`` in Arrow.

        Raises:
            PySparkTypeError: a column cannot become the declared type.
            PySparkValueError: a value does not fit the declared type.
        """
        try:
            from pyspark.sql.conversion import PandasToArrowConversion  # noqa: PLC0415 - as above
        except ImportError:
            made = self._serializer()._create_batch([(result, pa.struct(list(schema)))])
            return pa.RecordBatch.from_arrays(made.column(0).flatten(), schema=schema)
        return PandasToArrowConversion.convert(
            result,
            struct,
            timezone=self.timezone,
            safecheck=self.safe,
            arrow_cast=True,
            prefers_large_types=self.large,
            assign_cols_by_name=self.by_name,
            int_to_decimal_coercion_enabled=self.int_to_decimal,
        )

    def _options(self) -> dict[str, Any]:
        return {"timezone": self.timezone, "prefer_int_ext_dtype": self.int_extension}

    def _serialize(self, data: Any) -> list[Any]:
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        serializer = self._serializer()
        return [serializer.arrow_to_pandas(column, at) for at, column in enumerate(table.itercolumns())]

    def _serializer(self) -> Any:
        from pyspark.sql.pandas import serializers  # noqa: PLC0415 - as above

        # Only Spark 4.1 comes here, and its serializer has other arguments than the later ones.
        kind: Any = serializers.ArrowStreamPandasUDFSerializer  # type: ignore[attr-defined]  # as said above
        return kind(
            self.timezone,
            self.safe,
            self.by_name,
            arrow_cast=True,
            int_to_decimal_coercion_enabled=self.int_to_decimal,
        )


def check_result(result: Any, struct: StructType, *, by_name: bool, cut: bool) -> None:
    """Check the result of a function of pandas. ``cut`` allows more columns than the declared ones, where they go by
    position.

    Raises:
        PySparkTypeError: not a DataFrame.
        PySparkRuntimeError: other columns than the declared ones.
    """
    from pyspark.worker import verify_pandas_result  # noqa: PLC0415 - as above

    verify_pandas_result(result, struct, by_name, truncate_return_schema=cut)


def _together(columns: list[Any]) -> Any:
    import pandas as pd  # noqa: PLC0415 - only tasks with functions of pandas need it

    return pd.concat(columns, axis=1)
