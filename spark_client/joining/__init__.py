"""Joining: keys in one form on both sides, and which rows match."""

from .as_of import TIMED_ROW_BYTES, AsOf, Direction, TimedRows
from .expanding import PIECE_ROWS, expanded, gathered
from .hash_join import Probing
from .held_rows import HeldRows, sizes_of
from .held_tables import held_table
from .join_keys import KeyForm, present
from .join_plan import Column, How, JoinPlan
from .key_index import INDEX_ROW_BYTES
from .match_keys import Keys, MatchKeys
