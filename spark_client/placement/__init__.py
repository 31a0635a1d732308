"""Computes each row's partition by Spark's hash, and a partition's groups of rows. For ``jobs`` and ``pipeline``."""

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
