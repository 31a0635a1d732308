"""Steps that see the rows of a key together: of one pipeline, or of two, by the keys of their last exchanges."""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest
from spark_client.jobs import check_key
from spark_client.joining import KeyForm
from spark_client.placement import check_groupable
from spark_client.pyspark_parts import (
    DIVIDED_KINDS,
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from spark_client.steps import CogroupStage, GroupedSide, GroupStage, PandasCogroup, PandasForm, PandasGroup

from .base import AnySteps, Steps, declare, find_keys, with_stage
from .nodes import Exchange, Leg, Pair, PlanPart
from .pairing import Types, key_types, placed_keys, placed_types, placing_types


def apply_in_arrow(steps: AnySteps, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
    """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInArrow``.

    ``fn(table)`` or ``fn(keys, table)``, with the keys as a tuple of Arrow scalars, returns a table; annotated
    with iterators of RecordBatch, it takes and returns those.

    Raises:
        InvalidRequest: no exchange with keys before it, a key whose column is gone or cannot be grouped by, a
            function of other than one or two arguments, or as for :meth:`mapInArrow`.
    """
    return _apply(steps, "applyInArrow", fn, schema)


def apply_in_pandas(steps: AnySteps, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
    """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInPandas``: as
    :meth:`applyInArrow`, with a ``pandas.DataFrame`` for each table or batch (``steps.pandas_adapters``).

    Raises:
        InvalidRequest: as :meth:`applyInArrow`.
    """
    return _apply(steps, "applyInPandas", fn, schema)


def _apply(steps: AnySteps, method: str, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
    struct, declared = declare(steps, method, fn, schema, by_name=True)
    _, side = _Keyed.of(steps, declared.stage).side()
    if method == "applyInPandas":
        with_keys, iterates = _signature(fn, declared.stage, infer_group_pandas_eval_type_from_func)
        fn = PandasGroup(fn, PandasForm(struct, declared.schema), with_keys, iterates)
    else:
        with_keys, iterates = _signature(fn, declared.stage)
    stage = GroupStage(fn, declared, side.keys, side.schema, with_keys, iterates, side.placed)
    return with_stage(steps, stage, struct)


def _signature(
    fn: Callable[..., Any], stage: str, infer: Callable[[Any], Any] = infer_group_arrow_eval_type_from_func
) -> tuple[bool, bool]:
    """Whether ``fn`` takes the keys first, and whether it takes iterators: by Spark's own rules."""
    with_keys = len(_arguments(fn, ("table",), stage)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind = infer(fn)
        except Exception:  # noqa: BLE001 - incomplete annotations: Spark then takes tables, too
            kind = None
    return with_keys, kind in DIVIDED_KINDS


def _signature_of_two(fn: Callable[..., Any], stage: str) -> tuple[bool, bool]:
    """As :func:`_signature`, of a function of two sides."""
    names = _arguments(fn, ("left", "right"), stage)
    try:
        hints = typing.get_type_hints(fn)
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


def _arguments(fn: Callable[..., Any], sides: tuple[str, ...], stage: str) -> Sequence[str]:
    """The names of the function's arguments; ``sides`` if it does not tell. Raises InvalidRequest: they are neither one
    for each side, nor one more, for the keys.
    """
    try:
        names = list(inspect.signature(fn).parameters)
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


@dataclass(frozen=True, eq=False)
class Cogrouped(Generic[AnySteps]):
    """The result of :meth:`Pipeline.cogroup`."""

    left: AnySteps
    right: Steps

    def applyInArrow(self, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:  # noqa: N802 - Spark's name
        """``fn`` for each key of either side, as in Spark's ``cogroup(...).applyInArrow``.

        ``fn(left, right)`` or ``fn(keys, left, right)``, with the keys as a tuple of Arrow scalars, takes two tables,
        of which one may have no rows, and returns a table; annotated with iterators of RecordBatch, it takes two
        iterators, reads them in any order, and returns an iterator. Nulls in keys are equal.

        Raises:
            InvalidRequest: a side does not end with an exchange with keys, the numbers of partitions or of keys
                differ, two keys are not compared, a key's column is gone or cannot be grouped by, a function of
                other than two or three arguments or with one iterator, or as for :meth:`Pipeline.mapInArrow`.
        """
        return self._apply("applyInArrow", fn, schema)

    def applyInPandas(self, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:  # noqa: N802 - as above
        """``fn`` for each key of either side, as in Spark's ``cogroup(...).applyInPandas``: as :meth:`applyInArrow`,
        with a ``pandas.DataFrame`` for each table (``steps.pandas_adapters``), and without iterators.

        Raises:
            InvalidRequest: as :meth:`applyInArrow`.
        """
        return self._apply("applyInPandas", fn, schema)

    def _apply(self, method: str, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
        left, right = self.left, self.right
        struct, declared = declare(left, f"cogroup {method}", fn, schema, right.leg, by_name=True)
        name = declared.stage
        one, two = _Keyed.of(left, name, "left"), _Keyed.of(right, name, "right")
        _check_alike(one.exchange, two.exchange, name)
        names = list(zip(one.keys, two.keys, strict=True))
        compared = _common(one.types, two.types, names, name)
        before = placed_types(one.exchange), placed_types(two.exchange)
        placing = placing_types(*before, _common(*before, names, name))
        with_keys, iterates = _signature_of_two(fn, name)
        if method == "applyInPandas":
            if iterates:
                raise InvalidRequest(
                    f"{name}: it takes DataFrames; only applyInArrow takes iterators", stage=name
                )
            fn = PandasCogroup(fn, PandasForm(struct, declared.schema), with_keys)
        (first, first_side), (second, second_side) = (
            one.side(compared, placing[0]),
            two.side(compared, placing[1]),
        )
        stage = CogroupStage(fn, declared, first_side, second_side, with_keys, iterates)
        return replace(left, leg=Leg((PlanPart(Pair(first, second), (stage,)),), struct, declared))


@dataclass(frozen=True)
class _Keyed:
    """A pipeline, the exchange by keys that it ends with, and the columns of these keys as they are named now."""

    steps: Steps
    exchange: Exchange
    keys: tuple[str, ...]

    @classmethod
    def of(cls, steps: Steps, stage: str, side: str = "") -> _Keyed:
        """``side`` is the one of a cogroup. Raises InvalidRequest: there is no such exchange, or its keys cannot be
        grouped by, or a select after it has given the name of one to another column.
        """
        exchange = steps.leg.last
        if exchange is None or not exchange.keys:
            missing = "groups need .exchange(n, *keys) before them"
            if side:
                ends = exchange if exchange is not None else steps.leg.declared.stage
                missing = f"the {side} side ends with {ends}; cogroup needs .exchange(n, *keys) on both sides"
            elif exchange is not None:
                missing = f"{exchange} has no keys to group by; name them"
            raise InvalidRequest(f"{stage}: {missing}", stage=stage)
        keys = find_keys(steps, exchange.keys, f"{stage}, {side} side" if side else stage)
        (part,) = steps.leg.parts
        for key, placed in zip(keys, exchange.keys, strict=True):
            source = part.source(key)
            if source not in (None, placed):
                raise InvalidRequest(
                    f"{stage}: {exchange} has placed rows by {placed!r}, and {key!r} is its column {source!r} now; "
                    f"exchange again after the select: .exchange({exchange.partitions}, "
                    f"{', '.join(map(repr, keys))})",
                    stage=stage,
                    column=key,
                )
        check_groupable(steps.leg.schema, keys, stage)
        for key in keys:
            check_key(steps.leg.fields[key], stage)
        return cls(steps, exchange, keys)

    @property
    def types(self) -> Types:
        return key_types(self.steps.leg.schema, self.keys)

    def side(
        self, compared: Types | None = None, placing: Types | None = None
    ) -> tuple[PlanPart, GroupedSide]:
        """The exchange that the tasks read, and how they group its rows: by keys that are ``compared`` as these types
        with another side's, and were placed by the hashes of the ``placing`` types; None for their own.
        """
        (part,) = self.steps.leg.parts
        if placing is not None:
            part = replace(part, origin=replace(self.exchange, types=placing, twin=self.exchange))
        placed = placed_keys(part, self.keys)
        return part, GroupedSide(self.keys, compared or self.types, self.steps.leg.schema, placed)


def _check_alike(left: Exchange, right: Exchange, stage: str) -> None:
    if left.partitions != right.partitions or len(left.keys) != len(right.keys):
        raise InvalidRequest(
            f"{stage}: {left} and {right} do not put equal keys side by side; give both the same number of "
            "partitions and of keys",
            stage=stage,
        )


def _common(left: Types, right: Types, names: Sequence[tuple[str, str]], stage: str) -> Types:
    """The type in which each key is compared."""
    return tuple(
        one if one == two else KeyForm.of(one, two, f"{stage}: keys {name!r} and {other!r}").compared
        for one, two, (name, other) in zip(left, right, names, strict=True)
    )
