"""The parts of a pipeline or broadcast that run in Spark's tasks, and the driver's shuffle datasets.

For ``pipeline``, ``broadcast`` and ``client``.
"""

from .explaining import cores
from .readable import Readable
from .results import reader
from .shares import Shares, tasks_for
from .shuffles import Shuffles
from .spark_types import arrow_schema, batch_limits, check_frame, check_key, declared_struct, utc_arrow_schema
from .stages import GroupStage, MapStage, Pass, Stage, run
from .tasks import WRITE_BUDGET_BYTES, ByColumn, ByKeys, InTurn, Placement, ReadTask, WriteTask

__all__ = [
    "WRITE_BUDGET_BYTES",
    "ByColumn",
    "ByKeys",
    "GroupStage",
    "InTurn",
    "MapStage",
    "Pass",
    "Placement",
    "ReadTask",
    "Readable",
    "Shares",
    "Shuffles",
    "Stage",
    "WriteTask",
    "arrow_schema",
    "batch_limits",
    "check_frame",
    "check_key",
    "cores",
    "declared_struct",
    "reader",
    "run",
    "tasks_for",
    "utc_arrow_schema",
]
