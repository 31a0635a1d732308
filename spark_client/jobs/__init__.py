"""The parts of a pipeline or broadcast that run in Spark's tasks, and the driver's shuffle datasets."""

from .driver_tasks import share_numbers
from .persisting import Persisted, PersistedDataset
from .placements import ByColumn, ByKeys, ByRange, InTurn, Placement
from .read_limit import ReadLimit
from .result_reader import collected
from .results import reader
from .sealed import SealedDataset
from .session_facts import (
    SplitSizes,
    broadcast_threshold_bytes,
    cores,
    is_on,
    overhead_bytes,
    spark_setting,
    split_sizes,
)
from .sessions import Sessions
from .setting_blocks import settings_once
from .shares import Cut, Shares, tasks_for
from .shuffles import Shuffles, Target
from .skew import cuts_of, cuts_of_pair
from .spark_types import (
    arrow_schema,
    batch_limits,
    char_type,
    check_compared,
    check_frame,
    check_key,
    check_names_apart,
    declared_struct,
    function_settings,
    spark_field,
    utc_arrow_schema,
)
from .targets import TaskNumbers, TaskRows
from .task_reports import TaskWork
from .tasks import WRITE_BUDGET_BYTES, ReadTask, Sides, TaskSource, WriteTask
