"""Running a plan: as a DataFrame, or as a reader of its result; what the run was like, and what of it stays."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import reduce
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame

from flight_server.protocol import InvalidRequest
from spark_client.jobs import Counter, FrameSeconds, Shuffles, collected, reader
from spark_client.steps import Pass, SortStage, Stage

from .base import Steps
from .execution import Execution
from .nodes import Exchange, Input, exchanges, steps
from .plan_text import plan_text
from .run_statistics import LastRuns, RunStatistics

_log = logging.getLogger("spark_client.pipeline")
_runs = LastRuns()


class Result:
    """What ``Pipeline.result`` returns; as a context manager it gives the DataFrame, and releases it at the end."""

    def __init__(
        self,
        df: DataFrame,
        statistics: RunStatistics,
        shuffles: Shuffles,
        datasets: Iterable[str],
        frame: object,
    ) -> None:
        self._df = df
        self._statistics = statistics
        self._shuffles = shuffles
        self._datasets = list(datasets)
        self._frame = frame

    @property
    def df(self) -> DataFrame:
        """It can be computed, with all that is made of it, until :meth:`release`."""
        return self._df

    @property
    def statistics(self) -> RunStatistics:
        """Of the run that made it."""
        return self._statistics

    def release(self) -> None:
        """Drop what only this result reads: persisted exchanges stay. Twice is fine. A dataset of a server that cannot
        be reached ends with its lease.
        """
        datasets, self._datasets = self._datasets, []
        for dataset in datasets:
            self._shuffles.results.end(self._frame, dataset)

    def __enter__(self) -> DataFrame:
        return self._df

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Finishing(Steps):
    """See the module."""

    def toDF(self) -> DataFrame:  # noqa: N802 - Spark's name
        """Run all steps up to the last exchange; a DataFrame that reads from the service and runs the others.

        Raises:
            InvalidRequest: Spark would start its tasks with an interpreter that cannot run them.
            FlightShuffleError: the server refused, or could not be reached.
            pyspark.errors.PySparkException: a job failed.
        """
        return self._run_to_frame()[0]

    def result(self) -> Result:
        """As :meth:`toDF`, with an end: ``with pipeline.result() as df:`` drops at the end of the block what only this
        DataFrame reads. Without a block: ``result.df``, ``result.statistics``, ``result.release()``.
        """
        df, execution, frame = self._run_to_frame()
        return Result(df, execution.statistics()[0], self.shuffles, execution.datasets, frame)

    def collect(self) -> pa.RecordBatchReader:
        """Run all steps; a reader of their result, see ``ShuffleClient.collect``. Raises as :meth:`toDF`."""
        part = self.leg.single
        last = Exchange(self.leg, 1, label="collect")
        if part is not None and not part.stages:
            origin = part.origin
            if isinstance(origin, Input) and origin.source is None:
                known = self.shuffles.results.sealed(origin.rows, self._schema)
                if known is not None:
                    return collected(self.shuffles, known, owned=False)
            elif isinstance(origin, Exchange):
                last = origin
        execution = Execution(self.shuffles, self.spark)
        sealed = execution.sealed(last)
        self._note(execution, None if part is not None and last is part.origin else last)
        owned = sealed.source.dataset in execution.owned
        return collected(self.shuffles, sealed, owned=owned, node=last)

    def persist(self) -> Self:
        """Keep what the last exchange writes: from now on it runs once for all plans that use it, also in several
        threads, and also for plans that were made before. The steps after it run for each plan. Returns this pipeline.

        Its dataset stays until :meth:`unpersist`, the end of the ``client.scope()`` in which it was written, or the
        close of the client; ``client.release`` leaves it. When no pipeline that uses it is referred to any more, it is
        dropped, or, if ``toDF`` made a DataFrame of it that was not released, it is from then on such a result. One
        that the server has lost is written again by the next plan. After a union or a join, all exchanges that it reads
        are persisted. Twice is fine.

        Raises:
            InvalidRequest: there is no exchange.
        """
        found = list(exchanges(self.leg))
        if not found:
            raise InvalidRequest(
                f"persist: {steps(self.leg)} has no exchange, whose rows could stay; add .exchange(n) before it"
            )
        for exchange in found:
            self.shuffles.persisted.keep(exchange)
        return self

    def unpersist(self) -> Self:
        """Drop what :meth:`persist` kept; DataFrames and running jobs that read it fail. Returns this pipeline.

        Twice is fine.
        """
        for exchange in exchanges(self.leg):
            self.shuffles.persisted.forget(exchange)
        return self

    @property
    def statistics(self) -> RunStatistics | None:
        """Of the last ``toDF``, ``result`` or ``collect`` of this very pipeline; None before the first."""
        return _runs.of(self.leg).statistics

    def explain(self) -> None:
        """Print the steps from the last one back, where each exchange sends its rows, and, after a run of this very
        pipeline, partitions, sizes, skew, tasks, spilled bytes and seconds of each exchange, and the seconds inside
        each stage, over all tasks; of those after the last exchange, which run in Spark's own jobs when the DataFrame
        is used, the seconds up to now, and none on Spark Connect.
        """
        ran = _runs.of(self.leg)
        persisted = self.shuffles.persisted
        text = plan_text(self.leg, ran.exchanges, ran.seconds, lambda node: persisted.find(node) is not None)
        print(text if ran.statistics is None else f"{text}\n\n{ran.statistics}")  # noqa: T201 - as Spark's does

    def _run_to_frame(self) -> tuple[DataFrame, Execution, object]:
        """The DataFrame, its run, and what stands for it in ``results``."""
        execution = Execution(self.shuffles, self.spark)
        part = self.leg.single
        alone = part is not None and all(isinstance(stage, SortStage) for stage in part.stages)
        inputs = execution.inputs(self.leg, alone=alone)
        seconds = FrameSeconds(self.spark)
        self._note(execution, seconds=seconds)
        datasets = execution.datasets
        try:
            parts = [self._frame(*given, datasets, seconds.counter) for given in inputs]
            frame = reduce(DataFrame.unionAll, parts)
        except BaseException:
            execution.drop_all()
            raise
        for dataset in execution.owned:
            self.shuffles.results.add(dataset)
        made = self.shuffles.results.made_of(datasets)
        if part is not None and not part.stages and isinstance(part.origin, Exchange):
            self.shuffles.results.add_frame(frame, execution.written(part.origin))
        return frame, execution, made

    def _note(
        self, execution: Execution, last: Exchange | None = None, seconds: FrameSeconds | None = None
    ) -> None:
        """Remember and log the run; ``last`` is an exchange that the plan does not have, ``seconds`` are of its
        DataFrame.
        """
        statistics, of = execution.statistics()
        _runs.add(self.leg, statistics, of, last, seconds)
        if statistics.exchanges:
            _log.info("%s: %s", steps(self.leg), statistics)

    def _frame(
        self, given: Input, stages: tuple[Stage, ...], datasets: list[str], counter: Counter
    ) -> DataFrame:
        if given.source is not None:
            task = given.reading(stages, self.shuffles.server.reading)
            return given.rows.mapInArrow(reader(task, datasets, counter), self.leg.struct)
        if not stages:
            return given.rows
        return given.rows.mapInArrow(counter.running(stages, Pass(limits=given.limits)), self.leg.struct)
