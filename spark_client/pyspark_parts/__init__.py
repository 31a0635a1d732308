"""Names that PySpark does not document, or has only in some of the versions that this package supports.

Nothing else here imports such names (``tests/test_layout.py``), and a test has all of them in every version.
"""

from .inner_names import (
    DIVIDED_KINDS,
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema_of,
    begin,
    cloudpickle,
    collected,
    from_arrow_schema,
    from_arrow_type,
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
    interrupts_kept,
    jobs_with_tag,
    numbers_rdd,
    run_daemon,
    session_tag,
    worker_connection,
)
from .pandas_conversion import PandasConversion, check_result
