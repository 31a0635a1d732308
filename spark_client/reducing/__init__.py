"""Reducing: many rows to one for each group, by states that merge in any order, and aggregates computed from them."""

from .aggregate_functions import FUNCTIONS, SYNONYMS, Computed, count_rows
from .group_results import ResultColumn, counted, finished
from .group_states import Again, Present, StateColumn
from .reduction import BATCH_ROWS, Reduction, merge_bytes
