"""The filter of a scan: checked in the driver, and the row groups that it may prune."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.arrow import folded, needed, parts_of

_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal", "is_valid")
_JOINS = ("and_kleene", "or_kleene")


def expression_of(filter: Any, schema: pa.Schema) -> Any:  # noqa: A002 - pyarrow's name
    """The filter as an expression that fits the schema; None for none. Raises InvalidRequest: it is no filter, or does
    not fit.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - only a scan needs it
    from pyarrow import parquet as pq  # noqa: PLC0415 - as above

    if filter is None:
        return None
    if isinstance(filter, list):
        try:
            filter = pq.filters_to_expression(filter)  # noqa: A001 - as above
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"scan: filter {filter!r}: {error}") from error
    if not isinstance(filter, pc.Expression):
        raise InvalidRequest(
            f"scan: filter is an expression such as pyarrow.compute.field('x') > 5, or a list such as "
            f"[('x', '>', 5)], not {filter!r}"
        )
    check(filter, schema)
    return filter


def check(expression: Any, schema: pa.Schema) -> None:
    """Raise InvalidRequest if the expression does not fit the schema."""
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidRequest(f"scan: filter {expression}: {str(error).partition(chr(10))[0]}") from error


def statistics_tell(expression: Any, schema: pa.Schema) -> bool:
    """Whether no row of a row group fulfils an expression that Arrow finds false by the group's statistics.

    Statistics leave NaN out, and Arrow forgets that: it takes ``x != 5`` or ``is_nan(x)`` for false where the others
    are 5. NaN fulfils no comparison but ``!=``, so those may be pruned by, also joined by "and" and "or".
    """
    if not any(_has_floats(schema.field(name).type) for name in needed(expression, schema)):
        return True
    parts = parts_of(expression)
    return parts is not None and folded(parts, lambda _: None, _of_call) is True


def _of_call(function: str, arguments: list[bool | None]) -> bool:
    """Whether NaN cannot fulfil the condition; None stands for a column or a value."""
    if function in _COMPARISONS:
        return all(each is None for each in arguments)
    return function in _JOINS and all(arguments)


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _has_floats(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_floats(kind.storage_type)
    if pa.types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(number).type) for number in range(kind.num_fields))
