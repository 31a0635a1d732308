"""Owners of holds in Spark: the application and query of a task or a session, in words for people.

Spark hands a task the settings and the names of its query as local properties.
"""

from __future__ import annotations

import contextlib
import re
import socket
from typing import Any

from spark_client.connection import owner, user

_QUERY = "sql.streaming.queryId"
_RUN = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_EXECUTION = "spark.sql.execution.id"


def owner_of_task() -> str | None:
    """The query of the task that this process runs; None outside of a task."""
    from pyspark import TaskContext  # noqa: PLC0415 - the command has this room without PySpark

    context = TaskContext.get()
    if context is None:
        return None
    property_of = context.getLocalProperty
    streaming, execution = property_of(_QUERY), property_of(_EXECUTION)
    if streaming is not None:
        query: str | None = (
            f"streaming query {_name(property_of(_DESCRIPTION))}{streaming}, run {property_of(_RUN)}"
        )
    else:
        query = None if execution is None else f"SQL query {execution}"
    host = property_of("spark.driver.host")
    return owner(
        _application(property_of("spark.app.name"), property_of("spark.app.id")),
        query,
        None if host is None else f"driver {host}",
        user(),
    )


def owner_of_session(spark: Any, what: str) -> str:
    """``what``, such as a lookup, of the session's application."""
    name = number = None
    with contextlib.suppress(Exception):  # a setting that Spark Connect does not have
        name, number = spark.conf.get("spark.app.name"), spark.conf.get("spark.app.id")
    return owner(what, _application(name, number), f"driver {socket.gethostname()}", user())


def _application(name: str | None, number: str | None) -> str:
    return f"application {name or 'without a name'!r} ({number})"


def _name(description: str | None) -> str:
    """The query's name with a blank; it is the first line of the description of its jobs, if it has one."""
    first = re.split("<br/>|\n", description or "")[0]
    return "" if not first or first.startswith("id = ") else f"{first!r} "
