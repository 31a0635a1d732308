"""Steps that see the rows of a key together."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest
from spark_client.jobs import check_key, pandas_form
from spark_client.placement import PlacedKeys, check_groupable
from spark_client.pyspark_parts import (
    DIVIDED_KINDS,
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from spark_client.steps import GroupStage, PandasGroup

from .base import Steps
from .pairing import check_keys_kept


class Grouping(Steps):
    """See the module."""

    def applyInArrow(self, fn: Callable[..., Any], schema: StructType | str) -> Self:  # noqa: N802 - Spark's
        """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInArrow``.

        ``fn(table)`` or ``fn(keys, table)``, with the keys as a tuple of Arrow scalars, returns a table; annotated
        with iterators of RecordBatch, it takes and returns those.

        Raises:
            InvalidRequest: no exchange with keys before it, a key whose column is gone or cannot be grouped by, a
                function of other than one or two arguments, or as for :meth:`mapInArrow`.
        """
        struct, declared = self._declare("applyInArrow", fn, schema, by_name=True)
        keys, placed = self._grouped_by(declared.stage)
        with_keys, iterates = _signature(fn, declared.stage, infer_group_arrow_eval_type_from_func)
        return self._with(GroupStage(fn, declared, keys, self._schema, with_keys, iterates, placed), struct)

    def applyInPandas(self, fn: Callable[..., Any], schema: StructType | str) -> Self:  # noqa: N802 - Spark's
        """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInPandas``: as
        :meth:`applyInArrow`, with a ``pandas.DataFrame`` for each table or batch (``steps.pandas_adapters``).

        Raises:
            InvalidRequest: as :meth:`applyInArrow`.
        """
        struct, declared = self._declare("applyInPandas", fn, schema, by_name=True)
        keys, placed = self._grouped_by(declared.stage)
        with_keys, iterates = _signature(fn, declared.stage, infer_group_pandas_eval_type_from_func)
        form = pandas_form(self.spark, struct, declared.schema)
        adapted = PandasGroup(fn, form, with_keys, iterates)
        return self._with(
            GroupStage(adapted, declared, keys, self._schema, with_keys, iterates, placed), struct
        )

    def _grouped_by(self, stage: str) -> tuple[tuple[str, ...], PlacedKeys]:
        """The keys of the last exchange, and where it places their values."""
        exchange = self._last
        if exchange is None:
            raise InvalidRequest(f"{stage}: groups need .exchange(n, *keys) before them", stage=stage)
        if not exchange.keys:
            raise InvalidRequest(f"{stage}: {exchange} has no keys to group by; name them", stage=stage)
        keys = self._keys(exchange.keys, stage)
        check_keys_kept(self, exchange, keys, stage)
        check_groupable(self._schema, keys, stage)
        for key in keys:
            check_key(self.leg.fields[key], stage)
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
