"""PySpark's own rules for schemas, for the annotations of functions, and its pickler."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.pandas.typehints import (
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

DIVIDED_KINDS = frozenset(
    {PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF, PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF}
)
"""The answers of the two functions ``infer_…`` for a function that takes a group in batches."""


def arrow_schema_of(struct: StructType, *, timezone: str | None, large: bool = False) -> pa.Schema:
    """Spark's own Arrow schema for ``struct``; ``large`` gives text and bytes 64-bit offsets. Raises PySparkTypeError,
    UnsupportedOperationException, ValueError: Spark has no Arrow type for a column.
    """
    options: dict[str, Any] = {
        "error_on_duplicated_field_names_in_struct": True,
        "timezone": timezone,
        "prefers_large_types": large,
    }
    # Spark 4.1 has no `timezone`: its timestamps are labelled UTC, which is the same instant.
    accepted = inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(struct, **{name: value for name, value in options.items() if name in accepted})


__all__ = [
    "DIVIDED_KINDS",
    "arrow_schema_of",
    "cloudpickle",
    "from_arrow_schema",
    "from_arrow_type",
    "infer_group_arrow_eval_type_from_func",
    "infer_group_pandas_eval_type_from_func",
]
