"""The parts of a pipeline or broadcast that run in Spark's tasks, and the driver's shuffle datasets."""

from .explaining import cores
from .frame_seconds import Counter, FrameSeconds
from .persisting import Persisted, PersistedDataset
from .progress import readable_size
from .range_placement import ByRange
from .result_reader import collected
from .results import reader
from .sealed import SealedDataset
from .sessions import Sessions
from .shares import Cut, Shares, tasks_for
from .shuffles import Shuffles, Target
from .skew import cuts_of, cuts_of_pair
from .spark_settings import is_on, spark_setting
from .spark_types import (
    arrow_schema,
    batch_limits,
    char_type,
    check_compared,
    check_frame,
    check_key,
    declared_struct,
    pandas_form,
    spark_field,
    utc_arrow_schema,
)
from .task_sizes import SplitSizes, split_sizes
from .tasks import (
    WRITE_BUDGET_BYTES,
    ByColumn,
    ByKeys,
    InTurn,
    Placement,
    ReadTask,
    Sides,
    TaskSource,
    WriteTask,
)
