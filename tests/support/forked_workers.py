"""Python workers of the tests' Spark sessions are forked from a daemon that has imported what most of them import.

Guarantee: a worker is one of ``pyspark.daemon``, which ``spark.python.daemon.module`` replaces by this module; it only
has its modules before its first task. To import them took 0.7 of the 0.8 CPU seconds of a worker, and each Spark
context starts new ones, as does each task that fails.

PySpark's daemon imports nothing beforehand because a library may start threads, which a fork does not have. Of what is
imported here only jemalloc starts one, which it starts again in a fork. Executors that must not find the package have
PySpark's daemon, and so has a driver that a test starts as a program.

This module, run as a program with the module of the workers, is the daemon.
"""

from __future__ import annotations

import gc
import importlib
import sys

MODULE = __name__
_IMPORTED = ("pandas", "pyarrow.flight", "spark_client.jobs.tasks", "spark_client.steps")


def main() -> None:
    """Import, and do what PySpark's daemon does."""
    from pyspark import daemon

    worker = sys.argv[1]
    importlib.import_module(worker)
    # The others have one process for a query's plan, which imports less.
    if worker == "pyspark.worker":
        for module in _IMPORTED:
            importlib.import_module(module)
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
