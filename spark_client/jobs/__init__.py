"""The parts of a pipeline or broadcast that run in Spark's tasks, and the driver's shuffle datasets.

For ``pipeline``, ``broadcast`` and ``client``.
"""

from .explaining import cores
from .limits import BatchLimits
from .readable import Readable, Sealed
from .result_reader import collected
from .results import reader
from .shares import Shares, tasks_for
from .shuffles import Shuffles
from .spark_types import arrow_schema, batch_limits, check_frame, check_key, declared_struct, utc_arrow_schema
from .stages import GroupStage, MapStage, Pass, Stage, run
from .task_sizes import SplitSizes, split_sizes
from .tasks import WRITE_BUDGET_BYTES, ByColumn, ByKeys, InTurn, Placement, ReadTask, Source, WriteTask
from .worker_memory import reading_budget

__all__ = [
    "WRITE_BUDGET_BYTES",
    "BatchLimits",
    "ByColumn",
    "ByKeys",
    "GroupStage",
    "InTurn",
    "MapStage",
    "Pass",
    "Placement",
    "ReadTask",
    "Readable",
    "Sealed",
    "Shares",
    "Shuffles",
    "Source",
    "SplitSizes",
    "Stage",
    "WriteTask",
    "arrow_schema",
    "batch_limits",
    "check_frame",
    "check_key",
    "collected",
    "cores",
    "declared_struct",
    "reader",
    "reading_budget",
    "run",
    "split_sizes",
    "tasks_for",
    "utc_arrow_schema",
]
