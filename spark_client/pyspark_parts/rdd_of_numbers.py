"""A job of Spark Classic whose tasks get nothing but their numbers: an RDD, which needs no query and no plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.errors.exceptions.captured import PythonException
from pyspark.serializers import NoOpSerializer

Numbered = Callable[[int, Iterator[Any]], Iterator[Any]]


def numbers_rdd(context: SparkContext, tasks: int, function: Numbered, environment: dict[str, str]) -> Any:
    """The RDD of what ``function(number, nothing)`` gives in each of ``tasks`` tasks. It has to consume ``nothing``:
    Spark ends the worker of a task that leaves some of its input.

    ``environment``: further variables of the workers. Tasks of queries and RDDs share workers where all are the same.
    """
    spark: Any = context
    jvm = spark._jvm
    nothing = spark._jsc.parallelize(jvm.java.util.Collections.nCopies(tasks, bytearray()), tasks)
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


def session_tag(spark: Any) -> str:
    """The tag of all jobs of a session of Spark Classic, by which ``interruptAll`` finds them."""
    return str(spark._jsparkSession.sessionJobTag())
