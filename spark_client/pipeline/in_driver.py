"""Decides what the driver does itself, and runs the last steps of a plan whose result it reads.

A job of Spark's costs some tens of milliseconds before it has read a row, and its tasks as much again. Rows that the
driver has read, and sent on, in that time need none: a scan of small files, what an aggregate left of many rows, the
sides of a small join.

Guarantee: no function of a user's runs in the driver, and no row of a DataFrame comes through it: all stages of such a
job are ``ours``, and it reads exchanges, or scans whose files are local ones of the driver's. :func:`gathered` gives
the rows that Spark's tasks would give, in the order of the partitions, all of them before the caller has one: so it
raises where a job would, and nothing of the run is left on a server.

How much
    What the job reads, by the README's measure, is at most ``Reading.driver_bytes``: values and partitions count more
    than they are stored as, because exchanges are compressed, Parquet is encoded, and stages run over each partition by
    itself. What turns out far larger in memory is left to tasks then (``jobs.ReadLimit``). As a task does, the driver
    keeps what stages gather within its budgets, and the rest in files.

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
from spark_client.steps import TableJoinStage

from .nodes import Exchange, Input, Leg, PlanPart

VALUE_BYTES = 8
PARTITION_BYTES = 8 << 10


def driver_may_run(leg: Leg) -> bool:
    """Whether the driver may run the leg's stages over what the leg reads, if that is little."""
    return all(
        all(stage.ours for stage in part.stages)
        and (not isinstance(part.origin, Input) or part.origin.driver_bytes is not None)
        for part in _parts(leg)
    )


def driver_bytes(legs: Iterable[Leg], written: Mapping[Exchange, SealedDataset]) -> int:
    """About how many bytes the driver would hold if it ran these legs, which it may; ``written`` has the exchanges that
    they read.
    """
    return sum(_bytes_of(part, written) for leg in legs for part in _parts(leg))


def _parts(leg: Leg) -> Iterator[PlanPart]:
    """The parts, and the sides of those that are pairs."""
    for part in leg.parts:
        yield from dict.fromkeys([part, *part.sides])


def _bytes_of(part: PlanPart, written: Mapping[Exchange, SealedDataset]) -> int:
    origin = part.origin
    held = sum(stage.right.size_bytes for stage in part.stages if isinstance(stage, TableJoinStage))
    if isinstance(origin, Input):
        held += origin.driver_bytes or 0
    elif isinstance(origin, Exchange):
        sealed = written[origin]
        value_bytes = VALUE_BYTES * len(sealed.schema) * sealed.rows
        held += max(sealed.size_bytes, value_bytes) + PARTITION_BYTES * len(sealed.partition_bytes)
    return held


GATHERED_BYTES = 16 << 20


@dataclass(frozen=True)
class DriverRows:
    """The batches of a result, and how long the driver took for the last steps."""

    batches: Sequence[Any]
    seconds: float


DriverTask = tuple[ReadTask, Iterator[Any]]
"""A task, and what it is run over."""


def of_all_shares(task: ReadTask) -> DriverTask:
    """The task, over the numbers of all of its shares."""
    return task, share_numbers(range(len(task.shares)))


def gathered(tasks: Iterable[DriverTask], declared: Declared, options: Reading) -> DriverRows | None:
    """The rows of all tasks, one after the other; None if they are more than ``GATHERED_BYTES``. Raises TooMuchRead
    (``jobs.ReadLimit``).
    """
    rows: list[Any] = []
    size_bytes, began = 0, perf_counter()
    limit = ReadLimit.of(options.driver_bytes)
    for task, source in tasks:
        is_cast = task.gives(declared.schema)
        with closing(task.batches(source, count=limit.count)) as batches:
            for batch in batches:
                rows.append(batch if is_cast else declared.cast(batch))
                size_bytes += batch.nbytes
                if size_bytes > GATHERED_BYTES:
                    return None
    return DriverRows(rows, perf_counter() - began)
