"""A pipeline's or broadcast's part in Spark: what its tasks run, and what its driver keeps."""

from .readable import Readable
from .results import reader
from .shuffles import Shuffles
from .spark_types import arrow_schema, batch_limits, check_frame, check_key, declared_struct
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
    "Shuffles",
    "Stage",
    "WriteTask",
    "arrow_schema",
    "batch_limits",
    "check_frame",
    "check_key",
    "declared_struct",
    "reader",
    "run",
]
