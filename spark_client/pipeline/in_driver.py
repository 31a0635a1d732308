"""Decides what the driver does itself, and runs the last steps of a plan whose result it reads.

A job of Spark's costs some tens of milliseconds before it has read a row, and its tasks as much again. Rows that the
driver has read, and sent on, in that time need none: a scan of small files, what an aggregate left of many rows, the
sides of a small join.

Guarantee: no function of a user's runs in the driver, and no row of a DataFrame comes through it: all stages of such a
job are ``ours``, and it reads exchanges, or scans whose files are local ones of the driver's. :func:`gathered` gives
the rows that Spark's tasks would give, in the order of the partitions, all of them before the caller has one: so it
raises where a job would, and nothing of the run is left on a server.

How much
    The sum of what the job reads is at most ``Reading.driver_bytes``. Each value counts at least ``VALUE_BYTES``,
    because exchanges are compressed and Parquet is encoded; each partition, which the stages run over by itself,
    ``PARTITION_BYTES``; a table that a join holds, all of its bytes. What turns out far larger in memory while it is
    read, such as texts which are all the same, is left to tasks then (``jobs.ReadLimit``). As a task does, the driver
    keeps what stages gather within its budgets, and the rest in files. A join that makes very many rows of few is left
    to tasks as well.

    Of a result at most ``GATHERED_BYTES`` are held, and one batch: a join may make many rows of few. A larger result is
    one for the server, and for a reader of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from spark_client.arrow import Declared
from spark_client.connection import Reading
from spark_client.jobs import ReadLimit, ReadTask, SealedDataset, share_numbers
from spark_client.steps import Stage, TableJoinStage

from .nodes import Exchange, Input, Leg, Pair, PlanPart

VALUE_BYTES = 8
PARTITION_BYTES = 8 << 10


def driver_may_run(leg: Leg) -> bool:
    """Whether the driver may run the leg's stages over what the leg reads, if that is little."""
    return all(
        all(stage.ours for stage in part.stages)
        and (not isinstance(part.origin, Input) or part.origin.driver_bytes is not None)
        for part in _parts(leg.parts)
    )


def driver_bytes(legs: Iterable[Leg], written: Mapping[Exchange, SealedDataset]) -> int:
    """About how many bytes the driver would hold if it ran these legs, which it may; ``written`` has the exchanges that
    they read.
    """
    return sum(_bytes_of(part, written) for leg in legs for part in _parts(leg.parts))


def _parts(parts: Iterable[PlanPart]) -> Iterator[PlanPart]:
    """The parts, and the sides of those that are pairs."""
    for part in parts:
        yield part
        if isinstance(part.origin, Pair):
            yield from _parts([part.origin.left, part.origin.right])


def _bytes_of(part: PlanPart, written: Mapping[Exchange, SealedDataset]) -> int:
    origin = part.origin
    held = sum(stage.right.size_bytes for stage in part.stages if isinstance(stage, TableJoinStage))
    if isinstance(origin, Input):
        return held + (origin.driver_bytes or 0)
    if isinstance(origin, Pair):
        return held
    sealed = written[origin]
    value_bytes = VALUE_BYTES * len(sealed.schema) * sealed.rows
    return held + max(sealed.size_bytes, value_bytes) + PARTITION_BYTES * len(sealed.partition_bytes)


GATHERED_BYTES = 16 << 20


@dataclass(frozen=True)
class DriverRows:
    """The batches of a result, and how long the driver took for the last steps."""

    batches: Sequence[Any]
    seconds: float


def gathered(
    inputs: Sequence[tuple[Input, tuple[Stage, ...]]], declared: Declared, options: Reading
) -> DriverRows | None:
    """The rows of all inputs after their stages; None if they are more than ``GATHERED_BYTES``. Raises TooMuchRead
    (``jobs.ReadLimit``).
    """
    found: list[Any] = []
    size_bytes, began = 0, perf_counter()
    limit = ReadLimit.of(options.driver_bytes)
    for given, stages in inputs:
        # Without limits, which are for functions of users, and which Spark would be asked for.
        task = ReadTask(given.source, given.shares, stages, options=options)
        is_cast = task.gives(declared.schema)
        numbers = share_numbers(range(len(task.shares)))
        with closing(task.batches(numbers, kept=True, count=limit.count)) as batches:
            for batch in batches:
                found.append(batch if is_cast else declared.cast(batch))
                size_bytes += batch.nbytes
                if size_bytes > GATHERED_BYTES:
                    return None
    return DriverRows(found, perf_counter() - began)
