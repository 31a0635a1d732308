"""A result that is released at the end of a block."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from pyspark.sql import DataFrame

from spark_client.jobs import Shuffles

from .run_statistics import RunStatistics


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
