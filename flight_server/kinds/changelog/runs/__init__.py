"""Sorted runs of updates: in memory and in files.

A run knows rows, versions and diffs, and no keep rule.
"""

from .blocks import of_block, to_block
from .layout import Layout, is_encoded
from .run import MAX_HASH, Counts, Damaged, MemoryRun, Question
from .run_files import Run, RunFile, RunFolder, RunWriter
from .updates import DELETE, Updates, rows_at
