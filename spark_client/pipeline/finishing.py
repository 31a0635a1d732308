"""Running a plan: as a DataFrame, or as a reader of its result; its statistics, and the datasets that stay."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from flight_server.protocol import InvalidRequest
from spark_client.broadcast import Broadcast
from spark_client.jobs import (
    ReadTask,
    SealedDataset,
    check_names_apart,
    collected,
    reader,
    settings_once,
)
from spark_client.servers import RERUNS
from spark_client.steps import SortStage, Stage

from .base import AnySteps, Steps
from .execution import Execution
from .nodes import Exchange, Input, exchanges, steps_text
from .run_statistics import LastRuns, RunStatistics, plan_text

_log = logging.getLogger("spark_client.pipeline")
_runs = LastRuns()
T = TypeVar("T")


def to_frame(steps: Steps) -> DataFrame:
    """Run all steps up to the last exchange; a DataFrame that reads from the service and runs the others.

    Raises:
        InvalidRequest: Spark would start its tasks with an interpreter that cannot run them.
        FlightShuffleError: the server refused, or could not be reached.
        pyspark.errors.PySparkException: a job failed.
    """
    return running(steps, lambda execution: _run_to_frame(steps, execution)[0])


def few_rows(steps: Steps) -> Sequence[Sequence[Any]]:
    """The result of few rows, whose datasets are dropped. Raises as :meth:`.Pipeline.toDF`."""
    read_by: list[tuple[object, str]] = []

    def read(execution: Execution) -> Sequence[Sequence[Any]]:
        here = _gathered(steps, execution)
        if here is not None:
            return [tuple(row.values()) for batch in here for row in batch.to_pylist()]
        df, frame = _run_to_frame(steps, execution)
        read_by.extend((frame, dataset) for dataset in execution.datasets)
        return df.collect()

    try:
        return running(steps, read)
    finally:
        for frame, dataset in read_by:
            steps.shuffles.results.end(frame, dataset)


def collect(steps: Steps) -> pa.RecordBatchReader:
    """Run all steps; a reader of their result, see ``ShuffleClient.collect``. Raises as :meth:`toDF`."""
    part = steps.leg.single
    last = Exchange(steps.leg, 1, label="collect")
    if part is not None and not part.stages:
        origin = part.origin
        if isinstance(origin, Input) and origin.frame is not None:
            known = steps.shuffles.results.sealed(origin.frame, steps.leg.schema)
            if known is not None:
                return collected(steps.shuffles, known, owned=False)
        elif isinstance(origin, Exchange):
            last = origin

    def run(execution: Execution) -> tuple[SealedDataset, bool]:
        sealed = execution.sealed(last)
        _note(steps, execution, None if part is not None and last is part.origin else last)
        return sealed, sealed.source.dataset in execution.owned

    def again(loss: str) -> tuple[SealedDataset, bool]:
        return running(steps, run, loss)

    def read(execution: Execution) -> pa.RecordBatchReader:
        if part is None or last is not part.origin:
            here = _gathered(steps, execution, sends=True)
            if here is not None:
                return pa.RecordBatchReader.from_batches(steps.leg.schema, here)
        sealed, owned = run(execution)
        return collected(steps.shuffles, sealed, owned=owned, again=again)

    return running(steps, read)


def broadcast_rows(steps: Steps, name: str | None) -> Broadcast:
    """A broadcast of the rows, which the plan's last job writes. Raises as :meth:`.Pipeline.toDF`."""
    name = name or "table"
    last = Exchange(steps.leg, 1, label=f"broadcast {name!r}", counted=True)

    def run(execution: Execution) -> Broadcast:
        here = _gathered(steps, execution, sends=True)
        if here is not None:
            made = Broadcast.create(steps.shuffles, pa.Table.from_batches(here, steps.leg.schema), name)
            made.struct = steps.leg.struct
            return made
        sealed = execution.sealed(last)
        _note(steps, execution, last)
        return Broadcast.of_sealed(steps.shuffles, sealed, name, steps.leg.struct)

    return running(steps, run)


def running(steps: Steps, use: Callable[[Execution], T], *losses: str) -> T:
    """The result of ``use`` of a run, whose datasets are dropped if it raises; of another run, at most ``RERUNS``
    times, if a server was lost with what it read. ``losses`` were those of earlier runs.
    """
    for left in range(RERUNS, -1, -1):
        execution = Execution(steps.shuffles, steps.spark, losses)
        try:
            with settings_once(steps.spark):
                return use(execution)
        except BaseException as error:
            lost = left and isinstance(error, Exception) and execution.has_lost()
            execution.drop_all()
            if not lost:
                raise
            losses = (*losses, "a server that held a part of what was read is gone")
            _log.warning("the plan runs again: %s", losses[-1])
    raise AssertionError


def persist(steps: AnySteps) -> AnySteps:
    """Keep the dataset of the last exchange: from now on it runs once for all plans that use it, also in several
    threads, and also for plans that were made before. The steps after it run for each plan. Returns this pipeline.

    Its dataset stays until :meth:`unpersist`, the end of the ``client.scope()`` in which it was written, or the
    close of the client; ``client.release`` leaves it. When no pipeline that uses it is referred to any more, it is
    dropped, or, if ``toDF`` made a DataFrame of it that was not released, it is from then on such a result. The
    next plan writes a dataset again that the server has lost. After a union or a join, all exchanges that it reads
    are persisted. Twice is fine.

    Raises:
        InvalidRequest: there is no exchange.
    """
    found = list(exchanges(steps.leg))
    if not found:
        raise InvalidRequest(
            f"persist: {steps_text(steps.leg)} has no exchange, whose rows could stay; add .exchange(n) before it"
        )
    for exchange in found:
        steps.shuffles.persisted.keep(exchange)
    return steps


def unpersist(steps: AnySteps) -> AnySteps:
    """Drop the dataset of :meth:`persist`; DataFrames and running jobs that read it fail. Returns this pipeline.

    Twice is fine.
    """
    for exchange in exchanges(steps.leg):
        steps.shuffles.persisted.forget(exchange)
    return steps


def statistics(steps: Steps) -> RunStatistics:
    """Of the last ``toDF`` or ``collect`` of this very pipeline. Raises InvalidRequest: before the first."""
    ran = _runs.of(steps.leg).statistics
    if ran is None:
        raise InvalidRequest("this pipeline has not run: statistics() is of its last toDF() or collect()")
    return ran


def explain(steps: Steps) -> None:
    """Print the steps from the last one back, where each exchange sends its rows, and, after a run of this very
    pipeline, rows, partitions, sizes, skew, tasks, spilled bytes, seconds and servers of each exchange, and which
    steps ran in the driver.
    """
    ran = _runs.of(steps.leg)
    persisted = steps.shuffles.persisted
    text = plan_text(
        steps.leg,
        ran.exchanges,
        lambda node: persisted.find(node) is not None,
        notes=ran.notes,
        in_driver=ran.in_driver,
    )
    print(text if ran.statistics is None else f"{text}\n\n{ran.statistics}")  # noqa: T201 - as Spark's does


def _run_to_frame(steps: Steps, execution: Execution) -> tuple[DataFrame, object]:
    part = steps.leg.single
    alone = part is not None and all(isinstance(stage, SortStage) for stage in part.stages)
    inputs = execution.inputs(steps.leg, alone=alone)
    _note(steps, execution)
    datasets = execution.datasets
    parts = [_frame(steps, *given, datasets) for given in inputs]
    frame = reduce(DataFrame.unionAll, parts)
    for dataset in execution.owned:
        steps.shuffles.results.add(dataset)
    made = steps.shuffles.results.made_of(datasets)
    if part is not None and not part.stages and isinstance(part.origin, Exchange):
        steps.shuffles.results.add_frame(frame, execution.written(part.origin))
    return frame, made


def _gathered(steps: Steps, execution: Execution, *, sends: bool = False) -> Sequence[Any] | None:
    """The batches of the result, if the driver runs the last steps: then nothing of the run is left. Else None, also as
    ``Execution.gathered`` says of what ``sends``.
    """
    found = execution.gathered(steps.leg, sends=sends)
    if found is None:
        return None
    _note(steps, execution, seconds=found.seconds)
    execution.drop_all()
    return found.batches


def _note(
    steps: Steps,
    execution: Execution,
    last: Exchange | None = None,
    seconds: float | None = None,
) -> None:
    """Remember and log the run; ``last`` is an exchange that the plan does not have, ``seconds`` are the driver's for
    the steps after the last one.
    """
    statistics, of = execution.statistics()
    statistics = replace(statistics, result_seconds=seconds)
    _runs.add(steps.leg, statistics, of, added=last, notes=execution.notes)
    if statistics.exchanges:
        _log.info("%s: %s", steps_text(steps.leg), statistics)


def _frame(steps: Steps, given: Input, stages: tuple[Stage, ...], datasets: list[str]) -> DataFrame:
    given, stages, limits = given.with_settings(stages)
    if given.frame is not None:
        if not stages:
            return given.frame
        check_names_apart(given.frame, "the DataFrame")
    task = ReadTask(given.source, given.shares, stages, limits, steps.shuffles.server.reading)
    return given.rows.mapInArrow(reader(task, datasets), steps.leg.struct)
