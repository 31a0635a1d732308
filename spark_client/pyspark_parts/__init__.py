"""Names that PySpark does not document, or has only in some of the versions that this package supports.

Nothing else here imports such names (``tests/test_layout.py``), and a test has all of them in every version.
"""

from .inner_names import (
    DIVIDED_KINDS,
    arrow_schema_of,
    cloudpickle,
    from_arrow_schema,
    from_arrow_type,
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from .interrupts import interrupts_kept
from .pandas_conversion import PandasConversion, check_result
from .rdd_of_numbers import collected, numbers_rdd, session_tag
from .read_limits import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from .spark_worker import worker_connection
