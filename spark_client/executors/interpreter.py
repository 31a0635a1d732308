"""The Python that runs Spark's tasks.

Guarantee: where Spark Classic has a local master, its tasks run with the driver's interpreter, unless the user has
named another one; then, before a job, one that cannot run them is an error.

Spark itself starts the interpreter that ``PYSPARK_PYTHON`` names, else the first ``python3`` in the search path: not
the driver's in a virtual environment that was not activated. On other masters the executors' error names the missing
package.

Forked workers
    Tasks of the functions that are made :func:`in_forked_workers` run in workers that have their libraries from a
    daemon (``forked_workers``). The application's other functions do not: Spark has workers for each interpreter, and
    that of these functions is a program of ours, ``_PROGRAM``, which is that daemon where Spark starts PySpark's, and
    else the driver's interpreter. Where the user has named a daemon (``spark.python.daemon.module``), that is started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flight_server.protocol import InvalidRequest

from .shipping import private_directory

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
_PROGRAM = """#!{python}
import os, sys

if __name__ == "__main__":
    if sys.argv[1:3] != ["-m", "pyspark.daemon"]:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    del sys.argv[1:3]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    sys.path.append({root!r})
    from flight_server.host.arrow_pages import load_arrow
    load_arrow(kept_milliseconds={kept})
    from spark_client.executors.forked_workers import main
    main()
"""
_KEPT_MILLISECONDS = 60_000
"""Of freed memory of Arrow's: as long as Spark keeps an idle worker."""
_MEMORY = "spark.executor.pyspark.memory"
_MOST_PATH_BYTES = 120
"""Older versions of Linux take no longer name in a program's first line."""
_making = threading.Lock()
"""Held while a context has the program for its interpreter."""


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


@contextmanager
def in_forked_workers(spark: SparkSession) -> Iterator[None]:
    """Functions that the block makes for tasks of a local master run in forked workers, where those can be."""
    use_own_interpreter(spark)
    context = _local_context(spark)
    if context is None:
        yield
        return
    with _making:
        before = context.pythonExec
        context.pythonExec = _forking(context) or before
        try:
            yield
        finally:
            context.pythonExec = before


def _forking(context: Any) -> str | None:
    """The program; None where the context limits the address space of workers, of which libraries take a part, or
    sends them modules, which one of a library may hide, or where nothing can be run from the program's directory.
    """
    program = None if context._python_includes else _program(context.pythonExec)
    if program is None or context._conf.contains(_MEMORY) or not os.access(program, os.X_OK):
        return None
    return program


@cache
def _program(name: str) -> str | None:
    """The file of ``_PROGRAM`` for the interpreter of this name, if it is the driver's."""
    python = shutil.which(name)
    if python is None or Path(python).parent != Path(sys.executable).parent:
        return None
    if len(os.fsencode(python)) > _MOST_PATH_BYTES or " " in python:
        return None
    path = private_directory() / "python"
    root = str(Path(__file__).parents[2])
    path.write_text(_PROGRAM.format(python=python, root=root, kept=_KEPT_MILLISECONDS))
    path.chmod(0o700)
    return str(path)


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
