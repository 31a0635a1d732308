"""Spilling: a task's rows in an order, or key by key, within a memory budget, with scratch files for the rest."""

from .external_sort import sorted_batches
from .gathered import Gathered, TaskMemory, cut, fit, pieces, reading_budget, row_weights, writing_budget
from .key_windows import KeyHashes, Rows, Window, windows
from .scratch import Parked, Scratch
