"""Running a plan: as a DataFrame, as a reader of its result or as its first rows; its statistics, and the datasets that
stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.broadcast import Broadcast
from spark_client.jobs import (
    Again,
    SealedDataset,
    TaskNumbers,
    cancelled_by_ctrl_c,
    check_names_apart,
    collected,
    mapped,
    reader,
)
from spark_client.servers import Holder, HolderKind
from spark_client.steps import AlignStage, CountStage, SelectStage, SortStage, Stage

from .base import AnySteps, Steps
from .execution import Execution, TaskInput, planned
from .nodes import Exchange, Input, Leg, exchanges, steps_text
from .run_statistics import LastRun, RunStatistics, plan_text

_log = logging.getLogger("spark_client.pipeline")
_runs: WeakKeyDictionary[Leg, LastRun] = WeakKeyDictionary()
"""The last run of each leg that is in use."""
T = TypeVar("T")
_SAME_COUNT = (AlignStage, SelectStage, SortStage)


def to_frame(steps: Steps, *cols: str) -> DataFrame:
    """Run all steps up to the last exchange; a DataFrame that reads from the service and runs the others.

    Args:
        cols: new names of the columns, all or none.

    Raises:
        InvalidRequest: another number of names than of columns; Spark would start its tasks with an interpreter that
            cannot run them.
        FlightShuffleError: the server refused, or could not be reached.
        pyspark.errors.PySparkException: a job failed.
    """

    def frame(execution: Execution) -> DataFrame:
        made = frame_of(steps, execution)
        sealed = execution.written(steps.leg)
        if sealed is not None:
            steps.shuffles.results.add_frame(made, sealed)
        # Last: what Ctrl-C leaves before is the run's.
        steps.shuffles.results.hold(Holder(HolderKind.FRAME), execution.datasets)
        return made

    if cols and len(cols) != len(steps.leg.struct):
        raise InvalidRequest(f"toDF: {len(cols)} names for {len(steps.leg.struct)} columns")
    made = running(steps, frame)
    return made.toDF(*cols) if cols else made


def count_rows(steps: Steps) -> int:
    """Run all steps; how many rows they give. Each task counts its own. A last exchange is not run, because it
    changes no count, unless it is persisted: then the server knows it. It is a run of the steps for :meth:`statistics`,
    unless they are a DataFrame. Raises as :meth:`toDF`.
    """
    leg, part, known = steps.leg, steps.leg.single, None
    while part is not None and known is None and all(isinstance(stage, _SAME_COUNT) for stage in part.stages):
        origin = part.origin
        if isinstance(origin, Input) and origin.frame is not None:
            return int(origin.frame.count())
        if not isinstance(origin, Exchange):
            break
        if steps.shuffles.persisted.find(origin) is not None:
            known = origin
        leg, part = origin.leg, origin.leg.single
    struct = StructType([StructField("count", LongType(), nullable=False)])
    declared = Declared("count", pa.schema([pa.field("count", pa.int64(), nullable=False)]))
    counts = leg.with_stage(CountStage(declared), struct)

    def rows(execution: Execution) -> int:
        if known is None:
            return sum(row[0] for row in _few_rows(steps, counts, execution))
        sealed = execution.sealed(known)
        _note(steps, execution)
        return sealed.rows

    return running(steps, rows)


def last_rows(steps: Steps, stage: Stage, struct: StructType) -> list[Any]:
    """Run all steps, and one more, which makes few rows of them; these, of attempts that Spark has accepted. It is a
    run of the steps for :meth:`statistics`. Raises as :meth:`toDF`.
    """
    last = steps.leg.with_stage(stage, struct)
    return running(steps, lambda execution: _few_rows(steps, last, execution))


def _few_rows(steps: Steps, last: Leg, execution: Execution) -> list[Any]:
    """The rows of ``last``, few, each a tuple or one of Spark's. It ends in a stage that the steps do not have, and its
    run counts as theirs.
    """
    run = replace(steps, leg=last)
    batches = _gathered(run, execution)
    if batches is not None:
        rows: list[Any] = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    else:
        with cancelled_by_ctrl_c(steps.spark):
            rows = frame_of(run, execution).collect()
    _runs[steps.leg] = _runs[last]
    return rows


def to_local_iterator(steps: Steps, prefetchPartitions: bool = False) -> pa.RecordBatchReader:  # noqa: FBT001, FBT002 - Spark's arguments
    """Run all steps; a reader of the batches of their result, of any size, see ``ShuffleClient.collect``. It always
    reads ahead, with ``prefetchPartitions`` and without. Raises as :meth:`toDF`.
    """
    del prefetchPartitions
    part = steps.leg.single
    origin = part.origin if part is not None and not part.stages else None
    if isinstance(origin, Input) and origin.frame is not None:
        known = steps.shuffles.results.sealed(origin.frame, steps.leg.schema)
        if known is not None:
            return _reader_of(steps, known)
    last = origin if isinstance(origin, Exchange) else Exchange(steps.leg, 1, label="collect")
    added = None if last is origin else last

    def sealed(execution: Execution) -> SealedDataset:
        dataset = execution.sealed(last)
        _note(steps, execution, added)
        return dataset

    def again(loss: str, holder: Holder) -> SealedDataset:
        def held(execution: Execution) -> SealedDataset:
            dataset = sealed(execution)
            steps.shuffles.results.hold(holder, [dataset.source.dataset])
            return dataset

        return running(steps, held, loss)

    def reader_of(execution: Execution) -> pa.RecordBatchReader:
        batches = None if added is None else _gathered(steps, execution, sends=True)
        if batches is not None:
            return pa.RecordBatchReader.from_batches(steps.leg.schema, batches)
        return _reader_of(steps, sealed(execution), again)

    return running(steps, reader_of)


def broadcast_rows(steps: Steps, name: str | None) -> Broadcast:
    """A broadcast of the rows, which the plan's last job writes. Raises as :meth:`.Pipeline.toDF`."""
    name = name or "table"
    added = Exchange(steps.leg, 1, label=f"broadcast {name!r}", counted=True)

    def table(execution: Execution) -> Broadcast:
        batches = _gathered(steps, execution, sends=True)
        if batches is not None:
            made = Broadcast.create(steps.shuffles, pa.Table.from_batches(batches, steps.leg.schema), name)
            made.struct = steps.leg.struct
            return made
        sealed = execution.sealed(added)
        _note(steps, execution, added)
        return Broadcast.of_sealed(steps.shuffles, sealed, name, steps.leg.struct)

    return running(steps, table)


def running(steps: Steps, use: Callable[[Execution], T], *losses: str) -> T:
    """The result of ``use`` of a run of the plan; ``losses`` were those of earlier runs. Every step that runs a plan
    does so here, because what a lost server held is then written again (``execution``). Raises as :meth:`toDF`.
    """
    return Execution(steps.shuffles, steps.spark, losses).result_of(use)


def persist(steps: AnySteps, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> AnySteps:
    """Keep the dataset of the last exchange: from now on it runs once for all plans that use it, also in several
    threads, and also for plans that were made before. The steps after it run for each plan. Returns this pipeline.

    Its dataset stays until :meth:`unpersist`, the end of the ``client.scope()`` in which it was written, or the
    close of the client; ``client.release`` leaves it. When no pipeline that uses it is referred to any more, it is
    dropped, or, if ``toDF`` made a DataFrame of it that was not released, it is from then on such a result. The
    next plan writes a dataset again that the server has lost. After a union or a join, all exchanges that it reads
    are persisted. Calling it twice is fine.

    Args:
        storageLevel: one of memory and disk: the server decides which of its rows are where.

    Raises:
        InvalidRequest: there is no exchange, or another ``storageLevel``.
    """
    level = storageLevel
    if not (level.useMemory and level.useDisk) or level.useOffHeap or level.replication > 1:
        raise InvalidRequest(
            f"persist: the server keeps rows in memory and on disk, once, as MEMORY_AND_DISK says; leave {level} out, "
            "or write .toDF().persist(…)"
        )
    nodes = list(exchanges(steps.leg))
    if not nodes:
        raise InvalidRequest(
            f"persist: {steps_text(steps.leg)} has no exchange, whose rows could stay; add .repartition(n) before it"
        )
    for exchange in nodes:
        steps.shuffles.persisted.keep(exchange)
    return steps


def unpersist(steps: AnySteps, blocking: bool = False) -> AnySteps:  # noqa: FBT001, FBT002 - Spark's arguments
    """Drop the dataset of :meth:`persist`; DataFrames and running jobs that read it fail. Returns this pipeline, at
    once, with ``blocking`` and without: its rows are gone, and their room is free soon.

    Calling it twice is fine.
    """
    del blocking
    for exchange in exchanges(steps.leg):
        steps.shuffles.persisted.forget(exchange)
    return steps


def statistics(steps: Steps) -> RunStatistics:
    """Of the last ``toDF``, ``toArrow`` or the like of this very pipeline. Raises InvalidRequest: before the first."""
    ran = _runs.get(steps.leg, LastRun()).statistics
    if ran is None:
        raise InvalidRequest(
            "this pipeline has not run: statistics() is of its last toDF(), toArrow() or count()"
        )
    return ran


def explain(steps: Steps, extended: bool | str | None = None, mode: str | None = None) -> None:  # noqa: FBT001 - Spark's arguments
    """Print the steps from the last one back, where each exchange sends its rows, and, after a run of this very
    pipeline, rows, partitions, sizes, skew, tasks, spilled bytes, seconds and servers of each exchange, and which
    steps ran in the driver.

    Raises:
        InvalidRequest: ``extended``, or a ``mode`` other than ``simple``.
    """
    if extended not in (None, False, "simple") or mode not in (None, "simple"):
        shown = repr(mode) if extended is None else repr(extended)
        raise InvalidRequest(
            f"explain: a pipeline has one plan, which explain() prints; .toDF().explain({shown}) runs it, and prints "
            "Spark's plan of what reads the result"
        )
    print(text_of(steps))  # noqa: T201 - as Spark's does


def text_of(steps: Steps) -> str:
    """The text of :meth:`explain`."""
    ran = _runs.get(steps.leg, LastRun())
    leg = planned(steps.leg, steps.shuffles.persisted) if ran.statistics is None else ran.leg or steps.leg
    text = plan_text(leg, ran, lambda each: steps.shuffles.persisted.find(each.node) is not None)
    return text if ran.statistics is None else f"{text}\n\n{ran.statistics}"


def _reader_of(steps: Steps, sealed: SealedDataset, again: Again | None = None) -> pa.RecordBatchReader:
    holder = Holder(HolderKind.READER)
    steps.shuffles.results.hold(holder, [sealed.source.dataset])
    return collected(steps.shuffles.loop, sealed, holder, again)


def _gathered(steps: Steps, execution: Execution, *, sends: bool = False) -> Sequence[Any] | None:
    """The batches of the result, if the driver runs the last steps. Else None, also as ``Execution.gathered`` says of
    what ``sends``.
    """
    rows = execution.gathered(steps.leg, sends=sends)
    if rows is None:
        return None
    _note(steps, execution, seconds=rows.seconds)
    return rows.batches


def _note(
    steps: Steps, execution: Execution, added: Exchange | None = None, seconds: float | None = None
) -> None:
    """Remember and log the run; the arguments are those of ``Execution.ran``."""
    ran = execution.ran(steps.leg, added, seconds)
    _runs[steps.leg] = ran
    if ran.statistics is not None and ran.statistics.exchanges:
        _log.info("%s: %s", steps_text(steps.leg), ran.statistics)


def frame_of(steps: Steps, execution: Execution) -> DataFrame:
    """The rows after the last exchanges, which are run, as Spark computes them at each use."""
    part = steps.leg.single
    # As many tasks as the user wants partitions; those of ``orderBy`` are for the order only.
    alone = part is not None and all(isinstance(stage, SortStage) for stage in part.stages)
    alone = alone and not any(exchange.orders for exchange in exchanges(steps.leg))
    inputs = execution.inputs(steps.leg, alone=alone)
    _note(steps, execution)
    return reduce(DataFrame.unionAll, [_part_frame(steps, each, execution.datasets) for each in inputs])


def _part_frame(steps: Steps, read: TaskInput, datasets: list[str]) -> DataFrame:
    rows, task, _ = read
    if not isinstance(rows, TaskNumbers):
        if not task.stages:
            return rows
        check_names_apart(rows, "the DataFrame")
    return mapped(rows, reader(task, datasets), steps.leg.struct)
