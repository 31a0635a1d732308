"""Stages that take batch after batch: functions (``mapInArrow``), Arrow's expressions (``filter``, ``select``), and
those that look at no value.

Arrow's engine evaluates an expression in the task's own thread, a batch at a time: threads of its own would compete
with Spark's other tasks for the same cores, and ``RecordBatch.filter``, which uses them, takes three times as long
for 64 Ki rows. It cuts a batch after 32 Ki rows. It warns of values that do not lie at multiples of their size, as
those of a batch from the gRPC lane, which refers to them in the received message: these are copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.keys import compute
from flight_server.protocol import InvalidRequest, did_you_mean
from spark_client.arrow import Declared, aligned, array_over, widened

from .one_pass import OwnStage, Pass, iterable


@dataclass(frozen=True)
class MapStage:
    """``mapInArrow``: one call of ``fn`` over all batches of the task."""

    fn: Callable[[Iterator[Any]], Iterable[Any]]
    declared: Declared

    divisible = True
    ours = False
    overwritten = True

    def run(self, batches: Iterator[Any], how: Pass) -> Iterable[Any]:
        return iterable(self.fn(how.limits.cut(batches, how.lent)), self.declared.stage, "an iterator")


@dataclass(frozen=True)
class FilterStage(OwnStage):
    """``filter``: the rows for which ``expression`` is true; those for which it is null are dropped, as in SQL."""

    expression: Any
    declared: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - the face of a stage
        """The kept rows. Raises InvalidRequest if Arrow cannot evaluate the expression for a row."""
        for batch in batches:
            yield from evaluated("filter", [self.expression], [], batch, self.declared.stage)


@dataclass(frozen=True)
class SelectStage(OwnStage):
    """``select``: one column for each expression, with the names and types of ``declared``."""

    expressions: tuple[Any, ...]
    declared: Declared

    def source(self, name: str) -> str | None:
        """The column that the result has under this name; None if it computes one, or has none."""
        index = self.declared.schema.get_field_index(name)
        made = self.expressions[index] if index >= 0 else None
        # Other expressions may have a column's name as their text.
        return str(made) if made is not None and made.equals(compute().field(str(made))) else None

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - as above
        """The columns. Raises InvalidRequest if Arrow cannot evaluate one for a row, such as a division by zero."""
        names = self.declared.schema.names
        for batch in batches:
            yield from evaluated("project", self.expressions, names, batch, self.declared.stage)


def evaluated(node: str, expressions: Sequence[Any], names: list[str], batch: Any, stage: str) -> Any:
    """The results of a batch. ``node`` is ``filter`` or ``project``."""
    table = pa.Table.from_batches([aligned(batch)])
    return evaluate(node, expressions, names, table, stage).to_batches()


def evaluate(
    node: str, expressions: Sequence[Any], names: list[str], table: pa.Table, stage: str
) -> pa.Table:
    """Arrow's result over a table: its rows for which an expression is true, or a column for each expression. Raises
    InvalidRequest: Arrow cannot evaluate an expression.
    """
    from pyarrow import acero  # noqa: PLC0415 - a quarter of a second, which tasks without expressions do without

    options = (
        acero.FilterNodeOptions(expressions[0])
        if node == "filter"
        else acero.ProjectNodeOptions(list(expressions), names)
    )
    rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    try:
        return acero.Declaration(node, options, [rows]).to_table(use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        missing = re.match(r"No match for FieldRef\.Name\((.*)\) in ", str(error))
        if missing is None:
            raise InvalidRequest(f"{stage}: Arrow cannot evaluate it: {error}", stage=stage) from error
        raise InvalidRequest(
            f"{stage}: no column is named exactly {missing[1]!r}; the columns are "
            f"{', '.join(map(repr, table.schema.names))}{did_you_mean(missing[1], table.schema.names)}",
            stage=stage,
            column=missing[1],
        ) from error


@dataclass(frozen=True)
class LimitStage:
    """The first ``rows`` rows that come. Later rows are not read: the generators before it are closed.

    ``divisible`` is for a limit that another one follows, where any of the rows will do.
    """

    rows: int
    declared: Declared
    divisible: bool

    ours = True
    overwritten = False

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - the face of a stage
        left = self.rows
        try:
            while left:
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch.slice(0, left)
                left -= min(left, batch.num_rows)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


@dataclass(frozen=True)
class CountStage(OwnStage):
    """How many rows there are, in one row."""

    declared: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - as above
        rows = sum(batch.num_rows for batch in batches)
        column = array_over(np.array([rows], np.int64))
        yield pa.RecordBatch.from_arrays([column], schema=self.declared.schema)


@dataclass(frozen=True)
class KeepStage(OwnStage):
    """The columns of ``declared``, by their names, without the others."""

    declared: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - as above
        names = self.declared.schema.names
        for batch in batches:
            yield batch.select(names)


@dataclass(frozen=True)
class AlignStage(OwnStage):
    """The columns, by their positions, with the names and types of ``declared``, which hold every value."""

    declared: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - as above
        schema = self.declared.schema
        for batch in batches:
            columns = [
                widened(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)
