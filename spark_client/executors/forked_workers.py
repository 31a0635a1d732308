"""Python workers that have the libraries of a task before their first one: forked from a daemon that imports them.

Guarantee: this module, run as a program with the module of the workers, is PySpark's daemon, which a client's jobs on a
local master (``interpreter``), or ``spark.python.daemon.module``, replace by it. Its workers are PySpark's; they differ
only in what they have imported. A library that cannot be imported is left to the workers.

Spark ends workers that were idle for a minute, and starts new ones for each application and for each task that has
failed. Importing takes 0.7 of the 0.8 CPU seconds of such a worker. Here the daemon does it once for all of them, and
they share the memory of it.

PySpark's zip
    Spark puts ``pyspark.zip`` first on the path of Python, and Python compiles the sources of a zip in each process
    again: 1.4 CPU seconds. Where the zip is part of an installed PySpark, as pip's is, the daemon takes the package
    around it, which is compiled: the same sources.

Threads
    PySpark's daemon imports nothing because a library may start threads, which a fork does not have. Of what is
    imported here jemalloc and OpenBLAS start some. Both stop them before a fork, or start them again in it.

Random numbers
    numpy seeds its global generator when it is imported, so all workers would draw the same numbers. A new worker
    seeds it again. Python does that with its own generator.

Garbage
    What the daemon has imported is in no worker's collections (``shipping``), which would also copy its pages.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_OF_WORKERS = "pyspark.worker"
"""The module of tasks; others have one process for a query's plan, which needs less."""
_LIBRARIES = ("pandas", "spark_client.jobs", "spark_client.steps", "spark_client.scan")


def main() -> None:
    """Import, and do what PySpark's daemon does."""
    worker = sys.argv[1]
    gc.disable()
    _put_zips_last()
    # Spark reads the daemon's port from what it prints.
    with contextlib.redirect_stdout(sys.stderr):
        for module in (worker, *(_LIBRARIES if worker == _OF_WORKERS else ())):
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    daemon = os.getpid()

    def seed() -> None:
        # Not in a process that a task forks, as with multiprocessing: there it is the user's generator.
        if os.getppid() == daemon and (random := sys.modules.get("numpy.random")) is not None:
            random.seed()

    os.register_at_fork(after_in_child=seed)
    gc.freeze()
    gc.enable()
    from spark_client.pyspark_parts import run_daemon  # noqa: PLC0415 - after what may fail

    run_daemon()


def _put_zips_last() -> None:
    """Those of an installed PySpark."""
    installed = PathFinder.find_spec("pyspark", [path for path in sys.path if not path.endswith(".zip")])
    if installed is not None and installed.origin is not None:
        home = Path(installed.origin).parent.resolve() / "python" / "lib"
        # Python's sort is stable.
        sys.path.sort(key=lambda path: Path(path).parent.resolve() == home)


if __name__ == "__main__":
    main()
