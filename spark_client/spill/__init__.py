"""Spilling: a task's rows in an order, or key by key, within a memory budget, with scratch files for the rest."""

from .external_sort import sorted_batches
from .gathered import Gathered
from .hash_lists import KeyHashes
from .key_windows import Rows, Window, windows
from .row_pieces import cut, pieces, row_weights
from .scratch import Parked, Scratch
from .task_memory import TaskMemory, reading_budget, writing_budget
