"""What the job that wrote a dataset left, on the server and in the driver."""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_client.merge import DatasetRef

from .sealed import SealedDataset
from .task_reports import TaskWork


class WrittenDataset(NamedTuple):
    """A sealed dataset, the server's totals (see ``Shuffles.seal``), what the job's tasks did, and how long the driver
    waited for them and the seal.
    """

    source: DatasetRef
    totals: dict[str, Any]
    work: TaskWork
    seconds: float


class Ran(NamedTuple):
    """A dataset as a plan reads it, and what the job that wrote it did."""

    sealed: SealedDataset
    written: WrittenDataset
