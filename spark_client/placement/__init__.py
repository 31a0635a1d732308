"""Which partition a row goes to, by Spark's hash, and which rows are a group."""

from .grouping import PlacedKeys, check_groupable, groups
from .hashing import partition_ids, round_robin_ids, round_robin_start

__all__ = [
    "PlacedKeys",
    "check_groupable",
    "groups",
    "partition_ids",
    "round_robin_ids",
    "round_robin_start",
]
