"""The Python that runs Spark's tasks.

Guarantee: where Spark Classic has a local master, its tasks run with the driver's interpreter, unless the user has
named another one; then, before a job, one that cannot run them is an error.

Spark itself starts the interpreter that ``PYSPARK_PYTHON`` names, else the first ``python3`` in the search path: not
the driver's in a virtual environment that was not activated. On other masters the executors' error names the missing
package.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flight_server.protocol import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def use_own_interpreter(spark: SparkSession) -> None:
    """Let the tasks of a local master, which are on this machine, run with this interpreter, if the user has named
    none. It counts for functions that are made into columns or stages from now on. Twice is fine.
    """
    context = _local_context(spark)
    if context is not None and context.pythonExec == _UNNAMED and sys.executable:
        context.pythonExec = sys.executable


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
