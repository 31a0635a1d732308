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
from spark_client.arrow import Declared
from spark_client.jobs import arrow_schema, check_key, declared_struct
from spark_client.joining import KeyForm
from spark_client.placement import PlacedKeys, check_groupable
from spark_client.pyspark_parts import (
    DIVIDED_KINDS,
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from spark_client.steps import CogroupStage, GroupedSide, GroupStage, PandasCogroup, PandasForm, PandasGroup

from .base import AnySteps, Steps, declare, find_keys, with_stage
from .nodes import Exchange, Leg, Pair, PlanPart
from .pairing import Types, check_keys_kept, key_types, placed_keys, placed_types, placing_types


def apply_in_arrow(steps: AnySteps, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
    """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInArrow``.

    ``fn(table)`` or ``fn(keys, table)``, with the keys as a tuple of Arrow scalars, returns a table; annotated
    with iterators of RecordBatch, it takes and returns those.

    Raises:
        InvalidRequest: no exchange with keys before it, a key whose column is gone or cannot be grouped by, a
            function of other than one or two arguments, or as for :meth:`mapInArrow`.
    """
    struct, declared = declare(steps, "applyInArrow", fn, schema, by_name=True)
    keys, placed = _grouped_by(steps, declared.stage)
    with_keys, iterates = _signature(fn, declared.stage, infer_group_arrow_eval_type_from_func)
    return with_stage(
        steps, GroupStage(fn, declared, keys, steps.leg.schema, with_keys, iterates, placed), struct
    )


def apply_in_pandas(steps: AnySteps, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
    """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInPandas``: as
    :meth:`applyInArrow`, with a ``pandas.DataFrame`` for each table or batch (``steps.pandas_adapters``).

    Raises:
        InvalidRequest: as :meth:`applyInArrow`.
    """
    struct, declared = declare(steps, "applyInPandas", fn, schema, by_name=True)
    keys, placed = _grouped_by(steps, declared.stage)
    with_keys, iterates = _signature(fn, declared.stage, infer_group_pandas_eval_type_from_func)
    adapted = PandasGroup(fn, PandasForm(struct, declared.schema), with_keys, iterates)
    return with_stage(
        steps, GroupStage(adapted, declared, keys, steps.leg.schema, with_keys, iterates, placed), struct
    )


def _grouped_by(steps: Steps, stage: str) -> tuple[tuple[str, ...], PlacedKeys]:
    """The keys of the last exchange, and where it places their values."""
    exchange = steps.leg.last
    if exchange is None:
        raise InvalidRequest(f"{stage}: groups need .exchange(n, *keys) before them", stage=stage)
    if not exchange.keys:
        raise InvalidRequest(f"{stage}: {exchange} has no keys to group by; name them", stage=stage)
    keys = find_keys(steps, exchange.keys, stage)
    check_keys_kept(steps, exchange, keys, stage)
    check_groupable(steps.leg.schema, keys, stage)
    for key in keys:
        check_key(steps.leg.fields[key], stage)
    before = exchange.leg.declared.schema
    return keys, PlacedKeys(
        str(exchange), pa.schema([before.field(key) for key in exchange.keys]), exchange.partitions
    )


def _signature(
    fn: Callable[..., Any], stage: str, infer: Callable[[Any], Any] = infer_group_arrow_eval_type_from_func
) -> tuple[bool, bool]:
    """Whether ``fn`` takes the keys first, and whether it takes iterators: by Spark's own rules."""
    try:
        count = len(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        count = 1
    if count not in (1, 2):
        raise InvalidRequest(
            f"{stage}: it takes (table) or (keys, table), not {count} arguments", stage=stage
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind = infer(fn)
        except Exception:  # noqa: BLE001 - incomplete annotations: Spark then takes tables, too
            kind = None
    return count == 2, kind in DIVIDED_KINDS


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
        count = 1 + max(left.leg.stage_count, right.leg.stage_count)
        if not callable(fn):
            raise InvalidRequest(f"stage {count} (cogroup {method}): {fn!r} is not a function")
        name = f"stage {count} (cogroup {method} {getattr(fn, '__name__', type(fn).__name__)})"
        struct = declared_struct(left.spark, schema, name)
        declared = Declared(name, arrow_schema(left.spark, struct, name), by_name=True)
        one, two = _End.of(left, "left", name), _End.of(right, "right", name)
        _check_alike(one.exchange, two.exchange, name)
        names = list(zip(one.keys, two.keys, strict=True))
        compared = _common(one.types, two.types, names, name)
        before = placed_types(one.exchange), placed_types(two.exchange)
        wanted = placing_types(*before, _common(*before, names, name))
        with_keys, iterates = _signature_of_two(fn, name)
        if method == "applyInPandas":
            if iterates:
                raise InvalidRequest(
                    f"{name}: it takes DataFrames; only applyInArrow takes iterators", stage=name
                )
            fn = PandasCogroup(fn, PandasForm(struct, declared.schema), with_keys)
        (first, first_side), (second, second_side) = (
            one.side(compared, wanted[0]),
            two.side(compared, wanted[1]),
        )
        stage = CogroupStage(fn, declared, first_side, second_side, with_keys, iterates)
        return replace(left, leg=Leg((PlanPart(Pair(first, second), (stage,)),), struct, declared))


@dataclass(frozen=True)
class _End:
    """A side, the exchange that it ends with, and the columns of the exchange's keys as they are now."""

    steps: Steps
    exchange: Exchange
    keys: tuple[str, ...]

    @classmethod
    def of(cls, steps: Steps, side: str, stage: str) -> _End:
        exchange = steps.leg.last
        if exchange is None or not exchange.keys:
            ends = exchange if exchange is not None else steps.leg.declared.stage
            raise InvalidRequest(
                f"{stage}: the {side} side ends with {ends}; cogroup needs .exchange(n, *keys) on both sides",
                stage=stage,
            )
        keys = find_keys(steps, exchange.keys, f"{stage}, {side} side")
        check_keys_kept(steps, exchange, keys, stage)
        check_groupable(steps.leg.schema, keys, stage)
        for key in keys:
            check_key(steps.leg.fields[key], stage)
        return cls(steps, exchange, keys)

    @property
    def types(self) -> Types:
        return key_types(self.steps.leg.schema, self.keys)

    def side(self, compared: Types, wanted: Types | None) -> tuple[PlanPart, GroupedSide]:
        """The exchange that the tasks read, placed by the hashes of the ``wanted`` types, and how they group
        its rows.
        """
        (part,) = self.steps.leg.parts
        exchange = self.exchange
        if wanted is not None:
            exchange = replace(exchange, types=wanted, twin=exchange)
            part = replace(part, origin=exchange)
        return part, GroupedSide(self.keys, compared, self.steps.leg.schema, placed_keys(exchange))


def _check_alike(left: Exchange, right: Exchange, stage: str) -> None:
    if left.partitions != right.partitions or len(left.keys) != len(right.keys):
        raise InvalidRequest(
            f"{stage}: {left} and {right} do not put equal keys side by side; give both the same number of "
            "partitions and of keys",
            stage=stage,
        )


def _common(
    left: Types, right: Types, names: Sequence[tuple[str, str]], stage: str
) -> tuple[pa.DataType, ...]:
    """The type in which each key is compared."""
    return tuple(
        one if one == two else KeyForm.of(one, two, f"{stage}: keys {name!r} and {other!r}").compared
        for one, two, (name, other) in zip(left, right, names, strict=True)
    )


def _signature_of_two(fn: Callable[..., Any], stage: str) -> tuple[bool, bool]:
    """Whether ``fn`` takes the keys first, and whether it takes iterators."""
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        names = ["left", "right"]
    if len(names) not in (2, 3):
        raise InvalidRequest(
            f"{stage}: it takes (left, right) or (keys, left, right), not {len(names)} arguments", stage=stage
        )
    try:
        hints = typing.get_type_hints(fn)
    except Exception:  # noqa: BLE001 - annotations that cannot be evaluated: Spark then takes tables, too
        hints = {}
    iterate = [_is_iterator(hints.get(name)) for name in names[-2:]]
    if iterate[0] is not iterate[1]:
        raise InvalidRequest(
            f"{stage}: one side is annotated as an iterator of RecordBatch and the other is not; it takes two "
            "tables or two iterators",
            stage=stage,
        )
    return len(names) == 3, iterate[0]


def _is_iterator(hint: Any) -> bool:
    return typing.get_origin(hint) in (Iterator, Iterable) and typing.get_args(hint) == (pa.RecordBatch,)
