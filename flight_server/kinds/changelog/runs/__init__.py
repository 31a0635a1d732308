"""Sorted runs of updates: in memory and in files, the log and the state file of a changelog.

A run knows rows, versions and diffs, and no keep rule.
"""

from .blocks import of_block, to_block
from .layout import Layout, is_encoded
from .log import LogEntry, LogFile, read_log
from .run import MAX_HASH, Damaged, MemoryRun
from .run_files import Run, RunFile, RunWriter
from .state_file import STATE_NAME, UNFINISHED_NAME, Uncertain, read_state, write_state
from .updates import DELETE, Updates
