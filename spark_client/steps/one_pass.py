"""One pass: consecutive stages, run one after the other over a task's input, in one Python worker.

Guarantee: the batches from :func:`run` have exactly the last stage's declared schema (``arrow.types``). Batches pass
one at a time from stage to stage; a stage that gathers rows holds them within its :class:`~spark_client.spill.
TaskMemory`, and the rest in files.

Memory that a function writes again
    A function may overwrite a batch that it has given as soon as it goes on. So a batch is copied before a later
    stage or a writer gets it, and a group's result before the next group's call, except columns that the function
    cannot write to (``arrow.own_memory``). A batch that leaves the last stage is copied only with ``Pass.kept``:
    Spark encodes it before the function goes on, and a writer copies large ones at once.

Errors
    An exception gets a note that names the stage of the function, or says that the stages' input raised it, because
    Spark's traceback shows the function's lines in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.spill import TaskMemory


@dataclass(frozen=True)
class BatchLimits:
    """At most this many rows, and about this many bytes, in a batch; 0 is no limit, as in Spark."""

    rows: int = 0
    size_bytes: int = 0

    def cut(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            rows = self.rows_of(batch)
            if batch.num_rows <= rows:
                yield batch
                continue
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

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
Kept: TypeAlias = bool | Callable[[pa.RecordBatch], bool]


@dataclass(frozen=True)
class Pass:
    """The options of one task's run.

    Args:
        kept: whether the caller still holds a batch, or part of it, when it asks for the next one; of all batches, or
            a function of the batch.
        partition: the exchange's partition; None without an exchange.
        limits: of the batches that functions get.
        memory: of the rows that stages gather.
        counted: looks at the batches of each stage, given its name; None if nothing does.
    """

    kept: Kept = False
    partition: int | None = None
    limits: BatchLimits = NO_LIMITS
    memory: TaskMemory = field(default_factory=TaskMemory)
    counted: Callable[[str, Iterator[Any]], Iterator[Any]] | None = None

    def keeps(self, batch: pa.RecordBatch) -> bool:
        """Whether the caller still holds this batch when it asks for the next one."""
        return self.kept if isinstance(self.kept, bool) else self.kept(batch)


ENCODED_AT_ONCE = Pass()


class Both(NamedTuple):
    """The input of a stage of two inputs: the batches of the same partition on both sides."""

    left: Iterator[Any]
    right: Iterator[Any]


class Stage(Protocol):
    """The work of a task on the rows of a partition. Pickled into tasks.

    ``declared`` is the result's schema and the stage's name in messages; ``divisible`` says whether the stage may run
    over any part of a partition's rows, apart from the others, and its results together are the same; ``ours`` that it
    calls no function of the user's, so that the driver may run it.
    """

    @property
    def declared(self) -> Declared: ...

    @property
    def divisible(self) -> bool: ...

    @property
    def ours(self) -> bool: ...

    def run(self, batches: Any, how: Pass, /) -> Iterator[Any]:
        """The stage's batches, in the declared schema, without empty ones. ``batches`` is an iterator, or
        :class:`Both` for a stage of two inputs.
        """
        ...


class OwnStage:
    """The base of stages without a function of the user's; a stage that is not divisible says so."""

    @property
    def divisible(self) -> bool:
        return True

    @property
    def ours(self) -> bool:
        return True


def run(stages: Sequence[Stage], batches: Any, how: Pass = ENCODED_AT_ONCE) -> Iterator[Any]:
    """The batches of the last stage; the input's if there are no stages."""
    if isinstance(batches, Both):
        batches = Both(*map(_give, batches))
    elif stages:
        batches = _give(iter(batches))
    for number, stage in enumerate(stages, 1):
        batches = stage.run(batches, how if number == len(stages) else replace(how, kept=True))
        if how.counted is not None:
            batches = how.counted(stage.declared.stage, batches)
    return iter(batches)


def noted(stage: str, start: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The result of ``start()``; an exception gets a note that names the stage."""
    try:
        yield from start()
    except Exception as error:
        _note(error, f"{_NOTE}in {stage}")
        raise


def _give(batches: Iterator[Any]) -> Iterator[Any]:
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


def iterable(result: Any, stage: str, wanted: str) -> Iterable[Any]:
    """The result of a function, if one can iterate over it as ``wanted``. Raises InvalidRequest."""
    if isinstance(result, Iterable) and not isinstance(result, pa.Table | pa.RecordBatch):
        return result
    raise InvalidRequest(
        f"{stage}: the function returned {type(result).__name__}; it must return {wanted} of "
        "pyarrow.RecordBatch, for example by `yield batch`",
        stage=stage,
    )


def expect(result: Any, kind: Any, stage: str) -> None:
    """Raise InvalidRequest if the function's result is not of the kind."""
    if not isinstance(result, kind):
        raise InvalidRequest(
            f"{stage}: the function gave {type(result).__name__} where pyarrow.{kind.__name__} is expected",
            stage=stage,
        )


def drained(items: list[T]) -> Iterator[T]:
    """The items, released one by one."""
    items.reverse()
    while items:
        yield items.pop()
