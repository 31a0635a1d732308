"""Names that PySpark does not document, or has only in some of the versions that this package supports: its rules for
schemas and for the annotations of functions, its pickler, and its inner parts for jobs without a query, for the
admission control of streams, for Ctrl-C during a call of the JVM, for the JVM's log, and for the worker's connection.

Nothing else here imports such names (``tests/test_layout.py``), and a test has all of them in every version.
"""

from __future__ import annotations

import inspect
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark import RDD, SparkContext, cloudpickle
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.errors.exceptions.captured import PythonException
from pyspark.serializers import NoOpSerializer
from pyspark.sql.pandas.typehints import (
    infer_group_arrow_eval_type_from_func,
    infer_group_pandas_eval_type_from_func,
)
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.util import PythonEvalType

from .pandas_conversion import PandasConversion, check_result

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1 has no admission control for Python sources: a trigger takes all there is
    ReadAllAvailable = ReadMaxRows = ReadMaxBytes = ReadMaxFiles = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # of versions without it
        """As Spark's."""


DIVIDED_KINDS = frozenset(
    {PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF, PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF}
)
"""The answers of the two functions ``infer_…`` for a function that takes a group in batches."""


def arrow_schema_of(struct: StructType, *, timezone: str | None, large: bool = False) -> pa.Schema:
    """Spark's own Arrow schema for ``struct``; ``large`` gives text and bytes 64-bit offsets. Raises PySparkTypeError,
    UnsupportedOperationException, ValueError: Spark has no Arrow type for a column.
    """
    options: dict[str, Any] = {
        "error_on_duplicated_field_names_in_struct": True,
        "timezone": timezone,
        "prefers_large_types": large,
    }
    # Spark 4.1 has no `timezone`: its timestamps are labelled UTC, which is the same instant.
    accepted = inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(struct, **{name: value for name, value in options.items() if name in accepted})


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """An error that hides a ``KeyboardInterrupt`` of the block leaves it as one. The signal cuts off the answer of the
    JVM; PySpark's handler and Py4J then ask the connection, which has no answer for them, and raise that.
    """
    handled = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and cause is not handled:
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            cause = cause.__cause__ or cause.__context__
        raise


def make_active(spark: Any) -> None:
    """Make it the active session of this thread's connection to the JVM, which is a new one after Ctrl-C."""
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def register_source(spark: Any, source: Any) -> None:
    """``spark.dataSource.register``, without Spark's warning that another source of that name is replaced."""
    log4j = None if "connect" in type(spark).__module__ else spark._jvm.org.apache.logging.log4j
    # Py4J gives a JavaPackage for a class that there is not, as in a JVM that logs by another library.
    if log4j is None or type(log4j.core.config.Configurator).__name__ == "JavaPackage":
        spark.dataSource.register(source)
        return
    of_class_loader = False
    context = log4j.LogManager.getContext(of_class_loader)
    with _registering:
        logger = context.getConfiguration().getLoggerConfig(_SOURCES)
        # One of a wider name, whose level it has, may get another level later.
        level = logger.getExplicitLevel() if logger.getName() == _SOURCES else None
        log4j.core.config.Configurator.setLevel(_SOURCES, log4j.Level.ERROR)
        try:
            spark.dataSource.register(source)
        finally:
            context.getConfiguration().getLoggerConfig(_SOURCES).setLevel(level)
            context.updateLoggers()


_registering = threading.Lock()
"""Held while the logger of data sources has a level of ours, which another thread would take for the user's."""
_SOURCES = "org.apache.spark.sql.execution.datasources.DataSourceManager"

Numbered = Callable[[int, Iterator[Any]], Iterator[Any]]


def numbers_rdd(context: SparkContext, tasks: int, function: Numbered, environment: dict[str, str]) -> Any:
    """The RDD of what ``function(number, nothing)`` gives in each of ``tasks`` tasks. It has to consume ``nothing``:
    Spark ends the worker of a task that leaves some of its input.

    ``environment``: further variables of the workers. Tasks of queries and RDDs share workers where all are the same.
    """
    spark: Any = context
    jvm = spark._jvm
    _keep_classes(jvm)
    nothing = spark._jsc.parallelize([], tasks)
    parts = (function, None, NoOpSerializer(), spark.serializer)
    command, variables, workers, includes = _prepare_for_python_RDD(spark, parts)
    workers = {**workers, **environment}
    wrapped = jvm.SimplePythonFunction(
        bytearray(command),
        workers,
        includes,
        spark.pythonExec,
        spark.pythonVer,
        variables,
        spark._javaAccumulator,
    )
    preserves_partitioning = is_barrier = False
    rdd = jvm.PythonRDD(nothing.rdd(), wrapped, preserves_partitioning, is_barrier)
    return RDD(rdd.asJavaRDD(), spark, spark.serializer)


_SETTINGS = "flight_shuffle_settings"
_CLASSES = ("PythonRDD", "PythonUtils", "SimplePythonFunction")


def _keep_classes(jvm: Any) -> None:
    """Let Py4J look for these classes of the JVM once: by its short name it looks for one, at each use, in each package
    that PySpark imports, and so in all of Spark's jars.
    """
    for name in _CLASSES:
        if name not in vars(jvm):
            setattr(jvm, name, getattr(jvm, name))


def begin(rdd: Any) -> None:
    """Start the job of all its tasks, for which no call waits. What it gives, and whether it fails, is not seen."""
    rdd._jrdd.countAsync()


def collected(rdd: Any) -> list[Any]:
    """All rows, in the order of the tasks. Raises PythonException: a task's function has raised, as of a query;
    Py4JJavaError: the job has failed otherwise.
    """
    try:
        return list(rdd.collect())
    except Exception as error:
        # Spark 4.1 translates the errors of queries only.
        java: Any = getattr(error, "java_exception", None)
        cause = None if java is None else java.getCause()
        if cause is None or not cause.getClass().getName().endswith(".PythonException"):
            raise
        raise PythonException(origin=cause) from None


def settings_text(spark: Any) -> str | None:
    """All that was set in a session of Spark Classic: another text after any change. None of another session."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return None
    if _SETTINGS not in vars(session):
        # Its map, which is one object for the session's life.
        vars(session)[_SETTINGS] = session.sessionState().conf().settings()
    return str(vars(session)[_SETTINGS].toString())


def session_tag(spark: Any) -> str:
    """The tag of all jobs of a session of Spark Classic, by which ``interruptAll`` finds them."""
    return str(spark._jsparkSession.sessionJobTag())


def jobs_with_tag(context: Any, tag: str) -> list[int]:
    """The jobs of Spark Classic that have the tag, also those that have ended."""
    return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))


def run_daemon() -> None:
    """Be PySpark's daemon, which forks the workers; it ends this process."""
    from pyspark import daemon  # noqa: PLC0415 - of this process alone

    daemon.manager()


def worker_connection() -> socket.socket | None:
    """The connection of the worker whose task this thread loads or runs, which stays PySpark's; None outside of a
    worker that PySpark's daemon has forked.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_worker(frame):
        frame = frame.f_back
    connection = None if frame is None else frame.f_locals["sock"]
    return connection if isinstance(connection, socket.socket) else None


def _is_worker(frame: FrameType) -> bool:
    """Whether it is that of the daemon's function ``worker(sock, authenticated)``."""
    code, spec = frame.f_code, frame.f_globals.get("__spec__")
    # The daemon is the main module, or imported by one that ``spark.python.daemon.module`` names.
    return (
        code.co_name == "worker"
        and code.co_varnames[:1] == ("sock",)
        and getattr(spec, "name", None) == "pyspark.daemon"
    )


__all__ = [
    "DIVIDED_KINDS",
    "PandasConversion",
    "ReadAllAvailable",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema_of",
    "begin",
    "check_result",
    "cloudpickle",
    "collected",
    "from_arrow_schema",
    "from_arrow_type",
    "infer_group_arrow_eval_type_from_func",
    "infer_group_pandas_eval_type_from_func",
    "interrupts_kept",
    "jobs_with_tag",
    "numbers_rdd",
    "run_daemon",
    "session_tag",
    "settings_text",
    "worker_connection",
]
