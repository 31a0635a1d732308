"""The parts of a pipeline or broadcast that run in Spark's tasks, and the driver's shuffle datasets."""

from .job import Target, TaskNumbers, TaskRows, mapped
from .persisting import Persisted, PersistedDataset
from .placements import ByKeys, ByRange, InTurn, Placement
from .result_reader import Again, collected
from .results import reader
from .runner import cancelled_by_ctrl_c, share_numbers, start_ahead
from .sealed import SealedDataset
from .session_facts import (
    SplitSizes,
    broadcast_threshold_bytes,
    cores,
    is_on,
    overhead_bytes,
    same_session,
    settings_once,
    spark_setting,
    split_sizes,
)
from .shares import NO_SHARES, Cut, Shares, cuts_of, cuts_of_pair, tasks_for
from .shuffles import Shuffles
from .spark_types import (
    arrow_schema,
    batch_limits,
    char_type,
    check_compared,
    check_frame,
    check_key,
    check_names_apart,
    columns_by_name,
    declared_struct,
    find_columns,
    function_settings,
    spark_field,
    types_within,
    utc_arrow_schema,
)
from .tasks import WRITE_BUDGET_BYTES, ReadLimit, ReadTask, Sides, TaskSource, WriteTask
