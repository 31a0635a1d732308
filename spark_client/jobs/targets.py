"""What a job writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from .tasks import WriteTask


class TaskRows(Protocol):
    """What tasks are run over: a DataFrame, or their numbers."""

    @property
    def sparkSession(self) -> SparkSession: ...  # noqa: N802 - PySpark's name

    def mapInArrow(self, func: Any, schema: Any) -> DataFrame: ...  # noqa: N802 - PySpark's name


@dataclass(frozen=True)
class TaskNumbers:
    """A row for each of ``tasks``, which has its number. Spark is asked only when it runs them."""

    sparkSession: SparkSession  # noqa: N815 - PySpark's name
    tasks: int

    def mapInArrow(self, func: Any, schema: Any) -> DataFrame:  # noqa: N802 - PySpark's name
        return self.sparkSession.range(0, self.tasks, 1, self.tasks).mapInArrow(func, schema)


@dataclass(frozen=True)
class Target:
    """A dataset that a job writes: ``writes`` are rows, each with the task over each of their partitions, in which the
    generation is filled in. ``label`` is for the progress bar, ``name`` for Spark (``shuffles``). ``alone``: one
    server holds it, which its name chooses. ``offload``: the prefix below which the servers keep it, too, as for a
    dataset over several servers, which one alone can hold.
    """

    writes: Sequence[tuple[TaskRows, WriteTask]]
    label: str
    name: str | None = None
    alone: bool = False
    offload: str | None = None

    @property
    def task(self) -> WriteTask:
        """The first one; dataset, partitions and schema are the same in all."""
        return self.writes[0][1]
