"""The Python stages between two exchanges, run one after the other in one pass of one Python worker.

Guarantee: the batches from :func:`run` have exactly the last stage's declared schema (``arrow.types``). Batches pass
one at a time from stage to stage: only a group stage holds more than the batch it works on.

Memory that a function writes again
    A function may overwrite a batch that it has given as soon as it goes on. So a batch is copied before a later
    stage or a writer gets it, and a group's result before the next group's call, except columns that the function
    cannot write to (``arrow.own_memory``). A batch that leaves the last stage is copied only with ``Pass.kept``:
    Spark encodes it before the function goes on.

Groups
    A group stage gathers its whole partition. The worker must have room for it, and for the memory that
    ``placement.grouping`` names. Results of small groups are joined into batches of ``BATCH_ROWS`` rows or
    ``BATCH_BYTES``: a message for each group would cost more than the group.

Errors
    An exception gets a note that names the stage of the function, or says that the stages' input raised it, because
    Spark's traceback shows the function's lines in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared, Lent, own
from spark_client.placement import PlacedKeys, groups

from .limits import NO_LIMITS, BatchLimits

BATCH_ROWS = 64 * 1024
BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Pass:
    """The options of one task's run.

    Args:
        kept: whether the caller still holds a batch, or part of it, when it asks for the next one.
        partition: the exchange's partition; None without an exchange.
        limits: of the batches that functions get.
    """

    kept: bool = False
    partition: int | None = None
    limits: BatchLimits = NO_LIMITS


ENCODED_AT_ONCE = Pass()


@dataclass(frozen=True)
class MapStage:
    """``mapInArrow``: one call of ``fn`` over all batches of the task."""

    fn: Callable[[Iterator[Any]], Iterable[Any]]
    declared: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """The function's batches, checked and cast, without empty ones."""
        name = self.declared.stage
        lent = Lent()
        given = lent.each(how.limits.cut(batches))
        for batch in _noted(name, lambda: iter(_iterable(self.fn(given), name, "an iterator"))):
            _expect(batch, pa.RecordBatch, name)
            if batch.num_rows:
                cast = self.declared.cast(batch)
                yield own(cast, lent) if how.kept else cast


@dataclass(frozen=True)
class GroupStage:
    """``applyInArrow``: one call of ``fn`` for each group of ``keys`` in the partition.

    ``schema`` is the input's, ``with_keys`` and ``iterates`` give ``fn``'s signature, and ``placed`` checks that the
    exchange would place the keys here; None for no check.
    """

    fn: Callable[..., Any]
    declared: Declared
    keys: tuple[str, ...]
    schema: pa.Schema
    with_keys: bool
    iterates: bool
    placed: PlacedKeys | None = None

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """The function's results, checked, cast and joined.

        Raises:
            InvalidRequest: a group's key belongs to another partition, or a result does not have the declared schema.
        """
        results: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for keys, group in groups(list(batches), self.schema, self.keys, check=partial(self._check, how)):
            lent = Lent(group)
            for result in _noted(self.declared.stage, partial(self._call, keys, group, how)):
                if not result.num_rows:
                    continue
                cast = self.declared.cast(result)
                for batch in cast.to_batches() if isinstance(cast, pa.Table) else [cast]:
                    results.append(own(batch, lent))
                    rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
                    if rows >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                        yield from _batches(results)
                        results, rows, size_bytes = [], 0, 0
        yield from _batches(results)

    def _call(self, keys: tuple[Any, ...], group: pa.Table, how: Pass) -> Iterator[Any]:
        first = (keys,) if self.with_keys else ()
        if not self.iterates:
            result = self.fn(*first, group)
            _expect(result, pa.Table, self.declared.stage)
            yield result
            return
        batches = how.limits.cut(iter(group.to_batches()))
        for batch in _iterable(self.fn(*first, batches), self.declared.stage, "an iterator"):
            _expect(batch, pa.RecordBatch, self.declared.stage)
            yield batch

    def _check(self, how: Pass, keys: pa.RecordBatch) -> None:
        if self.placed is not None and how.partition is not None:
            self.placed.check(keys, how.partition, self.declared.stage)


Stage = MapStage | GroupStage


def run(stages: Sequence[Stage], batches: Iterator[Any], how: Pass = ENCODED_AT_ONCE) -> Iterator[Any]:
    """The batches of the last stage; the input's if there are no stages."""
    if stages:
        batches = _given(batches)
    for number, stage in enumerate(stages, 1):
        batches = stage.run(batches, how if number == len(stages) else replace(how, kept=True))
    return batches


def _noted(stage: str, start: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    try:
        yield from start()
    except Exception as error:
        _note(error, f"{_NOTE}in {stage}")
        raise


def _given(batches: Iterator[Any]) -> Iterator[Any]:
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


def _iterable(result: Any, stage: str, wanted: str) -> Iterable[Any]:
    if isinstance(result, Iterable) and not isinstance(result, pa.Table | pa.RecordBatch):
        return result
    raise InvalidRequest(
        f"{stage}: the function returned {type(result).__name__}; it must return {wanted} of "
        "pyarrow.RecordBatch, for example by `yield batch`",
        stage=stage,
    )


def _expect(result: Any, kind: Any, stage: str) -> None:
    if not isinstance(result, kind):
        raise InvalidRequest(
            f"{stage}: the function gave {type(result).__name__} where pyarrow.{kind.__name__} is expected",
            stage=stage,
        )


def _batches(results: list[pa.RecordBatch]) -> Iterator[Any]:
    """The rows in as few batches as their columns' offsets allow."""
    if len(results) <= 1:
        yield from results
    else:
        yield from pa.Table.from_batches(results).combine_chunks().to_batches()
