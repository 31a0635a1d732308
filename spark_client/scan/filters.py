"""The filter of a scan: checked in the driver, the row groups that it may prune, and the rows that it keeps in a task.

In a task the filter looks at its own columns only, and the rows that it drops are never made: columns of the result are
cut before they are decoded. Arrow's engine evaluates it in the task's own thread, as ``steps.batch_stages`` says.

Columns with dictionaries
    Conditions that are joined by "and" are looked at apart. Where all columns of one have dictionaries, as texts of
    Parquet often do, it is evaluated once for each combination of their values, if those are fewer than the rows, and
    the rows look the result up. So texts are compared some times, and not decoded and compared for each row. A
    combination that no row has may fail: then rows are looked at. So they are where the combinations would take more
    than ``LOOKED_UP_BYTES``: a text that one row has stands in as many of them as the other columns have values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import array_over, compute, flags
from flight_server.protocol import InvalidRequest
from spark_client.arrow import (
    Declared,
    check_named,
    conjuncts,
    folded,
    inner_types,
    is_repeatable,
    needed,
    parts_of,
)

from .stored_texts import codes

_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal", "is_valid")
_JOINS = ("and_kleene", "or_kleene")


def expression_of(filter: Any, schema: pa.Schema) -> Any:  # noqa: A002 - pyarrow's name
    """The filter as an expression that fits the schema; None for none. Raises InvalidRequest: it is no filter, or does
    not fit.
    """
    from pyarrow import parquet as pq  # noqa: PLC0415 - as above

    if filter is None:
        return None
    if isinstance(filter, list):
        try:
            filter = pq.filters_to_expression(filter)  # noqa: A001 - as above
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"scan: filter {filter!r}: {error}") from error
    if not isinstance(filter, compute().Expression):
        raise InvalidRequest(
            f"scan: filter is an expression such as pyarrow.compute.field('x') > 5, or a list such as "
            f"[('x', '>', 5)], not {filter!r}"
        )
    check_named(filter, "scan: filter")
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
    kinds = (kind for name in needed(expression, schema) for kind in inner_types(schema.field(name).type))
    if not any(map(pa.types.is_floating, kinds)):
        return True
    parts = parts_of(expression)
    return parts is not None and folded(parts, lambda _: None, _of_call) is True


def _of_call(function: str, arguments: list[bool | None]) -> bool:
    """Whether NaN cannot fulfil the condition; None stands for a column or a value."""
    if function in _COMPARISONS:
        return all(each is None for each in arguments)
    return function in _JOINS and all(arguments)


ROWS_FOR_EACH = 4
"""At least so many rows for each combination of values, or they are looked at one by one."""
LOOKED_UP_BYTES = 8 << 20
"""All combinations together take at most so much, or as much as the dictionaries."""
_MASK = "kept"


@dataclass(frozen=True, eq=False)
class Condition:
    """An expression, and the columns that it is of. ``repeatable``: it is the same for equal rows."""

    expression: Any
    looked_at: tuple[str, ...]
    repeatable: bool


@dataclass(frozen=True)
class KeptRows:
    """The rows for which ``expression`` is true; those for which it is null are dropped, as in SQL.

    Args:
        looked_at: the columns that it is of; of one that is of none, any.
        conditions: those that it joins by "and"; one that is of no column looks at the first of these.
        names: the columns of the result.
    """

    expression: Any
    looked_at: tuple[str, ...]
    conditions: tuple[Condition, ...]
    names: tuple[str, ...]

    @classmethod
    def by(cls, expression: Any, schema: pa.Schema, names: Sequence[str]) -> KeptRows:
        """By an expression that fits the schema."""
        looked_at = tuple(needed(expression, schema) or schema.names[:1])
        conditions = tuple(
            Condition(each, tuple(needed(each, schema)) or looked_at[:1], is_repeatable(each))
            for each in conjuncts(expression)
        )
        return cls(expression, looked_at, conditions, tuple(names))

    def of(self, batch: Any, declared: Declared) -> Any:
        """The kept rows of a batch, in which columns may have dictionaries, as ``declared``; None without any.

        Raises:
            pyarrow.ArrowException, TypeError: Arrow cannot evaluate the expression for a row.
            InvalidRequest: as :meth:`Declared.cast`.
        """
        mask = self._mask(batch, declared)
        kept = int(np.count_nonzero(mask))
        if not kept:
            return None
        shown = batch.select(self.names)
        if kept < len(mask):
            shown = shown.filter(array_over(mask.view(np.uint8)).cast(pa.bool_()))
        return _part(declared, self.names).cast(shown)

    def _mask(self, batch: Any, declared: Declared) -> NDArray[np.bool_]:
        coded = {name for name in self.looked_at if isinstance(batch.column(name), pa.DictionaryArray)}
        looked_up = [each for each in self.conditions if each.repeatable and coded.issuperset(each.looked_at)]
        others = [each for each in self.conditions if each not in looked_up]
        mask = self._looked_up(looked_up, batch, declared) if looked_up else None
        if mask is None:
            return self._evaluated(self.expression, self._rows(self.conditions, batch, declared))
        if others:
            mask &= self._evaluated(_joined(others), self._rows(others, batch, declared))
        return mask

    def _columns(self, conditions: Sequence[Condition]) -> list[str]:
        return [name for name in self.looked_at if any(name in each.looked_at for each in conditions)]

    def _rows(self, conditions: Sequence[Condition], batch: Any, declared: Declared) -> Any:
        names = self._columns(conditions)
        return _part(declared, names).cast(batch.select(names))

    def _looked_up(
        self, conditions: Sequence[Condition], batch: Any, declared: Declared
    ) -> NDArray[np.bool_] | None:
        """Of each row, whether the conditions are true, by the values of their columns' dictionaries; None if rows are
        to be evaluated. A null is the value after the last one.
        """
        coded = batch.select(self._columns(conditions))
        sizes = [1 + len(column.dictionary) for column in coded.columns]
        if prod(sizes) * ROWS_FOR_EACH > batch.num_rows or not _are_small(coded.columns, sizes):
            return None
        places = np.indices(sizes).reshape(len(sizes), -1)
        places_of_rows = np.zeros(coded.num_rows, np.int64)
        columns = []
        for column, size, place in zip(coded.columns, sizes, places, strict=True):
            nulls = pa.array([None], column.dictionary.type)
            columns.append(pa.concat_arrays([column.dictionary, nulls]).take(array_over(place)))
            places_of_rows *= size
            places_of_rows += codes(column)
        rows = pa.RecordBatch.from_arrays(columns, names=coded.schema.names)
        with suppress(pa.ArrowException):
            # The null is for the lookup only: no row of a column that is declared without nulls gets its result.
            nullable = [
                declared.schema.field(name).with_nullable(nullable=True) for name in rows.schema.names
            ]
            part = Declared(declared.stage, pa.schema(nullable))
            return self._evaluated(_joined(conditions), part.cast(rows))[places_of_rows]
        return None

    @staticmethod
    def _evaluated(expression: Any, rows: Any) -> NDArray[np.bool_]:
        """Of each row, whether the expression is true."""
        from pyarrow import acero  # noqa: PLC0415 - a quarter of a second, which tasks without filters do without

        table = acero.TableSourceNodeOptions(pa.Table.from_batches([rows]))
        project = acero.ProjectNodeOptions([expression], [_MASK])
        table_of_masks = acero.Declaration(
            "project", project, [acero.Declaration("table_source", table)]
        ).to_table(use_threads=False)
        chunks = table_of_masks.column(_MASK).chunks
        # Null is false.
        kept = [flags(each.fill_null(pa.scalar(value=False))) for each in chunks]
        return kept[0] if len(kept) == 1 else np.concatenate([np.zeros(0, np.bool_), *kept])


def _joined(conditions: Sequence[Condition]) -> Any:
    return reduce(and_, (each.expression for each in conditions))


def _part(declared: Declared, names: Sequence[str]) -> Declared:
    schema = declared.schema
    return Declared(declared.stage, pa.schema([schema.field(name) for name in names]))


def _are_small(columns: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether all combinations of the dictionaries' values, which are so many with null, take little memory."""
    own_bytes = [column.dictionary.nbytes for column in columns]
    count = prod(sizes)
    found_bytes = sum(own * count // size for own, size in zip(own_bytes, sizes, strict=True))
    return bool(found_bytes <= max(LOOKED_UP_BYTES, sum(own_bytes)))
