"""Joining: keys in one form on both sides, and which rows match."""

from .as_of import TIMED_ROW_BYTES, AsOf, Direction, TimedRows
from .hash_join import PIECE_ROWS, Probing, expanded
from .held_rows import held_table, sizes_of
from .join_keys import KeyForm, Keys, MatchKeys, present
from .join_plan import Column, How, JoinPlan
from .key_index import INDEX_ROW_BYTES
