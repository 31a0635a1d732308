"""The functions of ``aggregate``: for each, the types that it takes, its states, its result's type and Spark's name for
it.

Types of results are Spark's: the sum of integers is a ``bigint``, that of ``decimal(p, s)`` a ``decimal(p + 10, s)``,
its mean a ``decimal(p + 4, s + 4)``, each of at most 38 digits; other sums and means are doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from spark_client.arrow import check_sortable, groupable

from . import group_results as results
from . import group_states as states


@dataclass(frozen=True)
class Computed:
    """How one result is computed: ``finish`` over the states; ``type`` is its type in Arrow. ``distinct`` is the column
    if the result is how many different values it has, which may be counted without the states.
    """

    states: tuple[states.StateColumn, ...]
    finish: Callable[..., pa.Array]
    type: pa.DataType
    nullable: bool = True
    distinct: str | None = None


Maker = Callable[[str, pa.DataType], Computed]


@dataclass(frozen=True)
class Function:
    """``label`` is Spark's name of the result, with ``{}`` for the column; ``takes`` says in words which types
    ``accepts`` accepts. ``compares``: it compares values. ``keeps_type``: its result has the column's own type, or is a
    list of it.
    """

    label: str
    make: Maker
    takes: str
    accepts: Callable[[pa.DataType], bool]
    compares: bool = False
    keeps_type: bool = False


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _has_order(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        try:
            check_sortable(kind, "")
        except TypeError:
            return False
    return not pa.types.is_null(kind) and not pa.types.is_interval(kind)


def _is_known(kind: pa.DataType) -> bool:
    return not pa.types.is_null(kind)


def _is_comparable(kind: pa.DataType) -> bool:
    return _is_known(kind) and groupable(kind)


def _any(kind: pa.DataType) -> bool:  # noqa: ARG001 - the face of ``accepts``
    return True


def _count(column: str, kind: pa.DataType) -> Computed:  # noqa: ARG001 - the face of a maker
    return Computed((states.Present(column),), results.counted, pa.int64(), nullable=False)


def count_rows() -> Computed:
    """``count(*)``."""
    return Computed((states.RowCount(),), results.counted, pa.int64(), nullable=False)


def _sum_of(column: str, kind: pa.DataType) -> states.Sum:
    if pa.types.is_integer(kind):
        return states.Sum(column, pa.int64())
    if pa.types.is_decimal(kind):
        return states.Sum(column, pa.decimal128(min(38, kind.precision + 10), kind.scale))
    return states.Sum(column, pa.float64())


def _sum(column: str, kind: pa.DataType) -> Computed:
    state = _sum_of(column, kind)
    return Computed((state,), results.as_it_is, state.type)


def _mean(column: str, kind: pa.DataType) -> Computed:
    count = states.Present(column)
    if pa.types.is_decimal(kind):
        digits, scale = min(38, kind.precision + 4), min(38, kind.scale + 4)
        result = pa.decimal128(digits, scale)
        finish = partial(results.decimal_average, result)
        return Computed((_sum_of(column, kind), count), finish, result)
    return Computed((states.Sum(column, pa.float64()), count), results.average, pa.float64())


def _extreme(kernel: str, column: str, kind: pa.DataType) -> Computed:
    if pa.types.is_nested(kind):
        state: states.StateColumn = states.Foremost(column, kind, kernel == "max")
    else:
        state = states.Extreme.of(column, kind, kernel)
    return Computed((state,), partial(results.extreme, kind), kind)


def _deviation(freedom: int, column: str, kind: pa.DataType, *, root: bool) -> Computed:  # noqa: ARG001 - as above
    return Computed((states.Moments(column),), partial(results.deviation, freedom, root=root), pa.float64())


def _product(column: str, kind: pa.DataType) -> Computed:  # noqa: ARG001 - as above
    return Computed((states.Product(column),), results.as_it_is, pa.float64())


def _values(column: str, kind: pa.DataType, *, distinct: bool) -> states.Values:
    return states.Values(column, pa.list_(pa.field("element", kind, nullable=False)), distinct)


def _list(column: str, kind: pa.DataType, *, distinct: bool) -> Computed:
    state = _values(column, kind, distinct=distinct)
    return Computed((state,), results.as_it_is, state.type, nullable=False)


def _count_distinct(column: str, kind: pa.DataType) -> Computed:
    state = _values(column, kind, distinct=True)
    return Computed((state,), results.length, pa.int64(), nullable=False, distinct=column)


def _median(column: str, kind: pa.DataType) -> Computed:
    return Computed((_values(column, kind, distinct=False),), results.median, pa.float64())


def _numeric(label: str, make: Maker) -> Function:
    return Function(label, make, "numbers", _is_number)


def _order_function(label: str, make: Maker) -> Function:
    return Function(label, make, "values that have an order", _has_order, compares=True, keeps_type=True)


FUNCTIONS: dict[str, Function] = {
    "sum": _numeric("sum({})", _sum),
    "avg": _numeric("avg({})", _mean),
    "product": _numeric("product({})", _product),
    "stddev": _numeric("stddev({})", partial(_deviation, 1, root=True)),
    "stddev_samp": _numeric("stddev_samp({})", partial(_deviation, 1, root=True)),
    "stddev_pop": _numeric("stddev_pop({})", partial(_deviation, 0, root=True)),
    "variance": _numeric("variance({})", partial(_deviation, 1, root=False)),
    "var_samp": _numeric("var_samp({})", partial(_deviation, 1, root=False)),
    "var_pop": _numeric("var_pop({})", partial(_deviation, 0, root=False)),
    "median": _numeric("median({})", _median),
    "min": _order_function("min({})", partial(_extreme, "min")),
    "max": _order_function("max({})", partial(_extreme, "max")),
    "bool_or": Function("bool_or({})", partial(_extreme, "max"), "booleans", pa.types.is_boolean),
    "bool_and": Function("bool_and({})", partial(_extreme, "min"), "booleans", pa.types.is_boolean),
    "count": Function("count({})", _count, "any type", _any),
    "count_distinct": Function(
        "count(DISTINCT {})", _count_distinct, "values that can be compared", _is_comparable, compares=True
    ),
    "collect_list": Function(
        "collect_list({})",
        partial(_list, distinct=False),
        "values of a known type",
        _is_known,
        keeps_type=True,
    ),
    "collect_set": Function(
        "collect_set({})",
        partial(_list, distinct=True),
        "values that can be compared",
        _is_comparable,
        compares=True,
        keeps_type=True,
    ),
}

SYNONYMS = {
    "mean": "avg",
    "any": "bool_or",
    "some": "bool_or",
    "every": "bool_and",
    "all": "bool_and",
    "std": "stddev",
    "var": "variance",
    "list": "collect_list",
    "set": "collect_set",
    "countDistinct": "count_distinct",
}
