"""Gathering: a task's rows in an order, or key by key, within a memory budget, with files for the rest.

For ``steps``.
"""

from .external_sort import sorted_batches
from .gathered import Gathered
from .hash_runs import KeyHashes
from .key_windows import Rows, Window, windows
from .row_pieces import cut, pieces, row_weights
from .task_memory import TaskMemory

__all__ = [
    "Gathered",
    "KeyHashes",
    "Rows",
    "TaskMemory",
    "Window",
    "cut",
    "pieces",
    "row_weights",
    "sorted_batches",
    "windows",
]
