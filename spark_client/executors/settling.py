"""Settling: a Python worker's garbage collector before the first function of a task.

PySpark's worker collects garbage after every task. With pyarrow, numpy, PySpark and this package imported that takes 20
ms, more than half of the cost of a small task. :func:`settle` moves all live objects to the permanent generation, which
a collection does not visit. Objects that are in it are still freed by their reference counts; only cycles among them
never are. So a worker settles only when modules were imported since the last time, a few times in its life, and before
a task's function is unpickled: nothing of a function or its data is alive then.
"""

from __future__ import annotations

import gc
import sys

_modules = 0


def settle() -> None:
    """Call at the start of a task."""
    global _modules  # noqa: PLW0603  # of the process
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.freeze()
