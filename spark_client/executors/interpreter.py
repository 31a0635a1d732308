"""Checks, before a job, the Python that would run Spark's tasks.

Spark starts the interpreter that ``PYSPARK_PYTHON`` names, else the first ``python3`` in the search path: not the
driver's in a virtual environment that was not activated. Only Spark Classic with a local master is checked, whose
workers have this host and environment. On other masters the executors' error names the missing package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flight_server.protocol import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 30.0
_PROBE = """
import importlib.util, sys
missing = [name for name in ("numpy", "pyarrow") if importlib.util.find_spec(name) is None]
if sys.version_info[:2] != {version}:
    print("is Python %d.%d" % sys.version_info[:2], end="")
elif missing:
    print("has no", " and no ".join(missing), end="")
"""


def check_interpreter(spark: SparkSession) -> None:
    """Check the interpreter of a local master's tasks. Raises InvalidRequest: it cannot run them; the message names the
    setting.
    """
    if "connect" in type(spark).__module__:
        return
    name = os.environ.get("PYSPARK_PYTHON") or "python3"
    python = shutil.which(name)
    if python is None and "/" in name:
        return  # from an archive that Spark unpacks for its tasks
    if python is not None and Path(python).parent == Path(sys.executable).parent:
        return
    # Last, because it is a trip to the JVM.
    if not (spark.conf.get("spark.master") or "").startswith("local"):
        return
    if (reason := _unfit(python)) is not None:
        raise InvalidRequest(
            f"Spark would run its tasks with {python or name}, which {reason}: set PYSPARK_PYTHON to the driver's "
            'interpreter before the session is made, by os.environ["PYSPARK_PYTHON"] = sys.executable or in the shell'
        )


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
