"""Functions of users get rows by the session's settings of the moment in which their plan runs, as in Spark.

A plan declares types by the settings of the moment in which its steps are written. The session's time zone, and how
wide the offsets of texts and bytes are, may be others when it runs: then a function gets the types of that moment, and
its results are cast to the declared ones, which have the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import types

from spark_client.pyspark_parts import PandasConversion

from .batch_stages import MapStage
from .group_stage import GroupStage
from .one_pass import Stage
from .pandas_adapters import PandasGroup, PandasMap


def with_settings(stages: Iterable[Stage], settings: PandasConversion) -> tuple[Stage, ...]:
    """The stages, whose functions get rows by these settings."""
    return tuple([_with_settings(stage, settings) for stage in stages])


def _with_settings(stage: Stage, settings: PandasConversion) -> Stage:
    if not isinstance(stage, MapStage | GroupStage):
        return stage
    fn = stage.fn
    if isinstance(fn, PandasMap | PandasGroup):
        fn = replace(fn, form=replace(fn.form, settings=settings))
    in_session = _InSession(fn, settings.timezone, settings.large)
    if isinstance(stage, MapStage):
        return replace(stage, fn=in_session)
    # Here, and not for each group: it may have one row.
    return replace(stage, fn=fn if all(in_session.has(side.schema) for side in stage.sides) else in_session)


@dataclass(frozen=True)
class _InSession:
    """``fn`` over batches, tables, iterators of batches, and keys, in the types of a session."""

    fn: Callable[..., Any]
    zone: str
    large: bool

    def __call__(self, *args: Any) -> Any:
        return self.fn(*map(self._typed, args))

    def has(self, schema: pa.Schema) -> bool:
        """Whether the types are already those of the session."""
        return all(self._type(kind) == kind for kind in schema.types)

    def _typed(self, argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple([key.cast(self._type(key.type)) for key in argument])
        if not isinstance(argument, pa.RecordBatch | pa.Table):
            return map(self._typed, argument)
        schema = argument.schema
        if self.has(schema):
            return argument
        kinds = [*map(self._type, schema.types)]
        # Arrow cannot cast a variant that is null to its own type: its fields are declared to have no nulls.
        columns = [
            column if column.type == kind else column.cast(kind)
            for column, kind in zip(argument.columns, kinds, strict=True)
        ]
        fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
        return argument.from_arrays(columns, schema=pa.schema(fields, schema.metadata))

    def _type(self, kind: pa.DataType) -> pa.DataType:
        if types.is_timestamp(kind) and kind.tz is not None:
            return pa.timestamp(kind.unit, self.zone)
        if types.is_string(kind) or types.is_large_string(kind):
            return pa.large_string() if self.large else pa.string()
        if types.is_binary(kind) or types.is_large_binary(kind):
            return pa.large_binary() if self.large else pa.binary()
        if types.is_struct(kind):
            return pa.struct([self._field(field) for field in kind])
        if types.is_map(kind):
            return pa.map_(self._field(kind.key_field), self._field(kind.item_field), kind.keys_sorted)
        if types.is_list(kind):
            return pa.list_(self._field(kind.value_field))
        return kind

    def _field(self, field: pa.Field) -> pa.Field:
        return field.with_type(self._type(field.type))
