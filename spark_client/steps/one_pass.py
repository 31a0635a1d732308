"""One pass: consecutive stages, run one after the other over a task's input, in one Python worker.

Guarantee: the batches from :func:`run` have exactly the last stage's declared schema (``arrow.types``): each stage's
are cast to its own, once, before the next one gets them. Batches pass one at a time from stage to stage; a stage that
gathers rows holds them within its :class:`~spark_client.spill.TaskMemory`, and the rest in files.

Memory that a function writes again
    A function may overwrite a batch that it has given as soon as it goes on. So a batch is copied before anything else
    gets it, and a group's result before the next group's call, except columns that the function cannot write to
    (``arrow.own_memory``).

Errors
    Where a stage has a function of the user's, an exception gets a note that names the stage that raised it, or says
    that the stages' input did, because Spark's traceback shows the function's lines in either case. An error of what
    the function has returned has the function's place as its trace (``function_lines``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared, Lent, own
from spark_client.connection import of_users
from spark_client.spill import TaskMemory

from .function_lines import trace_of


@dataclass(frozen=True)
class BatchLimits:
    """At most this many rows, and about this many bytes, in a batch; 0 is no limit, as in Spark."""

    rows: int = 0
    size_bytes: int = 0

    def cut(self, batches: Iterator[Any], lent: Lent | None = None) -> Iterator[Any]:
        """The rows in batches within the limits; each is ``lent`` until the next one is requested."""
        for batch in batches:
            rows = self.rows_of(batch)
            is_cut = batch.num_rows > rows
            starts = range(0, batch.num_rows, rows) if is_cut else (0,)
            for start in starts:
                piece = batch.slice(start, rows) if is_cut else batch
                if lent is not None:
                    lent.lend(piece)
                yield piece
            if lent is not None:
                lent.lend()

    def rows_of(self, data: Any) -> int:
        """How many rows of ``data`` fit the limits; at least one."""
        rows = max(1, int(data.num_rows))
        if self.rows > 0:
            rows = min(rows, self.rows)
        if 0 < self.size_bytes < data.nbytes:
            rows = min(rows, max(1, data.num_rows * self.size_bytes // data.nbytes))
        return rows


NO_LIMITS = BatchLimits()


T = TypeVar("T")
Count: TypeAlias = Callable[[str, pa.RecordBatch], None]


@dataclass(frozen=True)
class Pass:
    """The options of one task's run.

    Args:
        partition: the exchange's partition; None without an exchange.
        limits: of the batches that functions get.
        memory: of the rows that stages gather.
        count: is called with the name of each stage and each of its batches; None if nothing counts them.
        lent: what a stage has lent to its function.
    """

    partition: int | None = None
    limits: BatchLimits = NO_LIMITS
    memory: TaskMemory = field(default_factory=TaskMemory)
    count: Count | None = None
    lent: Lent = field(default_factory=Lent)


class Both(NamedTuple):
    """The input of a stage of two inputs: the batches of the same partition on both sides."""

    left: Iterator[Any]
    right: Iterator[Any]


class Stage(Protocol):
    """The work of a task on the rows of a partition. Pickled into tasks.

    ``declared`` is the result's schema and the stage's name in messages; ``divisible`` says whether the stage may run
    over any part of a partition's rows, apart from the others, and its results together are the same; ``ours`` that it
    calls no function of the user's, so that the driver may run it; ``overwritten`` that a function of the user's may
    write to a batch of the result again, as soon as it goes on.
    """

    @property
    def declared(self) -> Declared: ...

    @property
    def divisible(self) -> bool: ...

    @property
    def ours(self) -> bool: ...

    @property
    def overwritten(self) -> bool: ...

    def run(self, batches: Any, how: Pass, /) -> Iterable[Any]:
        """The stage's batches, in a schema that can be cast to the declared one. ``batches`` is an iterator, or
        :class:`Both` for a stage of two inputs.
        """
        ...


class OwnStage:
    """The base of stages without a function of the user's; a stage that is not divisible says so."""

    divisible = True
    ours = True
    overwritten = False


def run(stages: Sequence[Stage], batches: Any, how: Pass | None = None) -> Iterator[Any]:
    """The batches of the last stage; the input's if there are no stages."""
    how = how or Pass()
    noted = not all(stage.ours for stage in stages)
    if noted:
        batches = Both(*map(_of_input, batches)) if isinstance(batches, Both) else _of_input(batches)
    for stage in stages:
        batches = _of_stage(stage, batches, replace(how, lent=Lent()), noted=noted)
    return iter(batches)


def _of_stage(stage: Stage, batches: Any, how: Pass, *, noted: bool) -> Iterator[Any]:
    """The stage's batches in the declared schema, without empty ones."""
    declared, overwritten = stage.declared, stage.overwritten
    results: Iterable[Any] | None = None
    try:
        results = stage.run(batches, how)
        for batch in results:
            if not isinstance(batch, pa.RecordBatch):
                raise unexpected(batch, pa.RecordBatch, declared.stage)
            if not batch.num_rows:
                continue
            cast = declared.cast(batch)
            if how.count is not None:
                how.count(declared.stage, cast)
            yield own(cast, how.lent) if overwritten else cast
    except Exception as error:
        if noted:
            _note(error, f"{_NOTE}in {declared.stage}")
        if (trace := _of_result(error, stage, results)) is not None:
            raise error.with_traceback(trace)  # noqa: B904 - it is the same error
        raise


def _of_result(error: Exception, stage: Stage, results: Iterable[Any] | None) -> TracebackType | None:
    """The function's place, if the error is that of its result."""
    of_check = isinstance(error, InvalidRequest) and error.detail.get("stage") == stage.declared.stage
    # Results of pandas are checked by PySpark.
    if (of_check or isinstance(error, PySparkException)) and of_users(error.__traceback__) is None:
        return trace_of(getattr(stage, "fn", None), results)
    return None


def _of_input(batches: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except Exception as error:
        _note(error, f"{_NOTE}by what the stages read, not by their functions")
        raise


_NOTE = "raised "


def _note(error: Exception, text: str) -> None:
    # An error passes through the later stages, which must not note it again.
    if not any(other.startswith(_NOTE) for other in getattr(error, "__notes__", ())):
        error.add_note(text)


def iterable(result: Any, stage: str, expected: str) -> Iterable[Any]:
    """The result of a function, if one can iterate over it as ``expected``. Raises InvalidRequest."""
    if isinstance(result, Iterable) and not isinstance(result, pa.Table | pa.RecordBatch):
        return result
    raise InvalidRequest(
        f"{stage}: the function returned {type(result).__name__}; it must return {expected} of "
        "pyarrow.RecordBatch, for example by `yield batch`",
        stage=stage,
    )


def unexpected(result: Any, kind: Any, stage: str) -> InvalidRequest:
    """The error for a result of a function that is not of the kind."""
    message = f"{stage}: the function gave {type(result).__name__} where pyarrow.{kind.__name__} is expected"
    if hasattr(result, "__arrow_c_stream__"):  # tables, and frames of pandas and Polars
        of_batches = "`yield from pyarrow.table(result).to_batches()` gives its batches"
        message += f"; {of_batches if kind is pa.RecordBatch else '`pyarrow.table(result)` makes one of it'}"
    return InvalidRequest(message, stage=stage)


def drained(items: list[T]) -> Iterator[T]:
    """The items, released one by one."""
    items.reverse()
    while items:
        yield items.pop()
