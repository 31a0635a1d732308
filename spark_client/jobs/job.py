"""A job: the tasks that one job of Spark's, or the driver in its place, runs, and the datasets that they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_client.executors import Portable, in_forked_workers

from .tasks import WriteTask


@dataclass(frozen=True)
class TaskNumbers:
    """A row for each of ``tasks``, which has its number. Spark is asked only when it runs them."""

    sparkSession: SparkSession  # noqa: N815 - PySpark's name
    tasks: int

    def mapInArrow(self, func: Any, schema: Any) -> DataFrame:  # noqa: N802 - PySpark's name
        return self.sparkSession.range(0, self.tasks, 1, self.tasks).mapInArrow(func, schema)


TaskRows = DataFrame | TaskNumbers
"""What tasks are run over."""


def mapped(rows: TaskRows, function: Portable, struct: StructType) -> DataFrame:
    """What tasks make of the rows by the function."""
    with in_forked_workers(rows.sparkSession):
        return rows.mapInArrow(function, struct)


@dataclass(frozen=True)
class Target:
    """A dataset that a job writes: ``writes`` are rows, each with the task over each of their partitions. ``label`` is
    for the progress bar, ``name`` for Spark (``runner``). ``alone``: one server holds it, which its name chooses.
    ``offload``: the prefix below which the servers keep it, too, as for a dataset over several servers, which one alone
    can hold.
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


@dataclass(frozen=True)
class Job:
    """Writes each of the targets. ``in_driver``: the driver runs its tasks, where it can (``runner``)."""

    targets: Sequence[Target]
    in_driver: bool = False

    @property
    def writes(self) -> list[tuple[TaskRows, WriteTask]]:
        return [each for target in self.targets for each in target.writes]

    @property
    def spark(self) -> SparkSession:
        return self.targets[0].writes[0][0].sparkSession

    @property
    def label(self) -> str:
        return ", ".join(target.label for target in self.targets)

    @property
    def name(self) -> str | None:
        """For Spark; None leaves the user's."""
        return ", ".join(target.name for target in self.targets if target.name is not None) or None
