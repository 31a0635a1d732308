"""The groups of a pipeline: their keys, aggregates and functions of them, also of two pipelines together.

Groups are in the partitions of the exchange that the rows come from, if it has placed them by exactly these keys, and
else after an exchange by them. A function between the two is trusted to keep the keys, and the tasks check it.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, SupportsIndex

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest
from spark_client.connection import short_traces
from spark_client.jobs import check_key
from spark_client.joining import KeyForm
from spark_client.placement import check_groupable
from spark_client.pyspark_parts import (
    DIVIDED_KINDS,
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from spark_client.steps import GroupedSide, GroupStage, PandasForm, PandasGroup

from .aggregating import (
    AggregateFunction,
    Aggregations,
    aggregated,
    counted_groups,
    partitions_by,
    reduced_columns,
)
from .base import AnySteps, declare, find_keys, integer, one_reading, second_side, with_stage
from .exchanging import exchanged
from .mapping import names_of
from .nodes import Leg, PlanPart
from .pairing import JoinKey, key_types, paired, placed_keys
from .spark_names import no_grouped_attribute, public_names


@one_reading
def group_by(
    steps: AnySteps, *cols: str | Sequence[str], numPartitions: SupportsIndex | None = None
) -> GroupedPipeline[AnySteps]:
    """The groups of rows of equal keys, as Spark's ``groupBy``: for aggregates, or for functions of each group.

    After a ``repartition`` by the same columns the groups are in its partitions; otherwise the aggregate or function
    makes an exchange by the keys. Without columns all rows are one group, for aggregates.

    Args:
        cols: names of columns, one by one or as one list.
        numPartitions: of the groups. None for those in which the rows are together already, or else
            ``spark.sql.shuffle.partitions``.

    Raises:
        InvalidRequest: a column that is not there, or of a type that rows cannot be grouped by.
    """
    where = f"groupBy({', '.join(map(repr, names_of(cols)))})"
    keys = tuple(dict.fromkeys(find_keys(steps, names_of(cols), where)))
    check_groupable(steps.leg.schema, keys, where)
    for key in keys:
        check_key(steps.leg.fields[key], where)
    return GroupedPipeline(steps, keys, numPartitions, where)


@dataclass(frozen=True, eq=False)
@short_traces
class GroupedPipeline(Generic[AnySteps]):
    """The result of :meth:`Pipeline.groupBy`."""

    _steps: AnySteps
    _keys: tuple[str, ...]
    _partitions: SupportsIndex | None
    _where: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._steps!r}.{self._where}>"

    if not TYPE_CHECKING:  # which would take any name for a method

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(no_grouped_attribute(name), name=name)

    def __dir__(self) -> list[str]:
        return public_names(type(self))

    def agg(self, /, *exprs: Aggregations, **named: tuple[str, AggregateFunction]) -> AnySteps:
        """One row for each group, also if there are no keys and no rows.

        ``{"amount": "sum"}``, ``{"amount": ["min", "max"]}``, ``{"*": "count"}`` name columns and functions; results
        have Spark's names, such as ``sum(amount)`` and ``count(1)``. ``total=("amount", "sum")``, or
        ``{"total": ("amount", "sum")}``, gives a result a name.

        Tasks reduce their rows before the exchange, by Arrow's kernels, and merge the states after it. If the rows
        are in partitions by some of the keys already, after a repartition or a join by them, there is no exchange.

        The functions are those of the table in ``spark_client/pipeline/README.md``.

        Raises:
            InvalidRequest: no function, or an unknown one; a column that is not there, or of a type that the function
                cannot take; two results of one name; as :meth:`Pipeline.repartition`.
        """
        return aggregated(self._steps, exprs, named, self._keys, self._partitions)

    def count(self) -> AnySteps:
        """How many rows each group has, as the column ``count``. Raises as :meth:`agg`."""
        return counted_groups(self._steps, self._keys, self._partitions)

    def sum(self, *cols: str) -> AnySteps:
        """The sums of these columns, or of all numbers. Raises as :meth:`agg`."""
        return self._reduced("sum", cols)

    def avg(self, *cols: str) -> AnySteps:
        """The means of these columns, or of all numbers. Raises as :meth:`agg`."""
        return self._reduced("avg", cols)

    mean = avg

    def min(self, *cols: str) -> AnySteps:
        """The least values of these columns, or of all numbers. Raises as :meth:`agg`."""
        return self._reduced("min", cols)

    def max(self, *cols: str) -> AnySteps:
        """The greatest values of these columns, or of all numbers. Raises as :meth:`agg`."""
        return self._reduced("max", cols)

    def _reduced(self, function: AggregateFunction, cols: tuple[str, ...]) -> AnySteps:
        return reduced_columns(self._steps, function, cols, self._keys, self._partitions)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> AnySteps:
        """``func`` for each group, as in Spark's ``groupBy(keys).applyInArrow``.

        ``func(table)`` or ``func(keys, table)``, with the keys as a tuple of Arrow scalars, returns a table; annotated
        with iterators of RecordBatch, it takes and returns those.

        Raises:
            InvalidRequest: no keys, a function of other than one or two arguments, or as for
                :meth:`Pipeline.mapInArrow` and :meth:`Pipeline.repartition`.
        """
        return self._apply("applyInArrow", func, schema)

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> AnySteps:
        """``func`` for each group, as in Spark's ``groupBy(keys).applyInPandas``: as :meth:`applyInArrow`, with a
        ``pandas.DataFrame`` for each table or batch (``steps.pandas_adapters``).

        Raises:
            InvalidRequest: as :meth:`applyInArrow`.
        """
        return self._apply("applyInPandas", func, schema)

    def cogroup(self, other: GroupedPipeline[Any]) -> CogroupedPipeline[AnySteps]:
        """The groups of both pipelines, key by key for ``applyInArrow``, as Spark's ``cogroup``.

        Keys are matched by position. A side that ends with a ``repartition`` by its keys is read where its rows are;
        the others are exchanged, to as many partitions.

        Raises:
            InvalidRequest: ``other`` is no grouped pipeline of this client and session, or has another number of keys,
                two keys are not compared, or the numbers of partitions that both ask for differ.
        """
        if not isinstance(other, GroupedPipeline):
            raise InvalidRequest(
                f"cogroup: the other side is groups, as in left.groupBy('k').cogroup(right.groupBy('k')), not "
                f"{type(other).__name__}"
            )
        second_side(self._steps, other._steps, "cogroup")
        _check_keys(self, "cogroup")
        if len(self._keys) != len(other._keys):
            raise InvalidRequest(
                f"cogroup: {self._where} has {len(self._keys)} keys and {other._where} {len(other._keys)}; equal keys "
                "have the same number on both sides"
            )
        one, two = self._partitions, other._partitions
        if one is not None and two is not None and integer(one) != integer(two):
            raise InvalidRequest(f"cogroup: numPartitions is {one!r} on one side and {two!r} on the other")
        return CogroupedPipeline(self, other)

    def _apply(self, method: str, func: Callable[..., Any], schema: StructType | str) -> AnySteps:
        steps = self._steps
        struct, declared = declare(steps, method, func, schema, by_name=True)
        _check_keys(self, declared.stage)
        if method == "applyInPandas":
            with_keys, iterates = _signature(func, declared.stage, infer_group_pandas_eval_type_from_func)
            func = PandasGroup(func, PandasForm(struct, declared.schema), with_keys, iterates)
        else:
            with_keys, iterates = _signature(func, declared.stage)
        placed = None
        if self._is_trusted:
            placed = placed_keys(steps.leg.parts[0], self._keys)
        elif not self._asks_for(partitions_by(steps, self._keys)):
            steps = exchanged(steps, self._partitions, self._keys, where=self._where)
        side = GroupedSide.alone(self._keys, steps.leg.schema, placed)
        stage = GroupStage(func, declared, (side,), with_keys, iterates)
        return with_stage(steps, stage, struct)

    @property
    def _is_trusted(self) -> bool:
        """Whether an exchange by just these keys comes before, and a function after it, which may have changed them.
        The tasks check that: to exchange again would cost more.
        """
        last = self._steps.leg.last
        if last is None or last.keys != self._keys or not self._asks_for(last.partitions):
            return False
        (part,) = self._steps.leg.parts
        return part.keeps(self._keys, functions_keep=True)

    def _asks_for(self, partitions: int | None) -> bool:
        """Whether the rows, which are together in so many partitions, are so in as many as the user wants."""
        return partitions is not None and (
            self._partitions is None or integer(self._partitions) == partitions
        )


@dataclass(frozen=True, eq=False)
@short_traces
class CogroupedPipeline(Generic[AnySteps]):
    """The result of :meth:`GroupedPipeline.cogroup`."""

    _left: GroupedPipeline[AnySteps]
    _right: GroupedPipeline[Any]

    def __dir__(self) -> list[str]:
        return public_names(type(self))

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> AnySteps:
        """``func`` for each key of either side, as in Spark's ``cogroup(...).applyInArrow``.

        ``func(left, right)`` or ``func(keys, left, right)``, with the keys as a tuple of Arrow scalars, takes two
        tables, of which one may have no rows, and returns a table; annotated with iterators of RecordBatch, it takes
        two iterators, reads them in any order, and returns an iterator. Nulls in keys are equal.

        Raises:
            InvalidRequest: two keys are not compared, a function of other than two or three arguments or with one
                iterator, or as for :meth:`Pipeline.mapInArrow`.
        """
        return self._apply("applyInArrow", func, schema)

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> AnySteps:
        """``func`` for each key of either side, as in Spark's ``cogroup(...).applyInPandas``: as :meth:`applyInArrow`,
        with a ``pandas.DataFrame`` for each table (``steps.pandas_adapters``), and without iterators.

        Raises:
            InvalidRequest: as :meth:`applyInArrow`.
        """
        return self._apply("applyInPandas", func, schema)

    def _apply(self, method: str, func: Callable[..., Any], schema: StructType | str) -> AnySteps:
        left, right = self._left._steps, self._right._steps
        lefts, rights = self._left._keys, self._right._keys
        struct, declared = declare(left, f"cogroup {method}", func, schema, right.leg, by_name=True)
        name = declared.stage
        types = zip(key_types(left.leg.schema, lefts), key_types(right.leg.schema, rights), strict=True)
        keys = [
            JoinKey(one, two, _form(*pair, f"{name}: keys {one!r} and {two!r}"))
            for one, two, pair in zip(lefts, rights, types, strict=True)
        ]
        with_keys, iterates = _signature_of_two(func, name)
        if method == "applyInPandas":
            if iterates:
                raise InvalidRequest(
                    f"{name}: it takes DataFrames; only applyInArrow takes iterators", stage=name
                )
            func = PandasGroup(func, PandasForm(struct, declared.schema), with_keys)
        partitions = self._left._partitions if self._left._partitions is not None else self._right._partitions
        pair, *placed = paired(left, right.leg, keys, partitions, name)
        compared = tuple(key.form.compared for key in keys)
        sides = (
            GroupedSide(lefts, compared, left.leg.schema, placed[0]),
            GroupedSide(rights, compared, right.leg.schema, placed[1]),
        )
        stage = GroupStage(func, declared, sides, with_keys, iterates)
        return replace(left, leg=Leg((PlanPart(pair, (stage,)),), struct, declared))


def _form(left: pa.DataType, right: pa.DataType, where: str) -> KeyForm:
    """The form in which keys are compared: of one type, which may be nested, as they are. Raises InvalidRequest."""
    return KeyForm(left, left) if left == right else KeyForm.of(left, right, where)


def _check_keys(groups: GroupedPipeline[Any], where: str) -> None:
    if not groups._keys:
        raise InvalidRequest(
            f"{where}: groupBy() has no keys; name them, or give a function all rows by repartition(1).mapInArrow"
        )


def _signature(
    func: Callable[..., Any], stage: str, infer: Callable[[Any], Any] = infer_group_arrow_eval_type_from_func
) -> tuple[bool, bool]:
    """Whether ``func`` takes the keys first, and whether it takes iterators: by Spark's own rules."""
    with_keys = len(_arguments(func, ("table",), stage)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind = infer(func)
        except Exception:  # noqa: BLE001 - incomplete annotations: Spark then takes tables, too
            kind = None
    return with_keys, kind in DIVIDED_KINDS


def _signature_of_two(func: Callable[..., Any], stage: str) -> tuple[bool, bool]:
    """As :func:`_signature`, of a function of two sides."""
    names = _arguments(func, ("left", "right"), stage)
    try:
        hints = typing.get_type_hints(func)
    except Exception:  # noqa: BLE001 - annotations that cannot be evaluated: Spark then takes tables, too
        hints = {}
    left, right = (_is_iterator(hints.get(name)) for name in names[-2:])
    if left is not right:
        raise InvalidRequest(
            f"{stage}: one side is annotated as an iterator of RecordBatch and the other is not; it takes two "
            "tables or two iterators",
            stage=stage,
        )
    return len(names) == 3, left


def _arguments(func: Callable[..., Any], sides: tuple[str, ...], stage: str) -> Sequence[str]:
    """The names of the function's arguments; ``sides`` if it does not tell. Raises InvalidRequest: they are neither one
    for each side, nor one more, for the keys.
    """
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return sides
    if len(names) not in (len(sides), len(sides) + 1):
        rows = ", ".join(sides)
        raise InvalidRequest(
            f"{stage}: it takes ({rows}) or (keys, {rows}), not {len(names)} arguments", stage=stage
        )
    return names


def _is_iterator(hint: Any) -> bool:
    return typing.get_origin(hint) in (Iterator, Iterable) and typing.get_args(hint) == (pa.RecordBatch,)
