"""The Python that runs Spark's tasks.

Guarantee: where Spark Classic has a local master, its tasks run with the driver's interpreter, unless the user has
named another one; then, before a job, one that cannot run them is an error.

Spark itself starts the interpreter that ``PYSPARK_PYTHON`` names, else the first ``python3`` in the search path: not
the driver's in a virtual environment that was not activated. On other masters the executors' error names the missing
package.

Workers
    They are forked from the daemon of ``forked_workers``, if a new process of that interpreter, started as Spark starts
    it, has this package from the same place as the driver, and the user has named no daemon
    (``spark.python.daemon.module``). Otherwise from PySpark's own. That counts for tasks that start from now on, also
    those of the session's other jobs.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spark_client
from flight_server.protocol import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_SECONDS = 30.0
_UNNAMED = "python3"
"""What PySpark takes where the user has named none."""
_PROBE = """
import importlib.util, sys
missing = [name for name in ("numpy", "pyarrow") if importlib.util.find_spec(name) is None]
if sys.version_info[:2] != {version}:
    print("is Python %d.%d" % sys.version_info[:2], end="")
elif missing:
    print("has no", " and no ".join(missing), end="")
"""
_WHERE = "import importlib.util; print(importlib.util.find_spec('spark_client').origin, end='')"
_DAEMON = "spark.python.daemon.module"
FORKING = "spark_client.executors.forked_workers"
"""The module that is the daemon. Nothing imports it: Python runs it."""
_with_daemon: weakref.WeakSet[Any] = weakref.WeakSet()
"""The contexts whose daemon has been chosen."""


def use_own_interpreter(spark: SparkSession) -> bool:
    """Let the tasks of a local master, which are on this machine, run with this interpreter, if the user has named
    none, and with forked workers. It counts for functions that are made into columns or stages from now on. Twice is
    fine. Whether this call has chosen the daemon of the application's workers.
    """
    context = _local_context(spark)
    if context is None:
        return False
    if context.pythonExec == _UNNAMED and sys.executable:
        context.pythonExec = sys.executable
    if context in _with_daemon:
        return False
    _with_daemon.add(context)
    try:
        return _choose_daemon(context)
    except Exception as error:  # noqa: BLE001 - of a version of Spark that has other names; PySpark's own does as well
        _log.info("workers are forked from PySpark's daemon: %s", error)
        return False


def _choose_daemon(context: Any) -> bool:
    from spark_client.pyspark_parts import application_settings, interrupts_kept  # noqa: PLC0415 - needs PySpark

    # The tasks of ``local-cluster`` are in other processes, with settings of their own.
    if str(context.master).partition("[")[0] != "local":
        return False
    with interrupts_kept():
        settings, system = application_settings(context), context._jvm.java.lang.System
        if settings.contains(_DAEMON):
            return False
        paths = [context.environment.get("PYTHONPATH"), system.getenv("PYTHONPATH")]
        directory = system.getProperty("user.dir")
    done = subprocess.run(  # noqa: S603 - the interpreter that Spark itself would start
        [context.pythonExec, "-c", _WHERE],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.stdout != spark_client.__file__:
        raise ModuleNotFoundError(f"{context.pythonExec} has the package from {done.stdout or 'nowhere'}")
    with interrupts_kept():
        settings.setIfMissing(_DAEMON, FORKING)
    return True


def check_interpreter(spark: SparkSession) -> None:
    """Check the interpreter of a local master's tasks. Raises InvalidRequest: it cannot run them; the message names the
    setting.
    """
    use_own_interpreter(spark)
    context = _local_context(spark)
    if context is None:
        return
    name = context.pythonExec
    python = shutil.which(name)
    if python is None and "/" in name:
        return  # from an archive that Spark unpacks for its tasks
    if python is not None and Path(python).parent == Path(sys.executable).parent:
        return
    if (reason := _unfit(python)) is not None:
        raise InvalidRequest(
            f"Spark would run its tasks with {python or name}, which {reason}: set PYSPARK_PYTHON to the driver's "
            f"interpreter, {sys.executable}, or leave it out"
        )


def _local_context(spark: Any) -> Any:
    """The context of a session of Spark Classic whose master is local; None of others and of a stopped one."""
    if "connect" in type(spark).__module__:
        return None
    context = spark.sparkContext
    return context if context is not None and str(context.master).startswith("local") else None


@cache
def _unfit(path: str | None) -> str | None:
    """Why the interpreter cannot run our tasks; None if it can, or if that is unknown."""
    if path is None:
        return "is not in the search path"
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that Spark itself would start
            [path, "-c", _PROBE.format(version=sys.version_info[:2])],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout or None if done.returncode == 0 else None
