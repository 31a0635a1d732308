"""Sorted runs of updates: in memory and in files.

A run knows rows, versions and diffs, and no keep rule.
"""

from .hits import Hits
from .layout import Layout, is_encoded
from .run import MAX_HASH, Block, Counts, Damaged, MemoryRun, Run, of_block, to_block
from .run_files import RunFile, RunFolder
from .updates import DELETE, Numbers, Updates, rows_at
