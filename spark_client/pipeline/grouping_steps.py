"""Steps that see the rows of a key together."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest
from spark_client.jobs import check_key
from spark_client.placement import PlacedKeys, check_groupable
from spark_client.pyspark_parts import (
    DIVIDED_KINDS,
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from spark_client.steps import GroupStage, PandasForm, PandasGroup

from .base import AnySteps, Steps, declare, find_keys, with_stage
from .pairing import check_keys_kept


def apply_in_arrow(steps: AnySteps, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
    """See :meth:`.Pipeline.applyInArrow`."""
    struct, declared = declare(steps, "applyInArrow", fn, schema, by_name=True)
    keys, placed = _grouped_by(steps, declared.stage)
    with_keys, iterates = _signature(fn, declared.stage, infer_group_arrow_eval_type_from_func)
    return with_stage(
        steps, GroupStage(fn, declared, keys, steps.leg.schema, with_keys, iterates, placed), struct
    )


def apply_in_pandas(steps: AnySteps, fn: Callable[..., Any], schema: StructType | str) -> AnySteps:
    """See :meth:`.Pipeline.applyInPandas`."""
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
